// OldVersion: the chunks of a version that exists, for a rollback or a skip delta: made by the
// cheapest plan, and not written as files.
//
//     parent's images + patches back to it       from the parent's chunk, which the coder has read
//                                                anyway: wherever these lead to it, unless its own
//                                                images are here
//     other images, other patches, packs         ChunkMaker
//
// Every chunk is compared with the hash that its manifest vouches for.
//
// Memory: that of a ChunkMaker for each reader.
// Threads: as NewChunks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/coding/new_chunks.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

class OldVersion final : public NewChunks {
 public:
  /// Plans the way to `version`, and fetches the packs that are needed.  Keeps the references.
  /// `parent`: against which the chunks will be coded; its images are reserved by the caller.
  /// `claim`: of the images that are read.
  /// Throws PatchDamaged, BaseDamaged; Error: as make_plan().
  OldVersion(Store& store, History& history, const std::shared_ptr<const Version>& version,
             const Base& parent, kernels::SharedCoder coder, const Context& context,
             const Progress& progress, Eviction::Claim claim = Eviction::Claim::stays);

  [[nodiscard]] const Layout& layout() const override { return *plan_.layout; }
  [[nodiscard]] std::span<const std::uint64_t> hashes() const override { return plan_.hashes; }
  /// Readers throw PatchDamaged, BaseDamaged, ObjectError; Error: unavailable, cancelled, io.
  [[nodiscard]] std::unique_ptr<Reader> open() const override;

  /// Chunks that were made of the parent's and of patches; of anything else.
  [[nodiscard]] std::uint64_t patched_chunks() const noexcept { return patched_chunks_; }
  [[nodiscard]] std::uint64_t other_chunks() const noexcept { return other_chunks_; }

 private:
  class PlanReader;

  void fetch(Store& store, History& history, const std::shared_ptr<const Version>& version,
             const Base& parent, Eviction::Claim claim, const Progress& progress);
  [[nodiscard]] std::vector<Base> find_bases(Store& store, History& history, const Version& version,
                                             const Base& parent) const;

  Repository& repository_;
  const kernels::SharedCoder coder_;
  const Context context_;
  Plan plan_;
  std::optional<Eviction::Reservation> base_;  // of plan_
  bool is_of_parent_ = false;                  // plan_ is the parent's images and patches
  std::optional<PackSpool> spool_;
  mutable std::atomic<std::uint64_t> patched_chunks_{0}, other_chunks_{0};
};

}  // namespace weightfs
