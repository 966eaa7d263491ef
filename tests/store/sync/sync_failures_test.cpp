// Sync: broken objects, and a bucket that is out of reach.
#include <gtest/gtest.h>

#include <functional>

#include "store/base/error.hpp"
#include "store/sync/sync.hpp"
#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/rotten_files.hpp"

namespace weightfs::test {
namespace {

// ---- broken objects ----

TEST_F(SyncTest, ServesTheOldVersionNamesTheCorruptPackAndRecoversWhenItIsMended) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  const std::string key = pack_of(2);
  const auto mend = spoil(key);
  const Error error = round_error(*on);
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  expect_names(error.what(), key);
  expect_latest(*on, 1);
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.state, SyncState::waiting);
  EXPECT_EQ(status.newest, 2u);
  EXPECT_EQ(status.error, error.what());
  EXPECT_EQ(status.error_code, "corrupt");
  EXPECT_GT(status.error_time, 0);
  EXPECT_EQ(status.offline_since, 0);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);

  mend();
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.status().error, "");
  EXPECT_EQ(on->sync.status().error_time, 0);
}

TEST_F(SyncTest, ServesTheOldVersionWhileAnObjectIsMissing) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  const std::string key = pack_of(2), bytes = bucket_->find(key).value();
  bucket_->erase(key);
  expect_names(round_error(*on).what(), key);
  expect_names(on->sync.status().error, key);
  EXPECT_EQ(on->sync.status().error_code, "not_found");
  EXPECT_EQ(on->sync.status().offline_since, 0);
  expect_latest(*on, 1);
  bucket_->replace(key, bytes);
  on->sync.run_once({});
  expect_latest(*on, 2);
}

TEST_F(SyncTest, RecoversByItselfWhenTheThreadRuns) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  std::function<void()> mend;
  PublishOptions options;
  options.directory = checkpoint(2);
  options.at = [&](std::string_view point) {
    if (point == "pack") mend = spoil(pack_of(2));
  };
  publisher_.publish(options);
  ASSERT_TRUE(eventually([&] { return on->sync.status().error_code == "corrupt"; }));
  expect_latest(*on, 1);
  mend();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
  ASSERT_TRUE(eventually([&] { return on->sync.status().error.empty(); }));
  expect_latest(*on, 2);
}

TEST_F(SyncTest, MakesTheVersionsBeforeABrokenOne) {
  publish(1);
  const auto on = reader(), other = reader("other");
  on->sync.run_once({});
  other->sync.run_once({});
  for (unsigned version = 2; version <= 4; version++) publish(version);
  const auto mend_4 = spoil(pack_of(4));
  expect_names(round_error(*on).what(), pack_of(4));
  expect_latest(*on, 3);
  EXPECT_EQ(on->sync.status().newest, 4u);
  EXPECT_EQ(on->sync.status().state, SyncState::waiting);

  const auto mend_3 = spoil(pack_of(3));
  EXPECT_EQ(round_error(*other).code(), ErrorCode::corrupt);
  expect_latest(*other, 2);

  mend_3();
  mend_4();
  on->sync.run_once({});
  other->sync.run_once({});
  expect_latest(*on, 4);
  expect_latest(*other, 4);
}

// What failed before for another reason takes no turn.
TEST_F(SyncTest, TheVersionsBeforeABrokenOneAreTriedAtItsFirstFailureBecauseOfObjects) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  publish(3);
  const auto mend = spoil(pack_of(3));
  bucket_->fail_key("packs/", ErrorCode::unavailable);
  for (int i = 0; i < 2; i++) EXPECT_EQ(round_error(*on).code(), ErrorCode::unavailable);
  bucket_->heal();
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);
  expect_latest(*on, 2);
}

TEST_F(SyncTest, ShowsAColdHostTheNewestVersionThatCanBeMade) {
  for (unsigned version = 1; version <= 3; version++) publish(version);
  const auto mend = spoil(pack_of(3));
  const auto on = reader();
  on->sync.start();
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  expect_latest(*on, 2);
}

// It began with the newest snapshot; what leads to the newest version without it is there.
TEST_F(SyncTest, AColdHostMakesTheNewestVersionInOneRoundWithoutALostSnapshot) {
  publish(1);
  publish(2);
  PublishOptions options;
  options.directory = checkpoint(3);
  options.wishes.snapshot = true;
  publisher_.publish(std::move(options));
  publish(4);
  for (const auto& [key, bytes] : bucket_->objects()) {
    if (key.starts_with("snapshots/3/") && key.ends_with(".safetensors")) bucket_->erase(key);
  }
  const auto on = reader();
  on->sync.run_once({});
  expect_latest(*on, 4);
  EXPECT_EQ(on->sync.status().error, "");
}

TEST_F(SyncTest, GoesUpToABrokenManifestAndOnWhenItIsMended) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  for (unsigned version = 2; version <= 3; version++) publish(version);
  const std::string key = keys::manifest(3), good = bucket_->find(key).value();
  Manifest changed = Manifest::parse(good, key);
  changed.features = {"x"};
  const std::string newer = changed.serialize();
  for (const auto& [bytes, code] : {std::pair(good.substr(0, 100), ErrorCode::corrupt),
                                    std::pair(newer, ErrorCode::unsupported)}) {
    bucket_->replace(key, bytes);
    static_cast<void>(round_error(*on));  // brings in version 2; the error may come at the next
                                          // round
    const Error error = round_error(*on);
    EXPECT_EQ(error.code(), code) << error.what();
    expect_names(on->sync.status().error, key);
    EXPECT_EQ(on->sync.status().offline_since, 0);
    expect_latest(*on, 2);
  }
  bucket_->replace(key, good);
  on->sync.run_once({});
  expect_latest(*on, 3);
}

TEST_F(SyncTest, RefusesABucketThatWentBack) {
  publish(1);
  publish(2);
  reader()->sync.run_once({});
  bucket_->erase(keys::manifest(2));
  const auto on = reader();
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);
  expect_latest(*on, 2);
}

/// What SyncTest.reader() needs to check the bucket after each poll that found nothing.
SyncOptions checking_always() {
  SyncOptions options;
  options.follow.poll.check_interval = milliseconds(0);
  return options;
}

// Its next version was missing, as in one without news, until the new run had come so far.
TEST_F(SyncTest, ABucketThatWasEmptiedOrBegunAnewIsNotTakenForOneWithoutNews) {
  publish(1);
  publish(2);
  const auto on = reader("reader", kNoFloor, checking_always());
  on->sync.run_once({});
  on->sync.run_once({});
  EXPECT_EQ(on->sync.status().state, SyncState::current);
  const auto before = bucket_->objects();
  for (const auto& [key, bytes] : before) bucket_->erase(key);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::not_found);
  expect_names(on->sync.status().error, "no repository at memory:///bucket any more");
  const std::string& id = publisher_.repository->id();
  const std::string other(id.size(), 'a');
  bucket_->replace(keys::kRecord, record_of_another(before.find(keys::kRecord)->second, id));
  EXPECT_EQ(round_error(*on).code(), ErrorCode::not_found);
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.state, SyncState::waiting);
  EXPECT_GT(status.offline_since, 0);
  expect_names(status.error, other + ", expected " + id);
  expect_latest(*on, 2);
  // Also once the new one has a version with the next number.
  bucket_->replace(keys::manifest(3), before.at(keys::manifest(2)));
  for (int poll = 0; poll < 2; poll++) expect_names(round_error(*on).what(), "another repository");
  EXPECT_GT(on->sync.status().offline_since, 0);

  bucket_->erase(keys::manifest(3));
  for (const auto& [key, bytes] : before) bucket_->replace(key, bytes);
  on->sync.run_once({});
  EXPECT_EQ(on->sync.status().state, SyncState::current);
  EXPECT_EQ(on->sync.status().offline_since, 0);
  publish(3);
  on->sync.run_once({});
  expect_latest(*on, 3);
}

TEST_F(SyncTest, ABucketThatIsBackIsCheckedAtOnce) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  bucket_->fail_key("", ErrorCode::unavailable);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::unavailable);
  bucket_->heal();
  const std::string mine = bucket_->find(keys::kRecord).value();
  bucket_->replace(keys::kRecord, record_of_another(mine, publisher_.repository->id()));
  for (int poll = 0; poll < 2; poll++) expect_names(round_error(*on).what(), "another repository");
  bucket_->replace(keys::kRecord, mine);
  on->sync.run_once({});
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, SeesWhileItRunsThatTheBucketWentBack) {
  publish(1);
  publish(2);
  const auto on = reader("reader", kNoFloor, checking_always());
  on->sync.run_once({});
  const std::string key = keys::manifest(2), good = bucket_->find(key).value();
  bucket_->erase(key);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);
  expect_names(on->sync.status().error, "lost version 2");
  EXPECT_EQ(on->sync.status().state, SyncState::waiting);
  expect_latest(*on, 2);
  bucket_->replace(key, good);
  on->sync.run_once({});
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, HealsABaseThatRotted) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  const auto image =
      on->host.store->images().image_directory(1) / "model-00001-of-00002.safetensors";
  std::string bytes = read_text(image);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  stdfs::permissions(image, stdfs::perms::owner_write, stdfs::perm_options::add);
  write_text(image, bytes);
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_FALSE(stdfs::exists(image)) << "nobody would count it";
}

// ---- without the bucket ----

TEST_F(SyncTest, FetchesRecordsThatRottedAndNoImages) {
  publish(1);
  for (const char* family : {"manifests", "layouts"}) {
    const std::string name = std::string("reader-") + family;
    reader(name)->sync.run_once({});
    reader(name);  // which writes the records to files
    ASSERT_GT(rot_family(dir_ / name / "db", family), 0u);
    for (const char* prefix : {"packs/", "snapshots/"}) {
      bucket_->fail_key(prefix, ErrorCode::unavailable);
    }
    const auto on = reader(name);
    on->sync.run_once({});
    expect_latest(*on, 1);
    bucket_->heal();
  }
}

TEST_F(SyncTest, ServesWhatWasThereAfterARestartWithoutTheBucket) {
  publish(1, "one");
  publish(2, "two");
  reader()->sync.run_once({});
  const auto on = offline_reader();
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.catalog()->tags,
            (std::map<std::string, std::uint64_t>{{"one", 1}, {"two", 2}}));
  on->sync.start();
  on->sync.wait_ready({}, {});
  on->sync.stop();
  EXPECT_NE(round_error(*on).code(), ErrorCode::corrupt);
  EXPECT_GT(on->sync.status().offline_since, 0);
  EXPECT_EQ(on->sync.status().state, SyncState::waiting);
  expect_latest(*on, 2);
}

TEST_F(SyncTest, LatestDoesNotGoBackAtARestartThoughTheDiskWasFullWhenItWasHeardOf) {
  std::atomic<std::uint64_t> free_bytes = 1ull << 40;
  publish(1);
  {
    Reader on(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "reader",
              kNoFloor, {}, [&] {
                return Space{free_bytes, 1ull << 41};
              });
    on.sync.run_once({});
    free_bytes = 0;
    publish(2);
    EXPECT_EQ(round_error(on).code(), ErrorCode::no_space);
    free_bytes = 1ull << 40;
    on.sync.run_once({});
    expect_latest(on, 2);
  }
  const auto on = offline_reader();
  expect_latest(*on, 2);
}

TEST_F(SyncTest, AsksNothingOfTheBucketBeforeTheFirstRound) {
  publish(1, "one");
  reader()->sync.run_once({});
  const auto repository = Repository::open(std::make_unique<BucketView>(bucket_), {});
  Host host(bucket_, dir_ / "reader");
  const std::uint64_t calls = bucket_->calls();
  const Sync sync(*host.store, host.history, {});
  EXPECT_EQ(bucket_->calls(), calls);
  EXPECT_EQ(sync.catalog()->latest, 1u);
}

TEST_F(SyncTest, LeavesOutAVersionWhoseLayoutIsNotHereUntilTheBucketIs) {
  publish(1);
  {
    const auto on = reader();
    on->sync.run_once({});
    on->sync.sync_images();
    const auto version = on->host.history.get(1, {});
    on->host.store->manifests().put_layout(version->manifest.layout.sha256, "rotten");
  }
  EXPECT_EQ(offline_reader()->sync.catalog()->latest, 0u);
  const auto on = reader();
  EXPECT_EQ(on->sync.catalog()->latest, 0u);
  on->sync.run_once({});
  expect_latest(*on, 1);
}

TEST_F(SyncTest, SaysSinceWhenTheBucketIsOutOfReachAndGoesOnWhenItIsBack) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  for (const ErrorCode code :
       {ErrorCode::unavailable, ErrorCode::timed_out, ErrorCode::permission, ErrorCode::io}) {
    bucket_->fail_key("versions/", code);
    EXPECT_EQ(round_error(*on).code(), code);
    EXPECT_GT(on->sync.status().offline_since, 0);
    EXPECT_EQ(on->sync.status().error_code, to_string(code));
    expect_latest(*on, 1);
    bucket_->heal();
    on->sync.run_once({});
    EXPECT_EQ(on->sync.status().offline_since, 0);
    EXPECT_EQ(on->sync.status().state, SyncState::current);
  }
  publish(2);
  on->sync.run_once({});
  expect_latest(*on, 2);
}

/// A missing directory has no version N + 1, but must not look like "nothing new".
TEST_F(SyncTest, IsOfflineWhenTheDirectoryOfTheBucketIsGoneAndGoesOnWhenItIsBack) {
  const std::string url = "file://" + (dir_ / "bucket").string();
  bool created = false;
  Host publisher(Repository::init(url, created, {}), dir_ / "dir-publisher");
  publisher.publish(checkpoint(1));
  Reader on(Repository::open(url, {}), dir_ / "reader", kNoFloor, {});
  on.sync.run_once({});
  publisher.publish(checkpoint(2));
  stdfs::rename(dir_ / "bucket", dir_ / "elsewhere");
  static_cast<void>(round_error(on));
  EXPECT_GT(on.sync.status().offline_since, 0) << on.sync.status().error;
  EXPECT_EQ(on.sync.status().state, SyncState::waiting);
  expect_latest(on, 1);
  stdfs::rename(dir_ / "elsewhere", dir_ / "bucket");
  on.sync.run_once({});
  EXPECT_EQ(on.sync.status().offline_since, 0);
  expect_latest(on, 2);
}

/// It did not answer when the daemon started, so nobody has read its record before.
TEST_F(SyncTest, WhoStartsFromTheStoreTakesNoOtherRepositoryForItsOwn) {
  const std::string url = "file://" + (dir_ / "bucket").string();
  bool created = false;
  Host publisher(Repository::init(url, created, {}), dir_ / "dir-publisher");
  publisher.publish(checkpoint(1));
  const std::string id = publisher.repository->id();
  Reader(Repository::open(url, {}), dir_ / "reader", kNoFloor, {}).sync.run_once({});
  const stdfs::path record = dir_ / "bucket" / keys::kRecord;
  const std::string own = read_text(record);
  write_text(record, record_of_another(own, id));
  Reader on(Repository::assume(url, id), dir_ / "reader", kNoFloor, {});
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(round_error(on).code(), ErrorCode::unavailable);
    EXPECT_GT(on.sync.status().offline_since, 0);
    expect_latest(on, 1);
  }
  write_text(record, own);
  on.sync.run_once({});
  EXPECT_EQ(on.sync.status().offline_since, 0);
}

/// On a network file system whose server is gone a system call may never return.
TEST_F(SyncTest, IsOfflineWhileAPollDoesNotReturn) {
  publish(1);
  SyncOptions options = often();
  options.follow.poll.patience = milliseconds(1);
  const auto on = reader("reader", kNoFloor, options);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  bucket_->hang_key("versions/");
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  ASSERT_TRUE(eventually([&] { return on->sync.status().offline_since > 0; }));
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.state, SyncState::waiting);
  EXPECT_EQ(status.error_code, "unavailable");
  expect_names(status.error, "a poll of memory:///bucket has had no answer");
  EXPECT_LE(status.offline_since, status.error_time);
  EXPECT_EQ(bucket_->waiting(), 1);
  expect_latest(*on, 1);
  bucket_->heal();
  EXPECT_TRUE(eventually([&] {
    const SyncStatus now = on->sync.status();
    return now.offline_since == 0 && now.state == SyncState::current && now.error.empty();
  }));
}

TEST_F(SyncTest, APollThatHasJustBegunIsNotOffline) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.status().state == SyncState::current; }));
  bucket_->hang_key("versions/");
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  EXPECT_EQ(on->sync.status().offline_since, 0);
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, TriesAgainByItselfWhenTheBucketIsBack) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  bucket_->fail_key("", ErrorCode::unavailable);
  ASSERT_TRUE(eventually([&] { return on->sync.status().offline_since > 0; }));
  bucket_->heal();
  ASSERT_TRUE(eventually([&] { return on->sync.status().offline_since == 0; }));
  publish(2);
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
}

/// Regression: after running out of memory it retried at every poll, at full cost.
TEST_F(SyncTest, WhatIsNoErrorOfOursIsTriedAgainWithAPauseToo) {
  publish(1);
  reader()->sync.run_once({});
  publish(2);
  static std::atomic<int> polls, tries;
  polls = tries = 0;
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->shut = false;
  gate->stops = [](std::string_view key) {
    if (key == keys::manifest(3)) polls++;
    if (!key.starts_with("packs/")) return false;
    tries++;
    throw std::bad_alloc();
  };
  const auto on = gated_reader(gate, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return polls > 60; }));
  EXPECT_GT(tries, 0);
  EXPECT_LT(tries, polls / 3);
  expect_names(on->sync.status().error, "not enough memory");
  expect_latest(*on, 1);
}

/// Regression: this was reported as offline, and the bucket was blamed for a problem of this host.
TEST_F(SyncTest, WhoHasNoMemoryToPollIsNotOffline) {
  publish(1);
  reader()->sync.run_once({});
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->shut = false;
  static bool is_code;  // an Error with this code, as for a failed system call
  gate->stops = [](std::string_view key) {
    if (!key.starts_with("versions/")) return false;
    if (is_code) throw_errno(ENOMEM, "read " + std::string(key));
    throw std::bad_alloc();
  };
  const auto on = gated_reader(gate);
  for (const bool by_code : {false, true}) {
    is_code = by_code;
    EXPECT_EQ(round_error(*on).code(), ErrorCode::no_memory);
    const SyncStatus status = on->sync.status();
    EXPECT_EQ(status.offline_since, 0);
    EXPECT_EQ(status.state, SyncState::waiting);
    EXPECT_EQ(status.error_code, "no_memory");
    expect_names(status.error, by_code ? "Cannot allocate memory" : "give weightfs more");
  }
  expect_latest(*on, 1);
}

/// However long the history: a thousand idle hosts cost a bucket a thousand small GETs per poll.
TEST_F(SyncTest, APollOfALongHistoryIsOneGetAndNoList) {
  RepositoryBuilder builder;
  Random rng(7);
  Tree tree{{"config.json", "{}"}};
  for (int version = 1; version <= 1000; version++) {
    tree["config.json"] = "{\"step\": " + std::to_string(version) + "}";
    BuildOptions options;
    options.snapshot = version == 1000;
    builder.add(tree, options);
  }
  MemoryBucket& bucket = *builder.bucket();
  Reader reader(builder.open(), dir_ / "long", kNoFloor, {});
  reader.sync.run_once({});
  EXPECT_EQ(reader.sync.status().latest, 1000u);
  const std::uint64_t lists = bucket.calls("list");
  EXPECT_LE(lists, 3u) << "the first poll looks for the newest version, and for gaps";
  for (int poll = 0; poll < 5; poll++) {
    const std::uint64_t all = bucket.calls(), gets = bucket.calls("get");
    reader.sync.run_once({});
    EXPECT_EQ(bucket.calls() - all, 1u);
    EXPECT_EQ(bucket.calls("get") - gets, 1u);
  }
  EXPECT_EQ(bucket.calls("list"), lists);
}

/// A key without read permission must be changed by a person, so the message is there at once, and
/// the bucket is polled less often.
TEST_F(SyncTest, SaysAtOnceWhatNeedsAPersonAndAsksLessOften) {
  publish(1);
  const auto at = reader("reader", kNoFloor, often());
  at->sync.start();
  ASSERT_TRUE(eventually([&] { return at->sync.status().latest == 1; }));
  bucket_->fail_key("versions/", ErrorCode::permission);
  ASSERT_TRUE(eventually([&] { return at->sync.status().error_code == "permission"; }));
  EXPECT_NE(at->sync.status().error.find("failed on demand"), std::string::npos);
  EXPECT_NE(at->sync.status().offline_since, 0);
  for (unsigned version = 2; version < 12; version++) checkpoint(version);  // takes a while
  EXPECT_EQ(bucket_->failures(), 1u) << "the next poll is seconds away, not 2 ms";
  EXPECT_EQ(at->sync.status().latest, 1u);
}

TEST_F(SyncTest, IsAnErrorToWaitForWithNothingToShow) {
  publish(1);
  const auto on = reader();
  bucket_->fail_key("versions/", ErrorCode::unavailable);
  on->sync.start();
  EXPECT_EQ(error_of([&] { on->sync.wait_ready({}, {}); }).code(), ErrorCode::unavailable);
  on->sync.stop();

  bucket_->heal();
  const auto mend = spoil(keys::manifest(1));
  const auto other = reader("other");
  other->sync.start();
  const Error error = error_of([&] { other->sync.wait_ready({}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  expect_names(error.what(), keys::manifest(1));
}

TEST_F(SyncTest, IsReadyOnceAnErrorIsOver) {
  publish(1);
  bucket_->fail_key("versions/", ErrorCode::unavailable);
  const auto on = reader();
  EXPECT_EQ(round_error(*on).code(), ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { on->sync.wait_ready({}, {}); }).code(), ErrorCode::unavailable);
  bucket_->heal();
  on->sync.run_once({});
  on->sync.wait_ready({}, {});
  expect_latest(*on, 1);
}

}  // namespace
}  // namespace weightfs::test
