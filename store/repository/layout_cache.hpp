// LayoutCache: the layouts that were used last, in bounded memory.
//
// A trainer that writes its step into the header of a file makes a new layout of every version, and
// all that differs is the text.  So layouts whose tensor tables are equal share one table, and with
// 20,000 tensors one more of them takes the bytes of its heads, not those of 20,000 records.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "store/base/lru_cache.hpp"
#include "store/format/layout.hpp"

namespace weightfs {

class LayoutCache {
 public:
  explicit LayoutCache(std::size_t bytes_max) : layouts_(bytes_max) {}

  /// nullptr if it is not here, nor held by anybody.
  std::shared_ptr<const Layout> find(const Sha256& id) { return layouts_.find(id); }

  /// Returns: the layout to be used in the place of this one: equal to it.
  std::shared_ptr<const Layout> put(const std::shared_ptr<const Layout>& layout);

  /// Whether somebody else holds it.
  [[nodiscard]] bool is_held(const Sha256& id) const { return layouts_.is_held(id); }

  [[nodiscard]] std::size_t bytes() const noexcept { return layouts_.bytes(); }

 private:
  /// Counts a table once, with the first of its layouts.
  struct Cost {
    std::size_t enter(const Layout& layout);
    std::size_t leave(const Layout& layout);
    std::map<std::shared_ptr<const TensorTable>, std::size_t> tables;  // -> layouts that have it
  };

  LruCache<Sha256, Layout, Cost> layouts_;
};

}  // namespace weightfs
