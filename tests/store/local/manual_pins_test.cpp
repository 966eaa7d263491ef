#include "store/local/manual_pins.hpp"

#include <gtest/gtest.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using Pinned = std::map<std::uint64_t, std::int64_t>;

class ManualPinsTest : public testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Db> open() const {
    return Db::open(folder_ / "db", [this] { return free_bytes_; });
  }

  test::TempDir folder_;
  std::uint64_t free_bytes_ = 1u << 30;
};

TEST_F(ManualPinsTest, ThePinsOfAStoreSurviveARestart) {
  {
    const auto db = open();
    ManualPins pins(*db);
    EXPECT_EQ(pins.list(), Pinned{});
    pins.add(42, 1000);
    pins.add(7, 1001);
    pins.add(9, 1002);
    pins.add(42, 2000);
    EXPECT_TRUE(pins.remove(7));
    EXPECT_FALSE(pins.remove(7));
  }
  const auto db = open();
  const ManualPins pins(*db);
  EXPECT_EQ(pins.list(), (Pinned{{9, 1002}, {42, 1000}}));
  EXPECT_TRUE(pins.contains(42));
  EXPECT_FALSE(pins.contains(7));
}

TEST_F(ManualPinsTest, WhatCannotBeRecordedIsNotPinned) {
  const auto db = open();
  ManualPins pins(*db);
  pins.add(1, 1000);
  free_bytes_ = 0;
  EXPECT_EQ(test::code_of([&] { pins.add(2, 1000); }), ErrorCode::no_space);
  EXPECT_EQ(test::code_of([&] { pins.remove(1); }), ErrorCode::no_space);
  EXPECT_EQ(pins.list(), (Pinned{{1, 1000}}));
}

TEST_F(ManualPinsTest, ADamagedRecordCountsAsNone) {
  const auto db = open();
  db->write({{ColumnFamily::store, "pins", "seventeen bytes..."}});
  EXPECT_EQ(ManualPins(*db).list(), Pinned{});
}

TEST_F(ManualPinsTest, ThereIsABound) {
  const auto db = open();
  std::string record;
  for (std::uint64_t version = 1; version <= kManualPinsMax; version++) {
    append_be64(record, version);
    append_be64(record, 1000);
  }
  db->write({{ColumnFamily::store, "pins", record}});
  ManualPins pins(*db);
  EXPECT_EQ(test::code_of([&] { pins.add(kManualPinsMax + 1, 1000); }), ErrorCode::busy);
  pins.add(1, 1000);
  EXPECT_EQ(pins.list().size(), kManualPinsMax);
}

}  // namespace
}  // namespace weightfs
