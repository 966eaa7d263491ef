// ShownCatalog: `latest` moves last, and never while nobody may prepare for it.
#include "store/catalog/shown_catalog.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "store/materialize/materialize.hpp"
#include "tests/store/sync/sync_fixture.hpp"

namespace weightfs::test {
namespace {

class ShownCatalogTest : public SyncTest {
 protected:
  void bring(unsigned version) {
    publish(version);
    host_.store->manifests().put_newest({version, host_.history.get(version, {})->manifest_sha256});
    materialize(*host_.store, host_.history, version, {}, {});
  }

  Host host_{bucket_, dir_ / "host"};
  int swaps_ = 0;
  ShownCatalog shown_{*host_.store, host_.history, {}, false, {}, [this] { swaps_++; }};
};

TEST_F(ShownCatalogTest, ShowsNothingBeforeItIsAsked) {
  bring(1);
  EXPECT_EQ(shown_.latest(), 0u);
  EXPECT_TRUE(shown_.get()->versions.empty());
  shown_.show(nullptr);
  EXPECT_EQ(shown_.latest(), 1u);
  EXPECT_EQ(swaps_, 1);
}

TEST_F(ShownCatalogTest, AVersionOpensByItsNumberBeforeLatestMovesToIt) {
  bring(1);
  shown_.show(nullptr);
  std::vector<std::uint64_t> prepared;
  const auto listening = shown_.listeners().add({.prepare = [&](const CatalogVersion& version) {
    prepared.push_back(version.number);
    EXPECT_EQ(shown_.latest(), version.number - 1);
    EXPECT_TRUE(shown_.get()->versions.contains(version.number));
  }});
  bring(2);
  shown_.show(nullptr);
  EXPECT_EQ(shown_.latest(), 2u);
  EXPECT_EQ(prepared, std::vector<std::uint64_t>{2});
}

TEST_F(ShownCatalogTest, LatestMovesToNoVersionThatNobodyHasPreparedFor) {
  bring(1);
  shown_.show(nullptr);
  std::vector<std::uint64_t> prepared;
  const auto listening = shown_.listeners().add({.prepare = [&](const CatalogVersion& version) {
    prepared.push_back(version.number);
    EXPECT_EQ(shown_.latest(), 1u);
    if (version.number == 2) bring(3);  // by another thread
  }});
  bring(2);
  shown_.show(nullptr);
  EXPECT_EQ(shown_.latest(), 3u);
  EXPECT_EQ(prepared, (std::vector<std::uint64_t>{2, 3}));
}

TEST_F(ShownCatalogTest, LatestStaysWhileRoomIsMade) {
  bring(1);
  shown_.show(nullptr);
  int prepared = 0;
  const auto listening =
      shown_.listeners().add({.prepare = [&](const CatalogVersion&) { prepared++; }});
  bring(2);
  shown_.show_room_made();
  EXPECT_EQ(shown_.latest(), 1u);
  EXPECT_TRUE(shown_.get()->versions.contains(2));
  EXPECT_EQ(prepared, 0);
  shown_.show(nullptr);
  EXPECT_EQ(shown_.latest(), 2u);
  EXPECT_EQ(prepared, 1);
}

TEST_F(ShownCatalogTest, TheShownLatestIsKeptFromEviction) {
  bring(1);
  shown_.show(nullptr);
  EXPECT_FALSE(host_.store->evictor().evict(1));
  bring(2);
  shown_.show(nullptr);
  EXPECT_FALSE(host_.store->evictor().evict(2));
  EXPECT_TRUE(host_.store->evictor().evict(1));
}

}  // namespace
}  // namespace weightfs::test
