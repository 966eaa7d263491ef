// PublishStore: the store that `publish` works with, for as long as it runs.
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

/// Opens the store of a publisher: `path`, or if it is held by a daemon or another publisher the
/// private one beside it (<path>.publish, kept for the next time), or if that is held too one of
/// its own (<path>.publish-<pid>, or -<pid>-<k> if another container has that pid; removed at the
/// end, as is what killed ones left).
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

 private:
  PublishStore() = default;
  std::unique_ptr<Store> store_;
  std::filesystem::path remove_;  // empty: keep
};

}  // namespace weightfs
