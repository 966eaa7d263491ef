#include "store/catalog/shown_catalog.hpp"

#include <mutex>
#include <optional>
#include <utility>

namespace weightfs {

ShownCatalog::ShownCatalog(Store& store, History& history, Follow follow, bool with_absent,
                           std::vector<std::string> only, std::function<void()> swapped)
    : store_(store),
      swapped_(std::move(swapped)),
      builder_(store, history, std::move(follow), with_absent, std::move(only)) {}

std::shared_ptr<const Catalog> ShownCatalog::get() const {
  const std::lock_guard lock(mutex_);
  return catalog_;
}

void ShownCatalog::show(const Context* bucket) {
  if (bucket != nullptr) builder_.fetch(*bucket);
  std::uint64_t prepared = 0;
  while (const auto next = swap(prepared)) {
    listeners_.prepare(*next);
    prepared = next->number;
  }
  listeners_.changed();
}

void ShownCatalog::show_room_made() {
  swap(0);
  listeners_.changed();
}

/// Makes a catalog and shows it, under one lock, so that none is replaced by an older one.
/// `prepared`: where somebody prepares for what is shown, `latest` moves to no other complete
/// version (a partial one cannot be prepared for yet, so it may move there).
/// Returns: the version to which `latest` did not move; nullptr if everything is shown.
std::shared_ptr<const CatalogVersion> ShownCatalog::swap(std::uint64_t prepared) {
  const std::lock_guard making(making_);
  std::shared_ptr<const Catalog> made = builder_.make();
  std::shared_ptr<const CatalogVersion> next;
  if (listeners_.prepares() && made->latest != latest() && made->latest != prepared) {
    const auto found = made->versions.find(made->latest);
    if (found != made->versions.end()) next = found->second;
  }
  if (next) {
    auto before = std::make_shared<Catalog>(*made);
    before->latest = latest();
    made = std::move(before);
  }
  // The builder has reserved it; this reservation lasts until the next catalog is shown.
  std::optional<Eviction::Reservation> reserved;
  if (made->latest > 0) {
    reserved = store_.eviction().try_reserve(made->latest, Eviction::Claim::stays);
  }
  {
    const std::lock_guard lock(mutex_);
    catalog_ = std::move(made);
  }
  if (reserved) reserved_ = std::move(*reserved);
  if (swapped_) swapped_();
  return next;
}

}  // namespace weightfs
