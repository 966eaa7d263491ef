// LayoutCache: the most recently used layouts, in bounded memory.
//
// If a trainer writes its step into the header of a file, every version has a new layout that
// differs only in that text.  So layouts with equal tensor tables share one table: with 20,000
// tensors, one more layout takes only the bytes of its headers, not those of 20,000 records.
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

  /// nullptr if the layout is neither cached nor held elsewhere.
  std::shared_ptr<const Layout> find(const Sha256& id) { return layouts_.find(id); }

  /// Returns: the layout to use instead of this one; it is equal.
  std::shared_ptr<const Layout> put(const std::shared_ptr<const Layout>& layout);

  /// Whether it is held outside the cache.
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
