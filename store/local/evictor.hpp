// Evictor: makes room in a store.  It knows the limits, what is counted, and the order of removal;
// Eviction decides whether a version may go.
//
// Order, until there is room: deltas that nobody reads, oldest first; then partial versions, in the
// order in which they were begun; then complete versions, oldest first; then patches, those of the
// oldest versions first.  Versions that stay only because they are in use do not count against
// StoreLimits::store_bytes.  Nothing is removed if everything that may go would not be enough.
//
// Before all that, files go that were made for a version that is not here yet (EarlyImages).
//
// Patches count, and have what StoreLimits::store_bytes leaves beside two versions (patches_max).
// By default they have as much beside it: three versions may be here while one arrives.
//
// evict_ahead() does this before the next version comes, so that it need not wait until the pages
// and blocks of an old one are freed.  Two versions stay then whatever the limits are: `latest`,
// and the one before it, which may still be loaded, or be gone back to.
//
// With images in memory (ImageTable::use_memory) these are a kind of their own: two versions, and
// what is in use; the memory that the host and the cgroup have is asked before each.  On the disk
// the base (ImageTable::base_version) is not removed to make room, nor are patches, which do not
// count there.
//
// Threads: all calls may run in parallel.
// Errors: the calls named evict_for... throw Error: no_space, saying how much is missing and which
// limit it was; corrupt, io.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/local/delta_table.hpp"
#include "store/local/early_images.hpp"
#include "store/local/eviction.hpp"
#include "store/local/image_table.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"
#include "store/os/memory_room.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

class Evictor {
 public:
  /// Keeps the references.  `store`: its path, for messages. `space`: returns the space of the file
  /// system.
  Evictor(std::filesystem::path store, StoreLimits limits, std::function<Space()> space,
          Eviction& rule, ImageTable& images, DeltaTable& deltas, PatchTable& patches);

  /// Makes room for a new version of `bytes`, within both limits.
  /// `version_bytes`: the final size of the version, if that is more than `bytes`.
  /// `there_bytes`: of these, of files that lie on the disk already and are counted nowhere.
  void evict_for_images(std::uint64_t bytes, std::uint64_t version_bytes = 0,
                        std::uint64_t there_bytes = 0);
  /// Whether that would have nothing to do.
  [[nodiscard]] bool has_room_for_images(std::uint64_t bytes, std::uint64_t there_bytes) const;

  /// Files that go before anything else when there is no room; nullptr: there are none.
  void set_early(EarlyImages* early) noexcept { early_ = early; }

  struct Ahead {
    unsigned versions = 0;   // that went
    std::uint64_t last = 0;  // of them; 0: none went
    bool is_in_use = false;  // more may go once it is not used, or built on
    bool is_met = false;     // what is in use not counted, the room is there
  };
  /// Makes the room that a version like `latest` will need, which is what `latest` does not share
  /// with the complete version before it.  These two stay.  Deltas stay too: they go quickly when
  /// the version comes.  If that would not be enough, only what is above the limit goes: versions
  /// that stayed because they were in use.
  /// `there_bytes`: as above.
  Ahead evict_ahead(std::uint64_t latest, std::uint64_t there_bytes = 0);

  /// Whether evict_for_images(bytes) may succeed while a version stays; true if it would stay
  /// anyway, or is in memory.
  [[nodiscard]] bool has_room_beside(std::uint64_t version, std::uint64_t bytes);

  /// Makes room for a delta of `bytes`, within both limits.  The default limit is higher than for
  /// images, because three versions alone may fill that.  `coming_bytes`: of the version with which
  /// it is made, for which there is room already and nothing is counted yet.
  void evict_for_delta(std::uint64_t bytes, std::uint64_t coming_bytes = 0);

  /// Makes room for bytes that are not images, such as staged files: only the limit of free space
  /// counts.  Cheap if there is room.
  void evict_for_free_bytes(std::uint64_t bytes);
  /// That would have nothing to do.
  [[nodiscard]] bool has_free_bytes(std::uint64_t bytes) const;

  /// Of patches, with images on the disk: what store_bytes leaves beside two versions.
  [[nodiscard]] std::uint64_t patches_max() const;
  /// What the file system has beside what is to stay free.
  [[nodiscard]] std::uint64_t spare_bytes() const;

  /// Evicts one complete version if the rule allows it.  Returns: whether it is gone; from memory
  /// alone if it is there.
  bool evict(std::uint64_t version);

  /// A version was found to have wrong bytes.  Evicts it, or, if it must stay, forgets its images:
  /// it is made again by whoever needs it, and who has a file of it open keeps that.
  /// Returns: false if its images are not on the disk, or are gone already.
  bool discard_damaged(std::uint64_t version);

  // ---- images in memory ----

  using FindRoom = std::function<std::optional<MemoryRoom>()>;
  /// `find_room`: store/os/memory_room.hpp.  Requires: before the next calls, and nobody uses this
  /// yet.
  void use_memory(FindRoom find_room) { find_room_ = std::move(find_room); }

  /// Makes room in memory for a new version of `bytes`: files that were made early and not claimed
  /// go, and the oldest versions that nobody uses until two are left with the new one, so that
  /// their pages are used again.
  /// `version_bytes`: as above.
  /// Throws Error: no_space: the host or the cgroup does not have the memory.
  void evict_for_memory(std::uint64_t bytes, std::uint64_t version_bytes = 0,
                        std::uint64_t there_bytes = 0);

  /// Lets a delta of `bytes` lie beside the images in memory.  Nothing goes for it but files that
  /// were made early; in turn deltas that do not lead to the newest version go before the next
  /// version.
  /// `coming_bytes`: of the version with which it is made.  Throws Error: no_space.
  void admit_delta_to_memory(std::uint64_t bytes, std::uint64_t coming_bytes = 0);

  /// Throws Error: no_memory: two versions of the newest one's size do not fit into the memory that
  /// the host or the cgroup has, with those that are there; says what to do.
  void require_memory() const;

 private:
  struct Demand;

  /// Bytes that count, and that are free, beside those of versions.
  struct Beside {
    std::uint64_t used = 0, free = 0;
  };

  [[nodiscard]] Demand demand_for(std::uint64_t bytes, std::uint64_t version_bytes) const;
  [[nodiscard]] std::vector<std::uint64_t> counted_versions() const;
  void evict_until_met(const Demand& demand);
  Ahead evict_versions(const Demand& demand, const Beside& beside,
                       std::vector<std::uint64_t>& counted);
  [[nodiscard]] bool evict_one(std::uint64_t version);
  [[nodiscard]] Beside without_deltas() const;
  [[nodiscard]] std::map<DeltaId, DeltaTable::Delta> deltas_on_disk() const;
  void remove_deltas_in_memory(std::uint64_t version);
  void set_memory_limit(std::uint64_t more_bytes) const;
  [[nodiscard]] std::uint64_t patches_bytes() const;
  [[nodiscard]] std::uint64_t limit_for(std::uint64_t default_bytes, std::uint64_t version_bytes,
                                        std::uint64_t patches_bytes) const;
  void remove_patches(const Demand& demand, std::uint64_t other_bytes);
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> best_room(
      const Demand& demand, const std::vector<std::uint64_t>& versions) const;
  std::uint64_t remove_deltas(const Demand& demand, std::uint64_t image_bytes);
  bool evict_partial(std::uint64_t version);
  [[nodiscard]] std::uint64_t free_min(const Space& space) const;
  [[nodiscard]] bool must_stay(std::uint64_t version, const Demand& demand) const;
  [[nodiscard]] bool is_spared(std::uint64_t version, const Demand& demand) const;
  [[nodiscard]] bool may_be_met_later(const Demand& demand,
                                      const std::vector<std::uint64_t>& versions) const;

  const std::filesystem::path store_;
  const StoreLimits limits_;
  const std::function<Space()> space_;
  Eviction& rule_;
  ImageTable& images_;
  DeltaTable& deltas_;
  PatchTable& patches_;
  EarlyImages* early_ = nullptr;
  FindRoom find_room_;
  // One makes room at a time: what another is freeing is neither free nor counted.
  RankedMutex demand_mutex_{LockRank::evictor, "Evictor::demand_mutex_"};
  std::atomic<std::uint64_t> going_bytes_ = 0;  // of the version that is being removed
};

}  // namespace weightfs
