// AheadDeltas: the changes that somebody will ask for as files (store/local/wanted_deltas.hpp),
// made while their newer version is made.  A chunk that has just been decoded is in the cache, and
// its log (kernels/block/change_log.hpp) says what changed: so nothing is decoded or compared
// again.
//
//     one step       the indexes of its packs say how many elements of each chunk change, so every
//                    chunk is written to its place at once; the file is complete with the version
//     several steps  their sum is known when they have all been decoded: what changed waits in
//                    memory, and is written when `latest` has moved (UnfinishedDelta)
//
// The bytes are those that store/inspect/delta_files.hpp makes on demand, which is what happens
// where none are made here: the base or the version lacks files, their tensor tables differ, the
// coder writes no logs, a delta has more than a quarter of the version's bytes, there is no room
// for it, several steps need more memory than fresh_bytes_max(), or a count of a pack is wrong.
// Whatever fails here never fails the version.
//
// Why the old values are right: see store/patches/fresh_patches.hpp.
//
// Threads: add() and give_up() may run in parallel; the rest in the thread that makes the version.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/block/change_log.hpp"
#include "kernels/block/scratch.hpp"
#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/chunk_place.hpp"
#include "store/format/layout.hpp"
#include "store/local/store.hpp"
#include "store/sparse/sparse_file.hpp"

namespace weightfs {

/// The versions between which something changes, and how the newer one is made.
struct DeltaEnds {
  VersionPair versions;
  std::shared_ptr<const Layout> from, to;
  std::span<const std::uint64_t> hashes_from, hashes_to;  // of all chunks
  std::int64_t time = 0;                                  // of the newer version
  /// Changed elements of each chunk; nullopt: they are known when all is decoded.
  std::optional<std::vector<std::uint32_t>> counts = {};
  ImagesHome home = ImagesHome::disk;
  std::uint64_t coming_bytes = 0;  // of the newer version, for which room was made in `home`
};

class AheadDeltas {
 public:
  /// What a thread needs to add chunks.
  struct Worker {
    kernels::Scratch scratch;
    SparseEntries entries;
  };

  /// Keeps the references, also those of `ends`.  `ids`: those that are wanted between the ends
  /// (WantedDeltas::of).  Returns: nullptr if none of them can be made; the log says why.
  static std::unique_ptr<AheadDeltas> begin(Store& store, DeltaEnds ends, std::vector<DeltaId> ids);
  ~AheadDeltas();  // gives up what is not complete

  /// False: they were given up; whatever is added is dropped.
  [[nodiscard]] bool is_wanted() const noexcept { return is_wanted_; }

  /// Of a chunk that has its hash, the new one.  A chunk may be added several times.
  void add(ChunkPlace place, const kernels::ChangeLog& log, std::span<const std::byte> chunk,
           Worker& worker);

  /// Not all changes can be noted.  `why`: for the log.
  void give_up(std::string_view why);

  /// The version is complete.
  /// Returns: what is to be finished when `latest` has moved; nullptr: nothing.
  [[nodiscard]] std::unique_ptr<UnfinishedDelta> complete();

 private:
  struct Output;
  class Held;

  AheadDeltas(Store& store, DeltaEnds ends, std::vector<DeltaId> ids);
  bool begin_files();
  bool begin_held();
  [[nodiscard]] bool is_new(ChunkPlace place);
  [[nodiscard]] bool hold(ChunkPlace place, const SparseEntries& entries);
  [[nodiscard]] bool is_whole();

  Store& store_;
  const DeltaEnds ends_;
  const std::vector<DeltaId> ids_;
  OldValues old_ = OldValues::without;  // whether any of them has them
  std::vector<std::unique_ptr<Output>> outputs_;
  std::atomic<bool> is_wanted_ = true;
  RankedMutex mutex_{LockRank::leaf, "AheadDeltas::mutex_"};  // guards what follows
  std::vector<bool> added_;                                   // by chunk number
  std::unique_ptr<Held> held_;                                // of several steps
};

}  // namespace weightfs
