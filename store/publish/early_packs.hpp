// Early packs: uploads the packs of one file before its checkpoint is handed over, those of a file
// that is still written as they are closed.
//
// Threads: add() is called by one thread at a time; the rest belongs to its maker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/coding/delta_coder.hpp"
#include "store/format/object_refs.hpp"
#include "store/publish/packs_ahead.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// A file that grows is announced in pieces of so many bytes: of this, or of an 8th of the file
/// where that is more.  A reader has so much left to do when the file is complete.  Each piece is a
/// pack in the manifest, whose size is bounded, so there are fewer where a version has many files.
inline constexpr std::uint64_t kEarlyPieceBytes = 16u << 20;
std::uint64_t early_piece_bytes(std::uint64_t file_bytes, std::size_t files_of_version) noexcept;

/// With the time limit of an upload before the hand-over.
Context early_upload_context(const Context& context, std::uint64_t size_bytes);

class EarlyPacks {
 public:
  struct Names {
    std::uint64_t version = 0;       // that will have them
    std::string nonce;               // <nonce>-<k>
    std::uint32_t first_tensor = 0;  // as which the file's first tensor is numbered
  };

  /// The first packs are in the bucket, and `so_far` is how far they reach.  Called by a thread of
  /// EarlyPacks; must be quick.
  using Told = std::function<void(std::span<const PackRef> packs, const CodedSoFar& so_far)>;

  /// Keeps the reference.
  EarlyPacks(Repository& repository, Names names, const Context& context, Told told = {});

  /// The next pack.  Returns at once.
  void add(std::shared_ptr<const SpooledPack> pack, const CodedSoFar& so_far);

  /// What of `packs`, which begin with those that were added, was not added.  `so_far`: by them
  /// all.
  void add_rest(std::span<const std::shared_ptr<const SpooledPack>> packs,
                const CodedSoFar& so_far);

  [[nodiscard]] const Names& names() const noexcept { return names_; }

  /// Uploads what of `packs`, which begin with those that were added, is not uploaded; also what
  /// could not be uploaded before.
  /// Returns: what a manifest says of them all.  Throws Error: as Bucket::put().
  std::vector<PackRef> finish(std::span<const std::shared_ptr<const SpooledPack>> packs);

 private:
  void begin();
  PackRef put(const SpooledPack& pack, std::size_t k);
  PackRef put_added(const SpooledPack& pack, std::size_t k);

  Repository& repository_;
  const Names names_;
  const Context context_;
  const Told told_;
  RankedMutex mutex_{LockRank::leaf, "EarlyPacks::mutex_"};  // guards the next member
  std::vector<CodedSoFar> so_far_;                           // by number of an added pack
  std::vector<PackRef> added_;                               // the thread's
  // Once one was added, unless a thread was refused; last: its thread uses those above.
  std::optional<PacksAhead> ahead_;
};

}  // namespace weightfs
