// Publish: makes a version out of a checkpoint directory.
//
//     scan      check every header and index; decide what is published
//     parent    the newest version when the command starts; its images are brought into the store
//     diff      per chunk, in parallel: read old and new, compare the old with its hash, code,
//               decode what was coded and compare with the new, hash
//     upload    packs (or the snapshot), blobs, layout
//     commit    manifest, by put-if-absent
//
// Killed at any point it leaves objects that no manifest names, and nothing else.
//
// Threads: one call runs its own threads; several calls, in any number of processes, may race for
// the same number: one wins, the others get Error conflict.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/chunk_coder.hpp"
#include "store/history.hpp"

namespace weightfs {

struct PublishOptions {
  std::filesystem::path directory;
  std::string tag;  // may be empty
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;  // globs beside the built-in patterns
  bool snapshot = false;             // write the full bytes too
  unsigned threads = 0;              // 0: one for each core
  kernels::SharedCoder coder = kernels::make_cpu_coder();

  /// Called at named points ("scanned", "parent", "diffed", "pack", "blobs", "layout",
  /// "before-commit", "committed"); tests kill the process there.
  std::function<void(std::string_view point)> at;
};

struct PublishResult {
  std::uint64_t version = 0;
  std::uint64_t parent = 0;
  std::uint64_t changed_elements = 0;  // 0 without a delta
  std::uint64_t elements = 0;
  std::uint64_t version_bytes = 0;   // the checkpoint's published files
  std::uint64_t uploaded_bytes = 0;  // everything that this publish added to the bucket
  bool snapshot = false;
  std::vector<std::string> unpublished;
};

/// Throws Error: invalid, corrupt, not_found (the directory; see scan_checkpoint), busy (a file was
/// written to while it was read), conflict (another writer published first; try again), permission
/// (the bucket cannot be written), no_space, corrupt (the parent's bytes, naming them),
/// unavailable.
PublishResult publish(History& history, Store& store, const PublishOptions& options,
                      const Context& context, const Progress& progress);

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
