#include "store/retention/collect.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "store/base/bytes.hpp"
#include "store/repository/early_records.hpp"
#include "tests/store/retention/gc_world.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs::test {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

// ---- prices ----

/// A version without objects.
Version version_of(std::uint64_t number) {
  Version version;
  version.manifest.version = number;
  version.manifest.parent = number - 1;
  if (number > 1) {
    version.manifest.delta.emplace();
    version.manifest.delta->packs = {{.name = "p", .size_bytes = 1u << 20}};
  }
  return version;
}

constexpr std::uint64_t kModelMib = 14'336;  // 7168 chunks of BF16

Version version_on_the_hub() {
  Version version = version_of(1);
  SnapshotRef& snapshot = version.manifest.snapshot.emplace();
  snapshot.nonce = std::string(32, 'a');
  snapshot.hashes.size_bytes = 8 + 8 * (kModelMib / 2) + 32 * kModelMib;
  snapshot.base.emplace(HubBase{"org/model", std::string(40, '1')});
  return version;
}

TEST(InventoryTest, ASnapshotOnTheHubIsPricedAtNoLessThanItsSize) {
  EXPECT_GE(facts_of(version_on_the_hub()).hub_bytes, kModelMib << 20);
}

// Readers fetch about as much of either; the one in the bucket cannot vanish.
TEST(KeepTest, ASnapshotInTheBucketIsNotRetiredForOneOnTheHub) {
  Inventory inventory;
  inventory.versions.push_back(facts_of(version_on_the_hub()));
  for (std::uint64_t number = 2; number <= 12; number++) {
    inventory.versions.push_back(facts_of(version_of(number)));
  }
  VersionFacts& tenth = inventory.versions[9];
  tenth.snapshot = std::string(32, 'b');
  HeldObject file;
  file.key = keys::snapshot_file(10, tenth.snapshot, "model.safetensors");
  file.size_bytes = kModelMib << 20;
  file.kind = ObjectKind::snapshot;
  file.place = HeldObject::Place::named;
  file.version = 10;
  inventory.objects.push_back(file);
  KeepPolicy policy;
  policy.newest = 1;
  EXPECT_EQ(plan_retirement(inventory, {}, policy).snapshots.text(), "1");
}

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
  EXPECT_FALSE(world_.found_versions().contains(3));
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

TEST_F(Collect, EarlyRecordsOfVersionsThatExistGo) {
  world_.publish_many(3);
  for (const std::uint64_t version : {2u, 3u, 4u}) {
    world_.bucket()->replace(keys::early_record(version), "?");
  }
  const std::string strange = "early/3.json";
  world_.bucket()->replace(strange, "?");
  world_.gc(100);
  EXPECT_FALSE(world_.has(keys::early_record(2)) || world_.has(keys::early_record(3)));
  EXPECT_TRUE(world_.has(keys::early_record(4)) && world_.has(strange));
  world_.expect_sound();
}

// The documented rights of gc need not have these keys.
TEST_F(Collect, HintsThatMayNotBeRemovedStayAndItGoesOn) {
  world_.publish_many(6, 3);
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  world_.bucket()->replace(keys::early_record(2), "?");
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "remove" || !call.key.starts_with(keys::kEarly)) return;
    throw Error(ErrorCode::permission, "s3:DeleteObject is missing");
  };
  EXPECT_NE(world_.gc(GcWorld::options_for(1), hooks).removed.objects, 0u);
  EXPECT_EQ(world_.count("packs/2/"), 0u);
  EXPECT_TRUE(world_.has(keys::early_record(2)));
  world_.gc(1);
  EXPECT_FALSE(world_.has(keys::early_record(2)));
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
                                         "skips/00000000000000000004-00000000000000000003.json",
                                         "skips/00000000000000000040-00000000000000000001.json",
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
  // Version 5 is built by a skip from 3, so 4 goes too.
  EXPECT_EQ(world_.gc(options).retired.versions.text(), "1 to 2, 4, 6 to 8, 11");
  world_.bucket()->advance(hours(25));
  world_.gc(options);
  world_.expect_sound();
  EXPECT_TRUE(world_.found_versions().contains(5));
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
        plan_retirement(inventory, log, GcWorld::options_for(1).keep, {}, /*key_bytes_max=*/500);
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

// A snapshot of which nothing is left would be the cheapest one to build from.
// Version 10 is built from snapshot 4 then, and what is left of snapshot 8 stays.
TEST_F(Collect, NothingIsRetiredForASnapshotThatIsNotThere) {
  using Damage = std::function<void(MemoryBucket&, const std::string& file, const std::string&)>;
  const auto expect_other_way = [&](const char* what, const Damage& damage) {
    SCOPED_TRACE(what);
    GcWorld world(rng_);
    world.publish_many(10, 4);
    const std::string file = world.builder.key("snapshots/8/", ".safetensors");
    damage(*world.bucket(), file, world.builder.key("snapshots/8/", "/.hashes"));
    const std::uint64_t left = world.count("snapshots/8/");
    const Retirement retired = world.gc(1, seconds(0)).retired;
    EXPECT_EQ(retired.versions.text(), "1 to 3");
    EXPECT_EQ(retired.deltas.text(), "2 to 4");
    EXPECT_EQ(retired.snapshots.text(), "1");
    EXPECT_EQ(world.count("snapshots/8/"), left);
    world.expect_sound();
  };
  const auto cut = [](MemoryBucket& bucket, const std::string& key, std::size_t size) {
    bucket.replace(key, bucket.find(key)->substr(0, size));
  };
  expect_other_way("no file",
                   [](auto& bucket, const auto& file, const auto&) { bucket.erase(file); });
  expect_other_way("a file that is cut", [&](auto& bucket, const auto& file, const auto&) {
    cut(bucket, file, bucket.find(file)->size() - 1);
  });
  expect_other_way("no .hashes",
                   [](auto& bucket, const auto&, const auto& hashes) { bucket.erase(hashes); });
  expect_other_way("nothing", [](auto& bucket, const auto& file, const auto& hashes) {
    bucket.erase(file);
    bucket.erase(hashes);
  });
  for (const std::size_t less : {std::size_t{1}, std::size_t{30}}) {
    expect_other_way(".hashes that are cut", [&](auto& bucket, const auto&, const auto& hashes) {
      cut(bucket, hashes, bucket.find(hashes)->size() - less);
    });
  }
}

TEST_F(Collect, ASnapshotThatAListDoesNotShowIsThere) {
  world_.publish_many(10, 4);
  world_.bucket()->hide_from_list("snapshots/8/");
  EXPECT_EQ(world_.gc(1).retired.versions.text(), "1 to 7");
  world_.bucket()->heal();
  world_.expect_sound();
}

TEST_F(Collect, NothingIsRetiredWhileNothingElseLeadsToAKeptVersion) {
  world_.publish_many(10, 4);
  EXPECT_EQ(world_.gc(1).retired.versions.text(), "1 to 7");
  const std::uint64_t records = world_.count("gc/");
  world_.leave_pack(9);  // there is something to retire
  const std::string file = world_.builder.key("snapshots/8/", ".safetensors");
  const std::string good_file = *world_.bucket()->find(file);
  world_.bucket()->erase(file);
  const Error error = error_of([&] { world_.gc(1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  const std::string message = error.what();
  EXPECT_NE(message.find(file), std::string::npos) << message;
  EXPECT_NE(message.find("nothing is retired: version 10"), std::string::npos) << message;
  EXPECT_EQ(world_.count("gc/"), records);
  world_.bucket()->replace(file, good_file);
  EXPECT_EQ(world_.gc(1).retired.orphans, 1u);
  world_.expect_sound();
}

// A hand-over does not wait for more than one of them.
TEST_F(Collect, WaitsItsTurnBeforeEachObjectOfASnapshot) {
  world_.publish_many(4, 4);
  world_.bucket()->hide_from_list("snapshots/4/");  // so its file is asked for
  std::atomic<bool> is_its_turn = false;
  std::size_t files = 0;
  CollectOptions options = GcWorld::options_for(1);
  options.wait_turn = [&](const Context&) { is_its_turn = true; };
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("snapshots/4/") && call.key.ends_with(".safetensors")) {
      files++;
      EXPECT_TRUE(is_its_turn);
    }
    is_its_turn = false;
  };
  EXPECT_EQ(world_.gc(options, hooks).retired.versions.text(), "1 to 3");
  EXPECT_EQ(files, 1u);
}

// What is due goes first: else nothing could ever be removed from a bucket that is full.
TEST_F(Collect, RemovesWhatIsDueFromAFullBucket) {
  world_.publish_many(6, 3);
  world_.gc(1);
  world_.bucket()->advance(hours(25));
  world_.publish_many(3, 3);
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind.starts_with("put")) throw Error(ErrorCode::no_space, "the disk is full");
  };
  EXPECT_EQ(code_of([&] { world_.gc(GcWorld::options_for(1), hooks); }), ErrorCode::no_space);
  EXPECT_EQ(world_.count("packs/2/") + world_.count("snapshots/3/"), 0u);
  world_.expect_sound();
  EXPECT_EQ(world_.gc(1).retired.versions.text(), "6 to 8");  // now there is room for the record
}

TEST_F(Collect, ADamagedManifestStopsIt) {
  world_.publish_many(6, 3);
  world_.bucket()->erase(keys::manifest(3));
  EXPECT_EQ(code_of([&] { world_.gc(1); }), ErrorCode::corrupt);
  EXPECT_EQ(world_.count("gc/"), 0u);
}

// Anybody who may write to the bucket can put one there: it had gc allocate terabytes.
TEST_F(Collect, AStrayManifestWithAHighNumberCostsNothing) {
  world_.publish_many(6, 3);
  world_.bucket()->replace(keys::manifest(kVersionMax), "");
  const Error error = error_of([&] { world_.gc(1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(keys::manifest(7)), std::string::npos) << error.what();
  EXPECT_EQ(world_.count("gc/"), 0u);
}

// ---- skip deltas ----

class CollectSkips : public Collect {
 protected:
  /// Versions 1 to `count`, all of which are built from the snapshot of 1.
  void publish(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; i++) world_.publish();
  }

  static CollectOptions every(std::uint64_t number, std::uint64_t newest = 1) {
    CollectOptions options = GcWorld::options_for(newest);
    options.keep.every = number;
    return options;
  }

  void remove_due(const CollectOptions& options) {
    world_.bucket()->advance(hours(25));
    world_.gc(options);
  }

  std::size_t objects_of(const VersionPair& skip) {
    const std::string record = keys::skip_record(skip);
    return world_.count(record.substr(0, record.size() - 5));
  }
};

TEST_F(CollectSkips, AreMadeOverTheDeltasOfVersionsThatAreKeptAlone) {
  publish(17);
  const CollectReport report = world_.gc(every(8));
  EXPECT_EQ(report.made, (std::vector<VersionPair>{{1, 8}, {8, 16}}));
  EXPECT_EQ(report.retired.deltas.text(), "2 to 16");
  EXPECT_EQ(report.retired.versions.text(), "2 to 7, 9 to 15");
  const GcLog log = world_.log();
  ASSERT_EQ(log.needs.size(), 2u);
  EXPECT_EQ(log.needs.at({8, 16}),
            sha256(as_bytes(*world_.bucket()->find(keys::skip_record({8, 16})))));
  EXPECT_EQ(world_.checks, 2u);
  remove_due(every(8));
  EXPECT_EQ(world_.count("packs/"), 1u);  // of 17, from 16
  EXPECT_EQ(world_.found_versions(), (std::set<std::uint64_t>{1, 8, 16, 17}));
  world_.expect_sound();
}

TEST_F(CollectSkips, NeedNothingThatIsNotChecked) {
  publish(9);
  for (const bool is_record : {true, false}) {
    const SkipRecord skip = world_.builder.add_skip({1, is_record ? 8u : 7u});
    const std::string key = is_record ? keys::skip_record(skip.versions)
                                      : keys::skip_pack(skip.versions, skip.delta.packs[0].name);
    world_.builder.flip(key, 20);
    world_.refused.insert(skip.versions);
    const CollectReport report = world_.gc(every(skip.versions.to));
    EXPECT_EQ(world_.log().needs.size(), 0u) << key;
    EXPECT_FALSE(report.retired.deltas.contains(2)) << key;
    world_.expect_sound();
  }
  world_.makes_skips = false;  // nor is there a way to check
  world_.builder.add_skip({1, 9});
  world_.gc(1);
  EXPECT_EQ(world_.log().needs.size(), 0u);
  world_.expect_sound();
}

TEST_F(CollectSkips, ThatCannotBeMadeLeaveTheDeltas) {
  publish(9);
  world_.refused = {{1, 8}};
  const CollectReport report = world_.gc(every(8));
  EXPECT_TRUE(report.made.empty());
  EXPECT_TRUE(report.retired.empty());
  world_.expect_sound();
}

TEST_F(CollectSkips, ForWhichThereIsNoSpaceLeaveTheDeltas) {
  publish(17);
  world_.gc(every(8));
  world_.bucket()->advance(hours(25));
  publish(8);
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind.starts_with("put")) throw Error(ErrorCode::no_space, "the disk is full");
  };
  const CollectReport report = world_.gc(every(8), hooks);
  EXPECT_TRUE(report.made.empty());
  EXPECT_TRUE(report.retired.deltas.empty()) << report.retired.deltas.text();
  EXPECT_EQ(report.removed.objects, 15u);  // the deltas of 2 to 16
  EXPECT_EQ(world_.count("packs/"), 9u);
  world_.expect_sound();
}

TEST_F(CollectSkips, ADamagedOneInTheWayOfItsMakerLeavesTheDeltas) {
  publish(9);
  world_.builder.add_skip({1, 8});
  world_.builder.flip(keys::skip_record({1, 8}), 10);
  EXPECT_TRUE(world_.gc(every(8)).retired.empty());
  world_.expect_sound();
}

TEST_F(CollectSkips, ADryRunSaysWhatWouldBeMadeAndMakesNothing) {
  publish(9);
  const auto before = world_.bucket()->objects();
  const CollectReport report = plan_collection(*world_.builder.open(), every(8), {});
  EXPECT_EQ(report.retired.missing, (std::set<VersionPair>{{1, 8}}));
  EXPECT_EQ(world_.bucket()->objects(), before);
}

TEST_F(CollectSkips, ThatNobodyUsesAnyMoreAreRetiredRecordFirst) {
  publish(6);
  world_.builder.add_skip({1, 3});
  world_.builder.add_skip({1, 5});
  world_.builder.add_skip({2, 4});
  EXPECT_TRUE(world_.gc(6).retired.empty());
  EXPECT_EQ(world_.gc(2).retired.skips, (std::set<VersionPair>{{1, 3}, {2, 4}}));
  EXPECT_EQ(world_.log().needs.size(), 1u);  // 1 to 5
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    const auto skip = call.kind == "remove" ? find_skip_key(call.key) : std::nullopt;
    if (!skip || skip->pack.empty()) return;
    EXPECT_FALSE(world_.has(keys::skip_record(skip->versions)));
  };
  world_.bucket()->advance(hours(25));
  world_.gc(GcWorld::options_for(2), hooks);
  EXPECT_EQ(objects_of({1, 3}) + objects_of({2, 4}), 0u);
  EXPECT_EQ(objects_of({1, 5}), 2u);
  world_.expect_sound();
}

TEST_F(CollectSkips, AreRetiredWhenSomethingElseLeadsThere) {
  publish(9);
  world_.gc(every(8));
  world_.publish(/*snapshot=*/true);
  const CollectReport report = world_.gc(1);
  EXPECT_EQ(report.retired.skips, (std::set<VersionPair>{{1, 8}}));
  EXPECT_TRUE(world_.log().needs.empty());
  EXPECT_EQ(world_.log().versions.text(), "1 to 9");
  remove_due(GcWorld::options_for(1));
  EXPECT_EQ(world_.count("skips/"), 0u);
  world_.expect_sound();
}

TEST_F(CollectSkips, OnceRetiredAreNeverNeededAgain) {
  publish(5);
  world_.builder.add_skip({1, 3});
  world_.builder.add_skip({1, 5});
  EXPECT_EQ(world_.gc(1).retired.skips, (std::set<VersionPair>{{1, 3}}));
  remove_due(GcWorld::options_for(1));
  EXPECT_EQ(objects_of({1, 3}), 0u);
  world_.builder.add_skip({1, 3});  // by a maker that did not look
  world_.gc(1);
  EXPECT_FALSE(world_.log().needs.contains({1, 3}));
  remove_due(GcWorld::options_for(1));
  EXPECT_EQ(objects_of({1, 3}), 0u);
}

TEST_F(CollectSkips, WithoutARecordStayWhileTheirVersionsDo) {
  publish(6);
  (void)world_.builder.put_skip_packs({1, 3});
  EXPECT_TRUE(world_.gc(6).retired.empty());
  EXPECT_EQ(read_inventory(*world_.builder.open(), {}).unfinished, (std::set<VersionPair>{{1, 3}}));
  EXPECT_EQ(world_.gc(2).retired.skips, (std::set<VersionPair>{}));  // 3 lies on the way to 5
  world_.publish(/*snapshot=*/true);
  EXPECT_EQ(world_.gc(1).retired.skips.count({1, 3}), 1u);
  remove_due(GcWorld::options_for(1));
  EXPECT_EQ(objects_of({1, 3}), 0u);
}

TEST_F(CollectSkips, PacksThatTheirRecordDoesNotNameAreOrphans) {
  publish(6);
  const SkipRecord left = world_.builder.put_skip_packs({1, 6});
  const SkipRecord skip = world_.builder.add_skip({1, 6});
  const std::string orphan = keys::skip_pack({1, 6}, left.delta.packs.at(0).name);
  EXPECT_EQ(world_.gc(6).retired.orphans, 1u);
  // Whether it is one only the record tells.
  const std::string good = *world_.bucket()->find(keys::skip_record({1, 6}));
  world_.builder.flip(keys::skip_record({1, 6}), 10);
  remove_due(GcWorld::options_for(6));
  EXPECT_TRUE(world_.has(orphan));
  world_.bucket()->replace(keys::skip_record({1, 6}), good);
  remove_due(GcWorld::options_for(6));
  EXPECT_FALSE(world_.has(orphan));
  EXPECT_TRUE(world_.has(keys::skip_pack({1, 6}, skip.delta.packs.at(0).name)));
}

TEST_F(CollectSkips, NothingIsRemovedWhileANeededOneIsDamaged) {
  publish(9);
  world_.gc(every(8));
  const std::string key = keys::skip_record({1, 8}), good = *world_.bucket()->find(key);
  world_.bucket()->advance(hours(25));
  world_.builder.flip(key, 10);
  const Error error = error_of([&] { world_.gc(every(8)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  EXPECT_EQ(world_.count("packs/"), 8u);
  world_.bucket()->replace(key, good);
  world_.gc(every(8));
  EXPECT_EQ(world_.count("packs/"), 1u);
}

TEST_F(CollectSkips, ANeededOneThatLISTDoesNotShowIsFound) {
  publish(9);
  world_.gc(every(8));
  world_.bucket()->advance(hours(25));
  world_.bucket()->hide_from_list("skips/");
  EXPECT_EQ(world_.gc(every(8)).removed.objects, 7u);
  world_.bucket()->heal();
  world_.expect_sound();
}

TEST_F(CollectSkips, KilledAnywhereNothingIsLost) {
  bool was_killed = true;
  for (std::uint64_t call = 1; was_killed; call++) {
    GcWorld world(rng_);
    for (int i = 0; i < 9; i++) world.publish();
    std::atomic<std::uint64_t> calls = 0;
    BucketHooks hooks;
    hooks.before = [&](const BucketCall&) {
      if (++calls == call) throw Error(ErrorCode::io, "killed");
    };
    const auto is_killed = [&](const BucketHooks& with) {
      try {
        world.gc(every(4), with);
        return false;
      } catch (const Error&) {
        return true;
      }
    };
    was_killed = is_killed(hooks);
    world.expect_sound();
    world.bucket()->advance(hours(25));
    calls = 0;
    was_killed |= is_killed(hooks);
    world.expect_sound();
    for (int i = 0; i < 2; i++) {
      world.bucket()->advance(hours(25));
      world.gc(every(4));
    }
    world.expect_sound();
    EXPECT_EQ(world.found_versions(), (std::set<std::uint64_t>{1, 4, 8, 9}));
  }
}

TEST_F(CollectSkips, ALogThatNeedsWhatWasRetiredIsDamaged) {
  publish(9);
  world_.builder.add_skip({1, 3});
  world_.builder.add_skip({1, 8});
  world_.gc(every(8));
  const GcLog log = world_.log();
  ASSERT_TRUE(log.skips.contains({1, 3}));
  GcRecord record = log.records.back();
  record.number = 2;
  record.previous_sha256 = log.last_sha256;
  record.deltas = record.snapshots = record.versions = {};
  record.objects.clear();
  for (const bool is_need : {true, false}) {
    record.skips.clear();
    record.needs.clear();
    is_need ? (void)record.needs.emplace(VersionPair{1, 3}, Sha256{})
            : (void)record.skips.insert({1, 3});
    world_.bucket()->replace(keys::gc_record(2), record.serialize());
    EXPECT_EQ(code_of([&] { (void)world_.log(); }), ErrorCode::corrupt) << is_need;
  }
}

TEST_F(CollectSkips, ALogThatNeedsASkipToARetiredVersionIsDamaged) {
  publish(9);
  world_.gc(every(8));
  const GcLog log = world_.log();
  ASSERT_TRUE(log.versions.contains(5));
  GcRecord record = log.records.back();
  record.number = 2;
  record.previous_sha256 = log.last_sha256;
  record.deltas = record.snapshots = record.versions = {};
  record.objects.clear();
  record.needs = {{VersionPair{1, 5}, Sha256{}}};
  world_.bucket()->replace(keys::gc_record(2), record.serialize());
  EXPECT_EQ(code_of([&] { (void)world_.log(); }), ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs::test
