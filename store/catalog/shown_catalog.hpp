// Shown catalog: the catalog that everybody on this host sees, and how the next one takes its
// place.
//
// What the store has completed can be opened by its number at once.  `latest` moves last, when the
// listeners have prepared its new version.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/catalog/catalog_builder.hpp"
#include "store/catalog/catalog_listeners.hpp"
#include "store/catalog/follow.hpp"
#include "store/local/eviction.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

class ShownCatalog {
 public:
  /// Keeps the references.  Shows nothing yet.  `with_absent`, `only`: as CatalogBuilder has them.
  /// `swapped`: called whenever another catalog is shown, also while locks are held: must be quick
  /// and call nothing but get() and latest().
  ShownCatalog(Store& store, History& history, Follow follow, bool with_absent,
               std::vector<std::string> only, std::function<void()> swapped);

  [[nodiscard]] CatalogBuilder& builder() noexcept { return builder_; }
  [[nodiscard]] CatalogListeners& listeners() noexcept { return listeners_; }

  [[nodiscard]] std::shared_ptr<const Catalog> get() const;
  [[nodiscard]] std::uint64_t latest() const { return get()->latest; }

  /// Shows what the store's records say now.  `bucket`: whatever the records lack is fetched first,
  /// so that showing what the store has never waits for it; nullptr: that is left out.
  void show(const Context* bucket);

  /// Shows that versions are gone, or on their way.  For who holds the store's locks, while room is
  /// made: then nothing can be prepared, so `latest` stays, and whoever completed its next version
  /// is about to show it.
  void show_room_made();

 private:
  std::shared_ptr<const CatalogVersion> swap(std::uint64_t prepared);

  Store& store_;
  const std::function<void()> swapped_;
  CatalogListeners listeners_;
  CatalogBuilder builder_;

  // Held while a catalog is made and shown.
  RankedMutex making_{LockRank::sync_catalog, "ShownCatalog::making_"};
  Eviction::Reservation reserved_;  // of `latest`; guarded by making_

  mutable RankedMutex mutex_{LockRank::leaf, "ShownCatalog::mutex_"};  // guards what follows
  std::shared_ptr<const Catalog> catalog_ = std::make_shared<const Catalog>();
};

}  // namespace weightfs
