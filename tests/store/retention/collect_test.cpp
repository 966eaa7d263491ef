#include "store/retention/collect.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/store/retention/gc_world.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs::test {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

class Collect : public testing::Test {
 protected:
  Random rng_{seed()};
  GcWorld world_{rng_};
};

TEST_F(Collect, RetiresWhatLiesBeforeTheSnapshotThatTheOldestKeptVersionNeeds) {
  world_.publish_many(10, 4);                 // snapshots at 1, 4, 8
  const CollectReport report = world_.gc(5);  // keeps 6 to 10: they need 4's snapshot, 5's delta
  EXPECT_EQ(report.retired.versions.text(), "1 to 3");
  EXPECT_EQ(report.retired.deltas.text(), "2 to 4");
  EXPECT_EQ(report.retired.snapshots.text(), "1");
  EXPECT_EQ(report.removed.objects, 0u);
  world_.bucket()->advance(hours(24));
  const CollectReport second = world_.gc(5);
  EXPECT_TRUE(second.retired.empty());
  EXPECT_EQ(second.removed.objects, report.retired.objects.size());
  EXPECT_EQ(world_.count("packs/2/") + world_.count("packs/4/") + world_.count("snapshots/1/"), 0u);
  EXPECT_NE(world_.count("snapshots/4/") * world_.count("packs/5/"), 0u);
  world_.expect_sound();
  EXPECT_NE(world_.problem_of(3), "");
}

TEST_F(Collect, ADryRunWritesNothing) {
  world_.publish_many(6, 3);
  world_.leave_pack(2);
  const auto before = world_.bucket()->objects();
  const auto repository = world_.builder.open();
  const CollectReport report = plan_collection(*repository, GcWorld::options_for(1), {});
  EXPECT_EQ(report.retired.versions.text(), "1 to 5");
  EXPECT_EQ(report.retired.orphans, 1u);
  EXPECT_EQ(world_.bucket()->objects(), before);
  EXPECT_EQ(world_.bucket()->calls("now"), 0u);
}

TEST_F(Collect, RemovesNothingBeforeItsGraceIsOver) {
  world_.publish_many(6, 3);
  const auto all = world_.count("");
  const auto retired = world_.gc(1).retired.objects.size();
  ASSERT_NE(retired, 0u);
  for (const auto step : {seconds(0), seconds(60), seconds(hours(24)) - seconds(61)}) {
    world_.bucket()->advance(step);
    EXPECT_EQ(world_.gc(1, seconds(0)).removed.objects, 0u);
    EXPECT_EQ(world_.count(""), all + 1);  // and the record
  }
  world_.bucket()->advance(seconds(1));
  EXPECT_EQ(world_.gc(1).removed.objects, retired);
}

TEST_F(Collect, NothingIsDueByAClockThatWentBack) {
  world_.publish_many(6, 3);
  world_.gc(1, seconds(0));
  world_.bucket()->advance(-hours(1));
  const auto objects = world_.count("");
  EXPECT_EQ(world_.gc(1, seconds(0)).removed.objects, 0u);
  EXPECT_EQ(world_.count(""), objects);
}

TEST_F(Collect, NothingIsDueWhoseRecordIsNotListed) {
  world_.publish_many(6, 3);
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  world_.bucket()->hide_from_list("gc/");
  EXPECT_EQ(world_.gc(1).removed.objects, 0u);
  world_.bucket()->heal();
  EXPECT_NE(world_.gc(1).removed.objects, 0u);
}

TEST_F(Collect, OrphansOfPublishedVersionsGoAndThoseAboveTheHeadStay) {
  world_.publish_many(3);
  const std::string pack = world_.leave_pack(2), snapshot = world_.leave_snapshot(3);
  const std::string early = world_.leave_pack(4), later = world_.leave_snapshot(40);
  EXPECT_EQ(world_.gc(100).retired.orphans, 2u);
  world_.bucket()->advance(hours(1000));
  EXPECT_EQ(world_.gc(100).removed.objects, 2u);
  EXPECT_FALSE(world_.has(pack) || world_.has(snapshot));
  EXPECT_TRUE(world_.has(early) && world_.has(later));
  world_.expect_sound();
}

TEST_F(Collect, LeavesKeysAloneThatItDoesNotKnow) {
  world_.publish_many(4, 2);
  const std::vector<std::string> strange{"packs/2/notes.txt",
                                         "packs/02/" + std::string(32, 'a') + "-0.safetensors",
                                         "packs/2/" + std::string(32, 'a') + "-00.safetensors",
                                         "packs/2/" + std::string(32, 'a') + "-0.safetensors/x",
                                         "packs/x/y",
                                         "snapshots/1/readme",
                                         "skips/4-1/" + std::string(32, 'b') + "-0.safetensors",
                                         "skips/00000000000000000004-00000000000000000001.json",
                                         "blobs/none",
                                         "layouts/none",
                                         "other"};
  for (const std::string& key : strange) world_.bucket()->replace(key, "?");
  const auto blobs = world_.count("blobs/"), layouts = world_.count("layouts/");
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  EXPECT_NE(world_.gc(1).removed.objects, 0u);
  for (const std::string& key : strange) EXPECT_TRUE(world_.has(key)) << key;
  EXPECT_EQ(world_.count("blobs/"), blobs);
  EXPECT_EQ(world_.count("layouts/"), layouts);
  EXPECT_EQ(world_.count("versions/"), 4u);
}

TEST_F(Collect, KeepsTaggedVersionsAndEveryNth) {
  for (int i = 1; i <= 12; i++) world_.publish(i % 3 == 0, i == 5 ? "best-5" : i == 7 ? "x" : "");
  CollectOptions options = GcWorld::options_for(1);
  options.keep.tags = {"best-*"};
  options.keep.every = 10;
  EXPECT_EQ(world_.gc(options).retired.versions.text(), "1 to 2, 6 to 8, 11");
  world_.bucket()->advance(hours(25));
  world_.gc(options);
  world_.expect_sound();
  EXPECT_EQ(world_.problem_of(5), "");
}

TEST_F(Collect, WhatOneRunRetiredAnotherCannotKeep) {
  world_.publish_many(8, 4);
  EXPECT_EQ(world_.gc(2).retired.versions.text(), "1 to 3");
  EXPECT_TRUE(world_.gc(100).retired.empty());
  EXPECT_EQ(world_.log().records.size(), 1u);
  world_.expect_sound();
}

TEST_F(Collect, TheRecordNamesTheFeatureBeforeAnythingIsRetired) {
  world_.publish_many(4, 2);
  EXPECT_TRUE(world_.gc(100).retired.empty());
  EXPECT_EQ(world_.bucket()->find("weightfs.json")->find("retired-objects"), std::string::npos);
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "put_if_absent") return;
    EXPECT_NE(world_.bucket()->find("weightfs.json")->find("retired-objects"), std::string::npos);
  };
  world_.gc(GcWorld::options_for(1), hooks);
  EXPECT_EQ(world_.log().records.size(), 1u);
  // Fields that this release does not know stay.
  EXPECT_NE(world_.bucket()->find("weightfs.json")->find("\"created\""), std::string::npos);
  EXPECT_NE(world_.builder.open(), nullptr);
}

TEST_F(Collect, WhoLosesTheRaceComputesAgain) {
  world_.publish_many(9, 3);
  BucketHooks hooks;
  bool is_first = true;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "put_if_absent" || !std::exchange(is_first, false)) return;
    world_.gc(1);  // retires 1 to 8; the other, which would keep 5, comes too late
  };
  CollectOptions options = GcWorld::options_for(1);
  options.keep.every = 5;
  EXPECT_TRUE(world_.gc(options, hooks).retired.empty());
  const GcLog log = world_.log();
  EXPECT_EQ(log.records.size(), 1u);
  EXPECT_EQ(log.versions.text(), "1 to 8");
}

TEST_F(Collect, AGcOfOldNewsDoesNotContradictANewerOne) {
  world_.publish_many(6, 3);
  BucketHooks hooks;
  bool is_first = true;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "put_if_absent" || !std::exchange(is_first, false)) return;
    world_.publish_many(6, 3);
    world_.gc(1);  // even version 6 goes
  };
  world_.gc(GcWorld::options_for(1), hooks);
  world_.expect_sound();
  EXPECT_EQ(world_.log().versions.text(), "1 to 11");
}

TEST_F(Collect, KilledAnywhereItIsFinishedByTheNextRun) {
  bool was_killed = true;
  for (std::uint64_t call = 1; was_killed; call++) {
    GcWorld world(rng_);
    world.publish_many(7, 3);
    world.leave_pack(3);
    const auto is_killed = [&] {
      world.bucket()->fail_call(call, ErrorCode::io);
      bool failed = false;
      try {
        world.gc(2, seconds(10));
      } catch (const Error&) {
        failed = true;
      }
      world.bucket()->heal();
      return failed;
    };
    was_killed = is_killed();
    world.expect_sound();
    world.bucket()->advance(seconds(10));
    was_killed |= is_killed();
    world.expect_sound();
    world.gc(2, seconds(10));
    world.bucket()->advance(seconds(10));
    world.gc(2, seconds(10));
    world.expect_sound();
    const GcLog log = world.log();
    for (const std::string& key : log.objects) EXPECT_FALSE(world.has(key)) << key;
    EXPECT_EQ(log.versions.text(), "1 to 5");
  }
}

TEST_F(Collect, TheHashesOfASnapshotGoFirst) {
  world_.publish_many(6, 3);
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "remove" || !call.key.starts_with("snapshots/")) return;
    const bool is_hashes = call.key.ends_with("/.hashes");
    const auto directory = call.key.substr(0, 12 + 32 + 1);
    EXPECT_TRUE(is_hashes || !world_.has(std::string(directory) + "/.hashes")) << call.key;
  };
  EXPECT_NE(world_.gc(GcWorld::options_for(1), hooks).removed.objects, 0u);
}

TEST_F(Collect, ALongListOfObjectsBecomesSeveralRecords) {
  world_.publish_many(4, 2);
  for (int i = 0; i < 30; i++) world_.leave_pack(2);
  const auto inventory = read_inventory(*world_.builder.open(), {});
  GcLog log;
  std::size_t rounds = 0;
  std::set<std::string> named;
  for (;; rounds++) {
    const Retirement next =
        plan_retirement(inventory, log, GcWorld::options_for(1).keep, /*key_bytes_max=*/500);
    if (next.empty()) break;
    for (const std::string& key : next.objects) EXPECT_TRUE(named.insert(key).second) << key;
    log.deltas.add(next.deltas);
    log.snapshots.add(next.snapshots);
    log.versions.add(next.versions);
    log.objects.insert(next.objects.begin(), next.objects.end());
    ASSERT_LT(rounds, 100u);
  }
  EXPECT_GT(rounds, 3u);
  EXPECT_EQ(log.versions.text(), "1 to 3");
}

TEST_F(Collect, ADamagedLogRemovesNothing) {
  world_.publish_many(6, 3);
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  const std::string key = keys::gc_record(1), good = *world_.bucket()->find(key);
  const auto before = world_.count("");
  for (std::size_t i = 0; i < good.size(); i += 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    world_.bucket()->replace(key, bad);
    EXPECT_THROW(world_.gc(1), Error) << i;
  }
  EXPECT_EQ(world_.count(""), before);
}

TEST_F(Collect, ARecordThatNamesWhatIsNeededRemovesNothing) {
  world_.publish_many(6, 3);
  const auto versions = read_inventory(*world_.builder.open(), {}).versions;
  GcRecord record;
  record.repository = world_.builder.open()->id();
  record.number = 1;
  record.head = 6;
  record.nonce = random_hex(16);
  record.objects = {keys::pack(5, versions[4].packs.at(0))};
  world_.bucket()->replace(keys::gc_record(1), record.serialize());
  world_.bucket()->advance(hours(25));
  EXPECT_EQ(code_of([&] { world_.gc(100); }), ErrorCode::corrupt);
  // Nor one that retires a delta without saying which versions that costs.
  record.deltas.add(5);
  world_.bucket()->replace(keys::gc_record(1), record.serialize());
  EXPECT_EQ(code_of([&] { world_.gc(100); }), ErrorCode::corrupt);
  EXPECT_TRUE(world_.has(record.objects[0]));
}

TEST_F(Collect, ADamagedManifestStopsIt) {
  world_.publish_many(6, 3);
  world_.bucket()->erase(keys::manifest(3));
  EXPECT_EQ(code_of([&] { world_.gc(1); }), ErrorCode::corrupt);
  EXPECT_EQ(world_.count("gc/"), 0u);
}

}  // namespace
}  // namespace weightfs::test
