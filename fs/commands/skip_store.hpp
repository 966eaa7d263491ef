// SkipStore: the store in which the commands skip and gc make skip deltas.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>

#include "fs/commands/command_context.hpp"
#include "store/materialize/history.hpp"
#include "store/publish/publish_store.hpp"

namespace weightfs::fs {

/// A store and what it knows of a repository: what `--store` says, else the one of publish.
class SkipStore {
 public:
  /// Checks the images that are there, and learns which versions there are.  Keeps the reference.
  SkipStore(Reading& reading, const std::filesystem::path& wanted, const Progress& progress);

  [[nodiscard]] Store& store() noexcept { return opened_.store(); }
  [[nodiscard]] History& history() noexcept { return history_; }
  [[nodiscard]] std::uint64_t newest() const noexcept { return newest_; }

 private:
  PublishStore opened_;
  History history_;
  std::uint64_t newest_ = 0;
};

}  // namespace weightfs::fs
