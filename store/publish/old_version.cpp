#include "store/publish/old_version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/dispatch/hash.hpp"
#include "store/base/error.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/patch_applier.hpp"
#include "store/materialize/patched_base.hpp"

namespace weightfs {

class OldVersion::PlanReader final : public Reader {
 public:
  explicit PlanReader(const OldVersion& of)
      : of_(of),
        maker_(of.plan_, *of.spool_, open_base_reader(of.plan_, of.repository_, of.context_),
               *of.coder_) {
    if (of.is_of_parent_) applier_.emplace(*of.plan_.base, nullptr);
  }

  void read(ChunkPlace place, std::span<const std::byte> old_chunk,
            std::span<std::byte> into) override {
    if (applier_ && old_chunk.size() == into.size()) return patch(place, old_chunk, into);
    const WantedChunk wanted{place.tensor, place.chunk, into};
    maker_.make({&wanted, 1});
    ++of_.other_chunks_;
  }

 private:
  /// The parent has the same tensors with the same numbers: its patches are of this chunk.
  void patch(ChunkPlace place, std::span<const std::byte> old_chunk, std::span<std::byte> into) {
    std::ranges::copy(old_chunk, into.begin());
    applier_->apply(place, into);
    const LayoutTensor& tensor = of_.layout().tensors()[place.tensor];
    if (kernels::hash_chunk(into) != of_.plan_.hashes[tensor.first_chunk + place.chunk]) {
      throw PatchDamaged(std::nullopt, fmt::format("patches of {} do not lead to version {}",
                                                   to_string(place), of_.plan_.version->number()));
    }
    ++of_.patched_chunks_;
  }

  const OldVersion& of_;
  ChunkMaker maker_;
  std::optional<PatchApplier> applier_;
};

OldVersion::OldVersion(Store& store, History& history,
                       const std::shared_ptr<const Version>& version, const Base& parent,
                       kernels::SharedCoder coder, const Context& context, const Progress& progress,
                       Eviction::Claim claim)
    : repository_(history.repository()), coder_(std::move(coder)), context_(context) {
  planning_again(history.skips(), [&] { fetch(store, history, version, parent, claim, progress); });
  is_of_parent_ = plan_.base && plan_.base->patched && plan_.steps.empty() &&
                  plan_.base->images().number() == parent.version->number() && !parent.patched;
}

void OldVersion::fetch(Store& store, History& history,
                       const std::shared_ptr<const Version>& version, const Base& parent,
                       Eviction::Claim claim, const Progress& progress) {
  spool_.reset();
  base_.reset();
  while (!base_) {
    context_.check("planning the way to the version");
    const std::vector<Base> bases = find_bases(store, history, *version, parent);
    plan_ = make_plan(history, version, bases, context_);
    base_ = reserve_base(store, plan_, claim, context_);
  }
  spool_.emplace(plan_, repository_, store.temporary_directory(), context_);
  spool_->fetch_all(0, progress);
}

/// What can be made of the parent's images comes first: these are read anyway.
std::vector<Base> OldVersion::find_bases(Store& store, History& history, const Version& version,
                                         const Base& parent) const {
  const std::uint64_t number = version.number();
  std::set<std::uint64_t> others;
  for (const std::uint64_t here : store.images().complete_versions()) {
    if (here != parent.version->number()) others.insert(here);
  }
  if (!others.contains(number)) {
    auto patched = find_sound_patched_base(store, history, number, others, context_);
    if (patched && patched->version->number() == number) return {std::move(*patched)};
  }
  std::vector<Base> bases = usable_bases(store, history, number + 1, {}, context_);
  auto patched = find_sound_patched_base(store, history, number, {}, context_);
  if (patched) bases.push_back(std::move(*patched));
  return bases;
}

std::unique_ptr<NewChunks::Reader> OldVersion::open() const {
  return std::make_unique<PlanReader>(*this);
}

}  // namespace weightfs
