// PatchedHost: a host whose store has the patches of a history, and the plain copies to compare
// with; shared by the tests of what a history gives.
//
// Threads: one test's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/patches/patch_records.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {

class PatchedHost {
 public:
  /// `space`: of the store's file system; empty: what it has.
  explicit PatchedHost(std::function<Space()> space = {})
      : builder_(), host_(builder_.open(), directory_ / "store", {1u << 30, 0}, std::move(space)) {}

  /// Publishes a version, brings it here, and takes the patches that lead to it.
  std::uint64_t add(const Tree& tree) {
    const std::uint64_t version = builder_.add(tree);
    bring(version);
    if (version > 1) take(version - 1, version);
    return version;
  }
  void bring(std::uint64_t version) { materialize(store(), history(), version, {}, {}); }
  void take(std::uint64_t from, std::uint64_t to) {
    const Base before = base_of(store(), history(), from, {});
    const Base after = base_of(store(), history(), to, {});
    const auto ends = span_between(before, after);
    if (!ends) return;
    PatchTable& table = store().patches();
    table.install(*ends, take_patches(table, *ends, before, after, {}));
  }
  void keep_only(std::uint64_t version) {
    for (const std::uint64_t other : store().images().complete_versions()) {
      if (other == version) continue;
      ASSERT_TRUE(store().evictor().evict(other)) << other;
    }
  }
  /// From now on whatever asks the bucket fails.
  void lose_bucket() { builder_.bucket()->fail_key("", ErrorCode::unavailable); }
  /// All deltas of the bucket are gone.
  void lose_packs() {
    for (std::uint64_t version = 2; version <= builder_.newest(); version++) {
      builder_.bucket()->remove(builder_.key("packs/" + std::to_string(version) + "/"), {});
    }
  }
  /// Flips a bit of the first patch of a span.
  void damage(const PatchSpan& span) {
    std::string key, value;
    store().db().read_range(ColumnFamily::patches, patch_key(span, {}),
                            key_after(span_key(span.level, span.last)),
                            [&](std::string_view found, std::string_view bytes) {
                              key = found;
                              value = bytes;
                              return false;
                            });
    ASSERT_FALSE(key.empty());
    value.back() = static_cast<char>(value.back() ^ 1);
    store().db().write({{ColumnFamily::patches, key, value}});
  }

  RepositoryBuilder& builder() { return builder_; }
  Host& host() { return host_; }
  Store& store() { return *host_.store; }
  History& history() { return host_.history; }
  Tree tree(std::uint64_t version) { return builder_.tree(version); }

 private:
  TempDir directory_;
  RepositoryBuilder builder_;
  Host host_;
};

}  // namespace weightfs::test
