#include "fs/cache/warmer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>

#include "tests/support/eventually.hpp"
#include "tests/support/evict.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::eventually;
using test::is_in_memory;
using test::TempDir;
using test::write_text;
using WarmingNow = CacheState::Warming;

constexpr std::uint64_t kWarmBytes = 20u << 20;
constexpr std::chrono::hours kNoLook{1};
constexpr std::chrono::minutes kAMinute{1};

std::optional<MemoryRoom> room_of_bytes(std::uint64_t bytes) {
  return MemoryRoom{bytes, bytes, "/test"};
}

/// Two versions on a disk, and which of them is shown.
class WarmerTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::uint64_t version : {1u, 2u})
      write_text(file_of(version), std::string(kWarmBytes, 'x'));
    if (is_in_memory(dir_.path())) GTEST_SKIP() << "$TMPDIR keeps what it has in memory";
    for (const std::uint64_t version : {1u, 2u}) ASSERT_TRUE(drop(version));
  }

  [[nodiscard]] WarmTarget target(std::uint64_t version) const {
    return {version, {{file_of(version), kWarmBytes}}};
  }
  [[nodiscard]] std::filesystem::path file_of(std::uint64_t version) const {
    return dir_.path() / std::to_string(version) / "model.safetensors";
  }
  [[nodiscard]] Residency residency(std::uint64_t version) const {
    return residency_of(target(version).files);
  }
  bool drop(std::uint64_t version) const { return test::evict(file_of(version)); }
  std::function<WarmTarget()> shown() {
    return [this] { return shown_ == 0 ? WarmTarget{} : target(shown_); };
  }

  TempDir dir_;
  std::atomic<std::uint64_t> shown_{1};
};

WarmerOptions with_room(std::chrono::milliseconds look = kNoLook) {
  return {
      .warm = Warm::automatic, .find_room = [] { return room_of_bytes(1u << 30); }, .look = look};
}

TEST_F(WarmerTest, ReadsInWhatIsShownWhenItStarts) {
  Warmer warmer(with_room());
  const Warmer::Run run(warmer, shown());
  EXPECT_TRUE(eventually([&] { return residency(1).is_whole(); }));
  EXPECT_TRUE(eventually([&] { return warmer.state().warming == WarmingNow::idle; }));
  const CacheState state = warmer.state();
  EXPECT_EQ(state.version, 1u);
  EXPECT_EQ(state.residency.percent(), 100u);
  EXPECT_EQ(state.residency.size_bytes, kWarmBytes);
  EXPECT_TRUE(state.fits());
  EXPECT_EQ(residency(2).cached_bytes, 0u);
}

TEST_F(WarmerTest, FollowsWhatIsShown) {
  shown_ = 0;
  Warmer warmer(with_room());
  const Warmer::Run run(warmer, shown());
  EXPECT_EQ(warmer.state().version, 0u);
  shown_ = 2;
  warmer.notify();
  EXPECT_TRUE(eventually([&] { return residency(2).is_whole(); }));
  EXPECT_EQ(residency(1).cached_bytes, 0u);
}

// A host without memory for a moment: the daemon ended.
TEST_F(WarmerTest, WhatFindingTheTargetThrowsDoesNotEndIt) {
  std::atomic<int> failures = 0;
  Warmer warmer(with_room());
  const Warmer::Run run(warmer, [&] {
    if (failures++ < 2) throw std::bad_alloc();
    return target(1);
  });
  ASSERT_TRUE(eventually([&] { return failures == 1; }));
  EXPECT_TRUE(eventually([&] {
    warmer.notify();
    return residency(1).is_whole();
  }));
}

TEST_F(WarmerTest, PrepareReturnsWhenTheVersionIsThere) {
  drop(1);
  Warmer warmer(with_room());
  const Warmer::Run run(warmer, shown());
  warmer.prepare(target(2), kAMinute);
  EXPECT_EQ(residency(2).percent(), 100u);
  EXPECT_EQ(warmer.state().version, 1u) << "not shown yet";
}

TEST_F(WarmerTest, PrepareDoesNotWaitForWhatWillNotBeThere) {
  Warmer warmer({.warm = Warm::automatic,
                 .find_room = [] { return room_of_bytes(kWarmBytes - 1); },
                 .look = kNoLook});
  const Warmer::Run run(warmer, shown());
  const auto began = Clock::now();
  warmer.prepare(target(2), kAMinute);
  EXPECT_LT(Clock::now() - began, kAMinute);
  EXPECT_EQ(residency(2).cached_bytes, 0u);
}

TEST_F(WarmerTest, ReadsNothingThatDoesNotFit) {
  Warmer warmer({.warm = Warm::automatic,
                 .find_room = [] { return room_of_bytes(kWarmBytes - 1); },
                 .look = kNoLook});
  const Warmer::Run run(warmer, shown());
  EXPECT_TRUE(eventually([&] { return warmer.state().warming == WarmingNow::no_room; }));
  EXPECT_FALSE(warmer.state().fits());
  EXPECT_EQ(residency(1).cached_bytes, 0u);
}

TEST_F(WarmerTest, ReadsNothingWhereTheRoomIsUnknown) {
  Warmer warmer(
      {.warm = Warm::automatic, .find_room = [] { return std::nullopt; }, .look = kNoLook});
  const Warmer::Run run(warmer, shown());
  EXPECT_TRUE(eventually([&] { return warmer.state().warming == WarmingNow::no_room; }));
  EXPECT_EQ(residency(1).cached_bytes, 0u);
}

TEST_F(WarmerTest, ReadsNothingIfItIsOff) {
  std::atomic<int> looks{0};
  Warmer warmer(
      {.warm = Warm::off, .find_room = [] { return room_of_bytes(1u << 30); }, .look = kNoLook});
  const Warmer::Run run(warmer, [&] { return looks++, target(1); });
  warmer.prepare(target(2), kAMinute);
  for (int turn = 1; turn <= 4; turn++) {  // of the thread: one that reads would do so in between
    warmer.notify();
    ASSERT_TRUE(eventually([&] { return looks >= turn; }));
  }
  EXPECT_EQ(warmer.state().warming, WarmingNow::off);
  EXPECT_EQ(residency(1).cached_bytes, 0u);
  EXPECT_EQ(residency(2).cached_bytes, 0u);
}

TEST_F(WarmerTest, WithoutAThreadItOnlyTells) {
  Warmer warmer(with_room());
  const Warmer::Run run(warmer, shown(), false);
  warmer.prepare(target(2), kAMinute);
  EXPECT_EQ(warmer.state().version, 1u);
  EXPECT_EQ(warmer.state().residency.percent(), 0u);
  EXPECT_EQ(residency(2).cached_bytes, 0u);
}

TEST_F(WarmerTest, ReadsAgainWhatWasDropped) {
  Warmer warmer(with_room(std::chrono::milliseconds(1)));
  const Warmer::Run run(warmer, shown());
  ASSERT_TRUE(eventually([&] { return residency(1).is_whole(); }));
  ASSERT_TRUE(drop(1));
  EXPECT_TRUE(eventually([&] { return residency(1).is_whole(); }));
}

/// A version that is shown while another one is read: the reading stops at once, here while the
/// room is asked for before the first byte.
TEST_F(WarmerTest, LeavesAVersionThatIsNotShownAnyMore) {
  std::atomic<Warmer*> asks{nullptr};
  Warmer warmer({.warm = Warm::automatic,
                 .find_room =
                     [&] {
                       if (shown_.exchange(2) == 1) asks.load()->notify();
                       return room_of_bytes(1u << 30);
                     },
                 .look = kNoLook});
  asks = &warmer;
  const Warmer::Run run(warmer, shown());
  EXPECT_TRUE(eventually([&] { return residency(2).is_whole(); }));
  EXPECT_LT(residency(1).cached_bytes, kWarmBytes);
}

TEST_F(WarmerTest, TellsWhatItCannotRead) {
  std::filesystem::remove(file_of(1));
  write_text(file_of(1), std::string(kWarmBytes, 'x'));
  ASSERT_TRUE(drop(1));
  std::atomic<bool> is_gone{false};
  Warmer warmer({.warm = Warm::automatic,
                 .find_room =
                     [&] {
                       std::filesystem::resize_file(file_of(1), 10);
                       is_gone = true;
                       return room_of_bytes(1u << 30);
                     },
                 .look = kNoLook});
  const Warmer::Run run(warmer, shown());
  ASSERT_TRUE(eventually([&] { return is_gone.load(); }));
  EXPECT_TRUE(eventually([&] { return warmer.state().warming == WarmingNow::failed; }));
  EXPECT_NE(warmer.state().error.find(file_of(1).string()), std::string::npos);
}

TEST(WarmTarget, IsWhatIsShownAndTheFilesThatAreComplete) {
  Catalog catalog;
  EXPECT_EQ(warm_target(catalog).version, 0u);
  CatalogVersion version;
  version.number = 3;
  version.directory = "/images/3";
  version.entries = {{"", 0, true, 0, ImageState::complete},
                     {"a", 0, false, 1, ImageState::complete},
                     {"b", 0, false, 1, ImageState::partial},
                     {"c", 0, false, 0, ImageState::complete}};
  catalog.versions[3] = std::make_shared<const CatalogVersion>(version);
  EXPECT_EQ(warm_target(catalog).version, 0u) << "not `latest`";
  catalog.latest = 3;
  const WarmTarget target = warm_target(catalog);
  EXPECT_EQ(target.version, 3u);
  ASSERT_EQ(target.files.size(), 1u) << "what is not kept, and what has no bytes, are none";
  EXPECT_EQ(target.files[0].path, "/images/3/a");
  EXPECT_EQ(target.files[0].size_bytes, 1u);
}

}  // namespace
}  // namespace weightfs::fs
