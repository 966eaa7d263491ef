// FreshPatches: what changed in versions that were made a moment ago, noted while their chunks were
// decoded, or on a writer coded, so that their patches cost no second reading of images.
//
//     make the version    FreshChunks::add() for each chunk that was decoded and has its hash
//     it is complete      FreshPatches::put(): nobody waits for a disk before `latest` moves
//     PatchRecorder       take(), write_patches(): the files of a span of level one
//
// Why logs and not patches: making a patch beside decoding (copy the old block, compare, code)
// added 26 % to the work on a chunk (read, decode, hash, write; bf16 of which 1.1 % changed);
// copying what the decoder knows (kernels/block/change_log.hpp) adds 1 to 5 % (materialize_bench).
// Keeping the coded packs instead and decoding them a second time would, by the sum of its parts,
// save only a sixth of what comparing two images costs: it reads the old one and hashes the new
// one.
//
// Why they are right: a chunk is added after it had the hash of the new version's manifest, and the
// old one had that of the old version's, or its change would have led elsewhere
// (DecodeJob::old_hash is for blocks that do not depend on it).  Who codes compares both hashes,
// and what it coded with the new bytes (store/coding/delta_coder.hpp).  A patch is the one
// canonical form of the difference, so it depends on the two manifests only, which name the span.
// So it does not matter whether images were removed, hidden as damaged or made anew since: the
// bytes would be the same.
//
// Memory: a span at most fresh_bytes_max(), else it is given up, and somebody compares images
// instead; as much again for files of a version published here that were coded early
// (store/publish/pre_encoder.hpp).  kSpansMax spans, and the one that is being made.  Nothing lies
// on the disk.
// Threads: all calls may run in parallel, write_patches() beside none of the same span.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/change_log.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/chunk_place.hpp"
#include "store/format/layout.hpp"
#include "store/patches/patch_file_writer.hpp"
#include "store/patches/patch_span.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

/// A chunk that differs between two versions, and what decoding it changed.
struct FreshChunk {
  ChunkPlace place;
  kernels::Kind kind{};
  std::uint32_t size_bytes = 0;
  std::uint64_t hash_before = 0, hash_after = 0;
  kernels::ChangeLog log;
};

/// A version, and its tensor table.
struct FreshEnd {
  PatchVersion version;
  std::shared_ptr<const Layout> layout;
};

/// What changed in files that are being made, or coded.
class FreshChunks {
 public:
  explicit FreshChunks(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// False: they were given up; whatever is added is dropped.
  [[nodiscard]] bool is_wanted() const noexcept { return is_wanted_; }

  /// Of a chunk that several threads make, one is enough, and more do no harm.
  void add(FreshChunk chunk);

  /// Not all changes can be noted.  `why`: for the log.
  void give_up(std::string_view why);

  /// Of memory.
  [[nodiscard]] std::uint64_t size_bytes() const;

  /// Appends all chunks to `to`, with `first_tensor` added to their tensors; they leave this.
  void take(std::uint32_t first_tensor, std::vector<FreshChunk>& to);

 private:
  const std::uint64_t bytes_max_;
  std::atomic<bool> is_wanted_ = true;
  mutable RankedMutex mutex_{LockRank::leaf, "FreshChunks::mutex_"};  // guards what follows
  std::vector<FreshChunk> chunks_;
  std::uint64_t bytes_ = 0;
};

/// What changed in some files of a version.
struct FreshPart {
  std::shared_ptr<FreshChunks> chunks;
  std::uint32_t first_tensor = 0;  // of the version, where the tensors of `chunks` begin
};

/// What changed from one version to a later one.
class FreshSpan {
 public:
  /// `parts`: together all files.
  FreshSpan(FreshEnd first, FreshEnd last, std::vector<FreshPart> parts);

  [[nodiscard]] const PatchVersion& first() const noexcept { return first_.version; }
  [[nodiscard]] const PatchVersion& last() const noexcept { return last_.version; }

  /// nullopt: the tensor tables differ, so no patches can lead over it.
  [[nodiscard]] std::optional<SpanEnds> find_ends() const;

  /// False: a part was given up.
  [[nodiscard]] bool is_wanted() const;

  /// All chunks, ascending; they leave the span.
  [[nodiscard]] std::vector<FreshChunk> take_chunks();

 private:
  const FreshEnd first_, last_;
  std::vector<FreshPart> parts_;
};

/// How spans of level one came about, since the store was opened.
struct FreshCounters {
  std::uint64_t fresh = 0;        // of what was noted while the version was made
  std::uint64_t from_images = 0;  // by comparing two images
  std::uint64_t given_up = 0;     // noted in part, or not taken in time

  bool operator==(const FreshCounters&) const = default;
};

class FreshPatches {
 public:
  static constexpr std::size_t kSpansMax = 2;

  /// Somebody will take spans from now on, or not any longer.  While nobody does, none are noted.
  void add_taker();
  void remove_taker();

  /// Changes to be noted while a version, or a file of it, is made; nullptr: nobody wants them.
  /// `bytes`: of what is made.
  [[nodiscard]] std::shared_ptr<FreshChunks> begin(std::uint64_t bytes) const;

  /// `span`: its version is complete, or certain to exist.  May be null.  It is dropped if it was
  /// given up, or if kSpansMax wait: those are the first that are of use.
  void put(std::unique_ptr<FreshSpan> span);

  /// The span that begins at `first`; nullptr: there is none.  All that begin earlier are dropped.
  [[nodiscard]] std::unique_ptr<FreshSpan> take(const PatchVersion& first);

  /// A span of level one was installed.  What begins before its end is dropped.
  void note_installed(const SpanEnds& ends, bool is_fresh);

  [[nodiscard]] FreshCounters counters() const;

 private:
  void drop_before(std::uint64_t version, std::vector<std::unique_ptr<FreshSpan>>& dropped);

  mutable RankedMutex mutex_{LockRank::leaf, "FreshPatches::mutex_"};  // guards what follows
  unsigned takers_ = 0;
  std::vector<std::unique_ptr<FreshSpan>> spans_;  // ascending by their first version
  FreshCounters counters_;
};

/// Changes may have 64 MiB, or a 32nd of what is made where that is more: changes of bf16 take 4
/// bytes each, so 1.1 % of them take a 45th.
std::uint64_t fresh_bytes_max(std::uint64_t version_bytes) noexcept;

/// Files for PatchTable::install(), byte for byte those that take_patches() would make of the two
/// images.  Its chunks leave the span.
/// Returns: nullopt if a log and the hashes of its chunk disagree.
/// Throws Error: cancelled, timed_out, no_space, io.
std::optional<PatchFiles> write_patches(const PatchTable& table, const SpanEnds& ends,
                                        FreshSpan& span, const Context& context);

}  // namespace weightfs
