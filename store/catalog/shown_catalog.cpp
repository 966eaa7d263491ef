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
  if (const auto next = swap(listeners_.prepares())) {
    listeners_.prepare(*next);
    swap(false);
  }
  listeners_.changed();
}

void ShownCatalog::show_room_made() {
  swap(listeners_.prepares());
  listeners_.changed();
}

/// Makes a catalog and shows it, under one lock, so that none is replaced by an older one.
/// `holds_latest`: `latest` does not move to another complete version (a partial one cannot be
/// prepared for yet, so it may move there).
/// Returns: the version to which `latest` did not move; nullptr if everything is shown.
std::shared_ptr<const CatalogVersion> ShownCatalog::swap(bool holds_latest) {
  const std::lock_guard making(making_);
  std::shared_ptr<const Catalog> made = builder_.make();
  std::shared_ptr<const CatalogVersion> next;
  if (holds_latest && made->latest != latest()) {
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
