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

#include "store/materialize/materialize.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/store_patches.hpp"

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
  void take(std::uint64_t from, std::uint64_t to) { take_between(store(), history(), from, to); }
  void keep_only(std::uint64_t version) { keep_only_images(store(), version); }
  /// From now on whatever asks the bucket fails.
  void lose_bucket() { builder_.bucket()->fail_key("", ErrorCode::unavailable); }
  /// All deltas of the bucket are gone.
  void lose_packs() {
    for (std::uint64_t version = 2; version <= builder_.newest(); version++) {
      builder_.bucket()->remove(builder_.key("packs/" + std::to_string(version) + "/"), {});
    }
  }
  void damage(const PatchSpan& span) { damage_span(store(), span); }

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
