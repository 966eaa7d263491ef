// Evictor: makes room in a store.  It knows the limits, what is counted, and in which order things
// go; whether a version may go is the rule of Eviction.
//
// What goes, until there is room: deltas that nobody reads, oldest first; then versions that are
// being filled, the first begun first; then complete versions, oldest first.  Versions that do not
// go because somebody uses them do not count against StoreLimits::store_bytes.  Nothing goes if all
// that may go would not be enough.
//
// Threads: all calls may run in parallel.
// Errors: the calls named evict_for... throw Error: no_space, saying how much is missing and which
// limit it was; corrupt, io.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "store/local/delta_table.hpp"
#include "store/local/eviction.hpp"
#include "store/local/image_table.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"

namespace weightfs {

class Evictor {
 public:
  /// Keeps the references.  `store`: its path, for messages.
  /// `space`: tells the space of the file system.
  Evictor(std::filesystem::path store, StoreLimits limits, std::function<Space()> space,
          Eviction& rule, ImageTable& images, DeltaTable& deltas);

  /// Makes room for a new version of `bytes`, within both limits.
  /// `version_bytes`: what the version has in the end, if that is more than `bytes`.
  void evict_for_images(std::uint64_t bytes, std::uint64_t version_bytes = 0);

  /// Makes room for a delta of `bytes`, within both limits.  Without StoreLimits::store_bytes there
  /// is more room than for images alone: three versions may fill that.
  void evict_for_delta(std::uint64_t bytes);

  /// Makes room for bytes that are no images, as those that trainers stage: only the limit of free
  /// space counts.  Cheap where there is room.
  void evict_for_free_bytes(std::uint64_t bytes);

  /// Evicts one complete version if the rule allows it.  Returns: whether it is gone.
  bool evict(std::uint64_t version);

 private:
  struct Demand;

  void evict_until_met(const Demand& demand);
  void check_worth(const Demand& demand, const std::vector<std::uint64_t>& versions) const;
  std::uint64_t remove_deltas(const Demand& demand, std::uint64_t image_bytes);
  bool evict_partial(std::uint64_t version);
  [[nodiscard]] std::uint64_t free_min(const Space& space) const;

  const std::filesystem::path store_;
  const StoreLimits limits_;
  const std::function<Space()> space_;
  Eviction& rule_;
  ImageTable& images_;
  DeltaTable& deltas_;
};

}  // namespace weightfs
