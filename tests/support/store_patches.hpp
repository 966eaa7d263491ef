// Store patches: what tests do to the patches and images of a store by hand.
//
// Threads: one test's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "store/local/store.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/patches/patch_records.hpp"

namespace weightfs::test {

/// Takes the patches from one version that is here to another; none, if they cannot lead there.
inline void take_between(Store& store, History& history, std::uint64_t from, std::uint64_t to) {
  const Base before = base_of(store, history, from, {});
  const Base after = base_of(store, history, to, {});
  const auto ends = span_between(before, after);
  if (!ends) return;
  store.patches().install(*ends, take_patches(store.patches(), *ends, before, after, {}));
}

/// Evicts the images of all other versions.
inline void keep_only_images(Store& store, std::uint64_t version) {
  for (const std::uint64_t other : store.images().complete_versions()) {
    if (other == version) continue;
    ASSERT_TRUE(store.evictor().evict(other)) << other;
  }
}

/// Flips a bit of the first patch of a span.
inline void damage_span(Store& store, const PatchSpan& span) {
  std::string key, value;
  store.db().read_range(ColumnFamily::patches, patch_key(span, {}),
                        key_after(span_key(span.level, span.last)),
                        [&](std::string_view found, std::string_view bytes) {
                          key = found;
                          value = bytes;
                          return false;
                        });
  ASSERT_FALSE(key.empty());
  value.back() = static_cast<char>(value.back() ^ 1);
  store.db().write({{ColumnFamily::patches, key, value}});
}

}  // namespace weightfs::test
