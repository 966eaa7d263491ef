// PublishStore: the store that `publish` uses while it runs.
//
// Threads: belongs to its caller.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "store/local/store.hpp"
#include "store/os/file.hpp"

namespace weightfs {

/// Opens the store of a publisher. The first of these that is not held by a daemon or another
/// publisher: `path`; the private store beside it (<path>.publish, which is kept); or a temporary
/// one (<path>.publish-<pid>, or -<pid>-<k> if another container has that pid), which is removed at
/// the end.  Also removes temporary stores left by killed publishers.
///
/// Throws Error: as Store::open, but busy only if all of these are held.
class PublishStore {
 public:
  static PublishStore open(const std::filesystem::path& path, std::string_view repository,
                           std::string_view url, StoreLimits limits);
  ~PublishStore();
  PublishStore(PublishStore&&) noexcept = default;
  PublishStore& operator=(PublishStore&&) = delete;
  [[nodiscard]] Store& store() noexcept { return *store_; }
  /// Whether the next publish finds what this one leaves in it.
  [[nodiscard]] bool is_kept() const noexcept { return remove_.empty(); }

 private:
  PublishStore() = default;
  std::unique_ptr<Store> store_;
  std::filesystem::path remove_;  // empty: keep
};

}  // namespace weightfs
