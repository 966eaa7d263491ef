#include "store/ways/way_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/random.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

WayHop delta(std::uint64_t to) { return {step_to(to), false}; }
WayHop skip(std::uint64_t from, std::uint64_t to) { return {{from, to}, true}; }

using Hops = std::vector<WayHop>;

TEST(WayMap, WithoutAStartThereIsNoWay) {
  WayMap map;
  map.set_skip({1, 9}, {});
  EXPECT_FALSE(map.find(9));
}

TEST(WayMap, AVersionThatIsHereIsItsOwnWay) {
  WayMap map;
  map.set_start(9, {});
  map.set_start(8, {});
  const auto way = map.find(9);
  ASSERT_TRUE(way);
  EXPECT_EQ(way->start, 9u);
  EXPECT_TRUE(way->hops.empty());
}

TEST(WayMap, DeltasLeadFromTheNearestStart) {
  WayMap map;
  map.guess_deltas({1000, 3});
  map.set_start(3, {});
  map.set_start(6, {});
  const auto way = map.find(8);
  ASSERT_TRUE(way);
  EXPECT_EQ(way->start, 6u);
  EXPECT_EQ(way->hops, (Hops{delta(7), delta(8)}));
}

TEST(WayMap, ASkipIsTakenIfItIsCheaperThanTheDeltasUnderIt) {
  WayMap map;
  map.guess_deltas({1000, 3});
  map.set_start(8, {});
  map.set_skip({8, 16}, {8 * 1000 + 20 * kRequestBytes, 4});
  EXPECT_EQ(map.find(18)->hops, (Hops{skip(8, 16), delta(17), delta(18)}));
  map.set_skip({8, 16}, {8 * 1000 + 20 * kRequestBytes + 1, 4});
  EXPECT_EQ(map.find(18)->hops.size(), 10u);
}

TEST(WayMap, RequestsCountBesideBytes) {
  WayMap map;
  map.guess_deltas({0, 3});
  map.set_start(1, {});
  map.set_skip({1, 5}, {8 * kRequestBytes, 3});
  EXPECT_EQ(map.find(5)->hops, (Hops{skip(1, 5)})) << "11 instead of 12";
}

TEST(WayMap, ASnapshotIsTakenWhereItIsCheaperThanCatchingUp) {
  WayMap map;
  map.guess_deltas({1 << 20, 3});
  map.set_start(1, {});
  map.set_start(90, {40 << 20, 12});
  EXPECT_EQ(map.find(92)->start, 90u);
  EXPECT_EQ(map.find(30)->start, 1u) << "it lies behind";
  map.set_skip({1, 80}, {10 << 20, 4});
  EXPECT_EQ(map.find(92)->start, 1u);
}

TEST(WayMap, OfEqualWaysThatWithFewerHopsIsTaken) {
  WayMap map;
  map.guess_deltas({100, 0});
  map.set_start(1, {});
  map.set_skip({1, 4}, {300, 0});
  EXPECT_EQ(map.find(4)->hops, (Hops{skip(1, 4)}));
}

TEST(WayMap, ADeltaThatIsNotThereEndsAWay) {
  WayMap map;
  map.set_start(1, {});
  map.set_delta(5, std::nullopt);
  EXPECT_FALSE(map.find(8));
  EXPECT_FALSE(map.reaches_back(8, 4));
  EXPECT_TRUE(map.reaches_back(8, 5));
  map.set_skip({3, 6}, {});
  EXPECT_TRUE(map.reaches_back(8, 1));
  EXPECT_EQ(map.find(8)->hops, (Hops{delta(2), delta(3), skip(3, 6), delta(7), delta(8)}));
  map.remove_skip({3, 6});
  EXPECT_FALSE(map.find(8));
}

TEST(WayMap, TheEndsOfAllWaysAreWholeWays) {
  WayMap map;
  map.set_start(2, {500, 0});
  for (std::uint64_t to = 2; to <= 8; to++) map.set_delta(to, WayCost{100, 0});
  map.set_delta(7, std::nullopt);
  map.set_skip({3, 6}, {300, 0});
  const std::vector<WayEnd> ends = map.find_all(8);
  EXPECT_EQ(ends[0].by, WayEnd::By::nothing) << "the start lies behind it";
  EXPECT_EQ(ends[1].by, WayEnd::By::start);
  EXPECT_EQ(ends[2].by, WayEnd::By::delta);
  EXPECT_EQ(ends[5].by, WayEnd::By::skip) << "as cheap as three deltas, and fewer hops";
  EXPECT_EQ(ends[5].from, 3u);
  EXPECT_EQ(ends[5].price, 900u);
  EXPECT_EQ(ends[6].by, WayEnd::By::nothing);
  EXPECT_EQ(ends[7].by, WayEnd::By::nothing);
}

TEST(WayMap, WhatABucketSaysOfSizesCannotOverflow) {
  WayMap map;
  map.guess_deltas({~std::uint64_t{0}, ~std::uint64_t{0}});
  map.set_start(1, {});
  map.set_skip({1, 40}, {~std::uint64_t{0}, 1});
  EXPECT_EQ(map.find(41)->hops, (Hops{skip(1, 40), delta(41)}));
}

/// The price of the cheapest way, by trying all of them in order of versions.
std::optional<std::uint64_t> cheapest(std::uint64_t wanted,
                                      const std::map<std::uint64_t, WayCost>& starts,
                                      const std::map<VersionPair, WayCost>& edges) {
  std::map<std::uint64_t, std::uint64_t> price;
  for (std::uint64_t version = 1; version <= wanted; version++) {
    const auto offer = [&](std::uint64_t other) {
      const auto [place, is_new] = price.emplace(version, other);
      if (!is_new) place->second = std::min(place->second, other);
    };
    if (starts.contains(version)) offer(starts.at(version).price());
    for (const auto& [versions, cost] : edges) {
      if (versions.to == version && price.contains(versions.from)) {
        offer(price.at(versions.from) + cost.price());
      }
    }
  }
  return price.contains(wanted) ? std::optional(price.at(wanted)) : std::nullopt;
}

TEST(WayMap, FindsTheCheapestOfRandomMaps) {
  test::Random rng = test::make_rng();
  for (int round = 0; round < 500; round++) {
    const std::uint64_t wanted = 2 + rng() % 20;
    WayMap map;
    std::map<std::uint64_t, WayCost> starts;
    std::map<VersionPair, WayCost> edges;
    const auto cost = [&] { return WayCost{rng() % (4 * kRequestBytes), rng() % 4}; };
    for (std::uint64_t version = 1; version <= wanted; version++) {
      if (rng() % 6 == 0) map.set_start(version, starts[version] = cost());
      if (version == 1) continue;
      if (rng() % 8 == 0) {
        map.set_delta(version, std::nullopt);
      } else {
        map.set_delta(version, edges[step_to(version)] = cost());
      }
      for (std::uint64_t from = 1; from + 2 <= version; from++) {
        if (rng() % 10 == 0) map.set_skip({from, version}, edges[{from, version}] = cost());
      }
    }
    const std::vector<WayEnd> ends = map.find_all(wanted);
    for (std::uint64_t version = 1; version <= wanted; version++) {
      const auto price = cheapest(version, starts, edges);
      const WayEnd& end = ends[version - 1];
      ASSERT_EQ(end.by != WayEnd::By::nothing, price.has_value()) << "round " << round;
      if (!price) continue;
      ASSERT_EQ(end.price, *price) << "round " << round << ", version " << version;
    }
    const auto expected = cheapest(wanted, starts, edges);
    const auto way = map.find(wanted);
    ASSERT_EQ(way.has_value(), expected.has_value()) << "round " << round;
    if (!way) continue;
    std::uint64_t price = starts.at(way->start).price(), at = way->start;
    for (const WayHop& hop : way->hops) {
      EXPECT_EQ(hop.versions.from, at);
      price += edges.at(hop.versions).price();
      at = hop.versions.to;
    }
    EXPECT_EQ(at, wanted);
    EXPECT_EQ(price, *expected) << "round " << round;
  }
}

}  // namespace
}  // namespace weightfs
