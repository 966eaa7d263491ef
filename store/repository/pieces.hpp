// Pieces: bytes of bucket objects, checked before use against the SHA-256 that an index below the
// manifest has for each kPieceBytes of them.
//
// Threads: pure functions.  Format: docs/FORMAT.md, "Packs" and "Snapshots".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "store/base/error.hpp"
#include "store/bucket/bucket.hpp"
#include "store/format/pack.hpp"

namespace weightfs {

/// An object of the bucket is missing or not what it should be.
class ObjectError : public Error {
 public:
  ObjectError(ErrorCode code, std::string key, const std::string& message)
      : Error(code, message), key_(std::move(key)) {}
  [[nodiscard]] const std::string& key() const noexcept { return key_; }

 private:
  std::string key_;
};

/// The part of an object that is cut into pieces, all of kPieceBytes but the last.
struct PieceRun {
  std::string key;
  std::uint64_t offset_bytes = 0;  // of the first piece, in the object
  std::uint64_t size_bytes = 0;
  std::span<const Sha256> hashes;  // one for each piece

  /// Bytes of `count` pieces from `first` on.  Requires: they exist.
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t first, std::uint64_t count) const noexcept {
    return std::min((first + count) * kPieceBytes, size_bytes) - first * kPieceBytes;
  }
};

/// Pieces per request when many are needed: 4 MiB, so that 16 requests in flight hold 64 MiB.
inline constexpr std::uint64_t kPiecesPerFetch = 4;

/// Whether whole pieces, beginning with `first`, are what the run's hashes say.
/// Requires: bytes.size() is bytes_of(first, some count).
[[nodiscard]] bool are_right(const PieceRun& run, std::uint64_t first,
                             std::span<const std::byte> bytes);

/// Fetches whole pieces, beginning with `first`, and checks each; a wrong one is fetched once more,
/// since it may have been damaged in transit.
///
/// Requires: into.size() is bytes_of(first, some count).
/// Throws ObjectError: not_found; corrupt (too short, or a piece with another hash).
/// Throws Error: what the bucket throws.
void fetch_pieces(BucketReader& bucket, const PieceRun& run, std::uint64_t first,
                  std::span<std::byte> into, const Context& context);

}  // namespace weightfs
