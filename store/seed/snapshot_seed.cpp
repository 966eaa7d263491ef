#include "store/seed/snapshot_seed.hpp"

#include <utility>

namespace weightfs {

SnapshotSeed::SnapshotSeed(std::shared_ptr<const SeedDirectory> directory, const Layout& layout)
    : directory_(std::move(directory)), wrong_(layout.tensors().size()) {
  places_.reserve(layout.tensors().size());
  for (const LayoutTensor& tensor : layout.tensors()) places_.push_back(directory_->find(tensor));
}

std::span<const SeedDirectory::Place> SnapshotSeed::places(std::uint32_t tensor) const {
  if (wrong_[tensor] >= kWrongMax) return {};
  return places_[tensor];
}

void SnapshotSeed::note_wrong(std::uint32_t tensor) noexcept {
  std::uint8_t count = wrong_[tensor];
  while (count < kWrongMax && !wrong_[tensor].compare_exchange_weak(count, count + 1)) {
  }
}

}  // namespace weightfs
