#include "store/local/timing_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string_view>

#include "store/base/error.hpp"
#include "store/database/record_keys.hpp"
#include "store/local/store.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;
using test::code_of;

class TimingTableTest : public testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Store> open() const {
    return Store::open(path_, "0123456789abcdef0123456789abcdef", "file:///bucket",
                       {std::nullopt, 0});
  }
  static VersionTiming brought(std::uint64_t version) {
    return {.version = version, .seen_ns = 5, .base = 1, .build = milliseconds(version)};
  }
  static HandOverTiming handed_over(std::uint64_t version) {
    return {.version = version, .name = "a", .commit = milliseconds(version)};
  }

  test::TempDir parent_;
  const std::filesystem::path path_ = parent_ / "store";
};

TEST_F(TimingTableTest, RemembersWhenTheStoreIsOpenedAgain) {
  TimingRecord expected{.version = 3, .brought = brought(3), .handed_over = handed_over(3)};
  expected.brought->sync = milliseconds(9);
  {
    const auto store = open();
    EXPECT_EQ(store->timings().find(3), std::nullopt);
    store->timings().put(handed_over(3));
    store->timings().put(brought(3));
    store->timings().set_synced(3, milliseconds(9));
    store->timings().put(brought(5));
    EXPECT_EQ(store->timings().find(3), expected);
  }
  const auto store = open();
  EXPECT_EQ(store->timings().find(3), expected);
  EXPECT_EQ(store->timings().list().size(), 2U);
  EXPECT_EQ(store->timings().find_last_hand_over(), expected);
}

TEST_F(TimingTableTest, AddsUpWhatThisProcessHasPut) {
  {
    const auto store = open();
    VersionTiming timing = brought(3);
    timing.work.written_bytes = 10;
    timing.unseen = milliseconds(2);
    store->timings().put(timing);
    store->timings().put(brought(4));
    store->timings().set_synced(3, milliseconds(9));
    store->timings().set_synced(77, milliseconds(9));  // it did not come
    HandOverTiming handed = handed_over(5);
    handed.uploaded_bytes = 7;
    store->timings().put(handed);
    const TimingTotals totals = store->timings().totals();
    std::map<std::string_view, std::uint64_t> counts;
    for (const NamedHistogram& one : totals.version_phases()) counts[one.name] = one.times.count();
    const std::map<std::string_view, std::uint64_t> expected{
        {"unseen", 1}, {"wait", 2}, {"plan", 2},   {"room", 2},
        {"build", 2},  {"flip", 2}, {"record", 2}, {"sync", 1}};
    EXPECT_EQ(counts, expected);
    EXPECT_DOUBLE_EQ(totals.version_phases()[4].times.sum_seconds(), 0.007);  // build
    EXPECT_EQ(totals.versions().count(), 2U);
    EXPECT_DOUBLE_EQ(totals.hand_over_phases()[4].times.sum_seconds(), 0.005);  // commit
    EXPECT_EQ(totals.written_bytes(), 10U);
    EXPECT_EQ(totals.uploaded_bytes(), 7U);
  }
  EXPECT_EQ(open()->timings().totals().versions().count(), 0U);
}

TEST_F(TimingTableTest, ForgetsTheLowestVersions) {
  {
    const auto store = open();
    for (std::uint64_t version = 1; version <= kTimingsMax + 10; version++) {
      store->timings().put(brought(version));
    }
    EXPECT_EQ(store->timings().list().size(), kTimingsMax);
  }
  const auto store = open();
  const std::vector<TimingRecord> kept = store->timings().list();
  ASSERT_EQ(kept.size(), kTimingsMax);
  EXPECT_EQ(kept.front().version, 11U);
  EXPECT_EQ(kept.back().version, kTimingsMax + 10);
}

TEST_F(TimingTableTest, KnowsNothingOfSyncingWhatDidNotCome) {
  const auto store = open();
  store->timings().set_synced(3, milliseconds(9));
  EXPECT_EQ(store->timings().find(3), std::nullopt);
  store->timings().put(handed_over(4));
  store->timings().set_synced(4, milliseconds(9));
  EXPECT_EQ(store->timings().find(4)->brought, std::nullopt);
}

TEST_F(TimingTableTest, ARecordThatCannotBeReadIsLeftOut) {
  {
    const auto store = open();
    store->timings().put(brought(1));
    store->db().write({{ColumnFamily::store, "timing/" + version_key(2), "{\"version\": 2}"},
                       {ColumnFamily::store, "timing/" + version_key(3), "what?"},
                       {ColumnFamily::store, "timing/x", to_json_text({.version = 9})}});
  }
  const auto store = open();
  ASSERT_EQ(store->timings().list().size(), 1U);
  EXPECT_EQ(store->timings().list().front().brought, brought(1));
}

/// `log --timing` reads the records of a store that a daemon has open.
TEST_F(TimingTableTest, IsReadWhileTheStoreIsOpen) {
  const auto store = open();
  store->timings().put(brought(1));
  EXPECT_EQ(read_timings(path_).size(), 1U);
  store->timings().put(brought(2));
  EXPECT_EQ(read_timings(path_), store->timings().list());
  store->timings().put(brought(3));
  EXPECT_EQ(read_timings(path_).size(), 3U);
}

TEST_F(TimingTableTest, ThereMustBeAStoreToRead) {
  EXPECT_EQ(code_of([&] { read_timings(parent_ / "none"); }), ErrorCode::not_found);
}

/// A full disk keeps no version from being shown.
TEST_F(TimingTableTest, IsKeptInMemoryWhereThereIsNoRoomForTheRecord) {
  static_cast<void>(open());
  const auto store = Store::open(path_, "0123456789abcdef0123456789abcdef", "file:///bucket",
                                 {std::nullopt, 0}, [] {
                                   return Space{0, 1u << 30};
                                 });
  store->timings().put(brought(1));
  EXPECT_EQ(store->timings().find(1)->brought, brought(1));
  EXPECT_TRUE(read_timings(path_).empty());
}

}  // namespace
}  // namespace weightfs
