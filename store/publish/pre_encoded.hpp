// PreEncoded: results for files that were coded before their checkpoint was handed over; made by
// PreEncoder (store/publish/pre_encoder.hpp), consumed by publish().
//
// Threads: immutable, except for the flag that an upload is done, and for what changed, which may
// be taken out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/coding/delta_coder.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/format/object_refs.hpp"
#include "store/patches/fresh_patches.hpp"

namespace weightfs {

/// One file, coded separately: `layout` contains only this file.
struct EarlyResult {
  /// Not a tensor number: the parent has no file of this path, so nothing is uploaded.
  static constexpr std::uint32_t kNoTensor = 0xFFFFFFFF;

  Clock::time_point begun = Clock::now();  // before anything was uploaded
  CheckpointFile file;                     // as it was when coding began, or when it was closed
  bool is_grown = false;                   // coded while it was written
  std::shared_ptr<const Layout> layout;
  std::uint64_t parent = 0;          // 0: none, this is for a first version
  Sha256 parent_sha256{};            // of its manifest
  CodedDelta delta;                  // without a parent only hashes
  std::vector<std::uint64_t> marks;  // only without a parent: see CheckpointHashes
  /// What `delta` changes; nullptr: it is not noted.  For the version that is published with this.
  std::shared_ptr<FreshChunks> fresh;

  /// Upload names. With a parent: packs <nonce>-<k> of the version after it, with tensors numbered
  /// from first_tensor. Without: the file in the snapshot of this nonce.
  std::string nonce;
  std::uint32_t first_tensor = 0;
  bool has_parents_tensors = false;  // those of the parent's file of this path, in the same order
  // What a manifest says of these packs, and a snapshot of this file; complete with the next.
  std::vector<PackRef> uploaded;
  std::vector<Sha256> pieces;
  std::atomic<bool> is_uploaded{false};

  /// Whether a file of a checkpoint is the one that was coded.
  [[nodiscard]] bool is_of(const CheckpointFile& other) const {
    return file.path == other.path && file.kind == other.kind && file.head == other.head &&
           file.stamp.is_same_but_ctime(other.stamp);
  }
};

/// See store/publish/pre_encoder.hpp.
class PreEncoded {
 public:
  /// `snapshot_nonce`: names the uploads for a first version; empty if they must not be used.
  PreEncoded(std::vector<std::shared_ptr<const EarlyResult>> results, std::string snapshot_nonce)
      : results_(std::move(results)), snapshot_nonce_(std::move(snapshot_nonce)) {}

  /// The result for this file against this parent; nullptr if there is none.
  [[nodiscard]] std::shared_ptr<const EarlyResult> find(const CheckpointFile& file,
                                                        std::uint64_t parent,
                                                        const Sha256& parent_sha256) const {
    for (const auto& result : results_) {
      if (result->parent == parent && result->parent_sha256 == parent_sha256 && result->is_of(file))
        return result;
    }
    return nullptr;
  }

  [[nodiscard]] const std::string& snapshot_nonce() const noexcept { return snapshot_nonce_; }
  [[nodiscard]] bool empty() const noexcept { return results_.empty(); }

  /// Total size of the files.
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& result : results_) bytes += result->file.stamp.size_bytes;
    return bytes;
  }

 private:
  std::vector<std::shared_ptr<const EarlyResult>> results_;
  std::string snapshot_nonce_;
};

}  // namespace weightfs
