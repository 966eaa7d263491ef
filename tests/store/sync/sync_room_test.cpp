// Sync: a store without room, partial versions, and eviction beside all else.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "store/base/error.hpp"
#include "store/catalog/catalog_builder.hpp"
#include "store/sync/sync.hpp"
#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/told_guard.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs::test {
namespace {

// ---- room ----

/// Room for this many tenths of a version.
StoreLimits room_for(const stdfs::path& checkpoint, std::uint64_t tenths) {
  std::uint64_t bytes = 0;
  for (const auto& [path, content] : read_tree(checkpoint)) bytes += content.size();
  return {bytes * tenths / 10, 0};
}

TEST_F(SyncTest, StaysAndSaysSoIfThereIsNoRoom) {
  publish(1);
  const auto on = reader("reader", room_for(checkpoint(1), 15));
  on->sync.run_once({});
  publish(2);
  const Error error = round_error(*on);
  EXPECT_EQ(error.code(), ErrorCode::no_space) << error.what();
  EXPECT_EQ(on->sync.status().error_code, "no_space");
  EXPECT_EQ(on->sync.status().state, SyncState::waiting);
  EXPECT_EQ(on->sync.status().offline_since, 0);
  EXPECT_EQ(on->versions(), std::set<std::uint64_t>{1});
  expect_latest(*on, 1);
}

TEST_F(SyncTest, RemovesOldVersionsButNeverLatestOrOneThatIsRead) {
  const auto on = reader("reader", room_for(checkpoint(1), 25));
  for (unsigned version = 1; version <= 3; version++) {
    publish(version);
    on->sync.run_once({});
  }
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2, 3}));
  {
    const File open = File::open(
        on->host.store->images().image_directory(2) / "model-00001-of-00002.safetensors", O_RDONLY);
    publish(4);
    on->sync.run_once({});
    EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2, 3, 4}));
  }
  publish(5);
  on->sync.run_once({});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{4, 5}));
  EXPECT_FALSE(stdfs::exists(on->host.store->images().image_directory(2)));
  expect_latest(*on, 5);
}

TEST_F(SyncTest, HidesAVersionBeforeItAsksWhetherItIsInUseAndShowsItAgainIfItIs) {
  std::vector<std::uint64_t> asked;
  bool free = false;
  const auto on = reader("reader", room_for(checkpoint(1), 25));
  const ToldGuard guard(on->host.store->eviction(), {.release = [&](std::uint64_t version) {
                          asked.push_back(version);
                          EXPECT_FALSE(on->versions().contains(version));
                          EXPECT_NE(on->sync.catalog()->latest, version);
                          return free;
                        }});
  for (unsigned version = 1; version <= 3; version++) {
    publish(version);
    on->sync.run_once({});
  }
  EXPECT_EQ(asked, std::vector<std::uint64_t>{1});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 2, 3}));
  free = true;
  publish(4);
  on->sync.run_once({});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{3, 4}));
}

TEST_F(SyncTest, AVersionThatIsKeptIsNotEvenHidden) {
  std::vector<std::uint64_t> released;
  std::uint64_t kept = 1;
  const auto on = reader("reader", room_for(checkpoint(1), 25));
  GuardAnswers answers;
  answers.release = [&](std::uint64_t version) {
    released.push_back(version);
    return true;
  };
  answers.keeps = [&](std::uint64_t version) {
    EXPECT_TRUE(version != kept || on->versions().contains(version));
    return version == kept;
  };
  const ToldGuard guard(on->host.store->eviction(), answers);
  for (unsigned version = 1; version <= 4; version++) {
    publish(version);
    on->sync.run_once({});
  }
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 3, 4}));
  EXPECT_EQ(released, std::vector<std::uint64_t>{2});
  kept = 0;
  publish(5);
  on->sync.run_once({});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{4, 5}));
}

TEST_F(SyncTest, AVersionThatIsPinnedWhileItIsHiddenIsShownAgain) {
  const auto on = reader("reader", room_for(checkpoint(1), 25));
  unsigned asked = 0;
  const ToldGuard guard(on->host.store->eviction(),
                        {.keeps = [&](std::uint64_t) { return ++asked == 2; }});
  for (unsigned version = 1; version <= 3; version++) {
    publish(version);
    on->sync.run_once({});
  }
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(asked, 2u);
}

TEST_F(SyncTest, AVersionIsWithdrawnBeforeItIsHiddenAndRestoredIfItStays) {
  const auto on = reader("reader", room_for(checkpoint(1), 25));
  std::vector<std::string> calls;
  bool may_withdraw = false, free = false;
  GuardAnswers answers;
  answers.withdraw = [&](std::uint64_t version) {
    EXPECT_TRUE(on->versions().contains(version));
    calls.push_back("withdraw");
    return may_withdraw;
  };
  answers.release = [&](std::uint64_t version) {
    EXPECT_FALSE(on->versions().contains(version));
    calls.push_back("release");
    return free;
  };
  answers.restore = [&](std::uint64_t version) {
    EXPECT_TRUE(on->versions().contains(version));
    calls.push_back("restore");
  };
  const ToldGuard guard(on->host.store->eviction(), answers);
  const auto next = [&](unsigned version) {
    calls.clear();
    publish(version);
    on->sync.run_once({});
    return calls;
  };
  next(1);
  next(2);
  using Calls = std::vector<std::string>;
  EXPECT_EQ(next(3), (Calls{"withdraw"}));
  EXPECT_TRUE(on->versions().contains(1));
  may_withdraw = true;
  EXPECT_EQ(next(4).front(), "withdraw");
  EXPECT_EQ(calls.at(1), "release");
  EXPECT_EQ(calls.at(2), "restore");
  EXPECT_TRUE(on->versions().contains(1));
  free = true;
  next(5);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "restore"), 0);
  EXPECT_FALSE(on->versions().contains(1));
}

TEST_F(SyncTest, AVersionIsPreparedBeforeLatestMovesToIt) {
  auto on = reader();
  std::vector<std::uint64_t> prepared;
  auto listening = on->sync.listen({.prepare = [&](const CatalogVersion& version) {
    const std::uint64_t number = version.number;
    prepared.push_back(number);
    EXPECT_TRUE(on->versions().contains(number));
    EXPECT_EQ(on->sync.catalog()->latest, number - 1);
    EXPECT_EQ(read_tree(version.directory), read_tree(checkpoint(static_cast<unsigned>(number))));
  }});
  for (unsigned version = 1; version <= 3; version++) {
    publish(version);
    on->sync.run_once({});
    on->sync.run_once({});
    EXPECT_EQ(on->sync.catalog()->latest, version);
  }
  EXPECT_EQ(prepared, (std::vector<std::uint64_t>{1, 2, 3}));
  listening.end();
  on.reset();
  const auto again = reader();
  EXPECT_EQ(again->sync.catalog()->latest, 3u) << "what was there is shown at once";
  const auto none = again->sync.listen(
      {.prepare = [](const CatalogVersion& version) { FAIL() << version.number; }});
  again->sync.run_once({});
}

// ---- partial versions ----

SyncOptions filling() {
  SyncOptions options;
  options.follow.poll.interval = milliseconds(2);
  options.partial = true;
  return options;
}

bool has_complete(const Reader& on, std::uint64_t version) {
  return on.sync.catalog()->versions.contains(version);
}

TEST_F(SyncTest, ShowsTheFirstVersionWhileItIsFilledAndNothingNewerUntilItIsComplete) {
  publish(1);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->stops = is_snapshot_data;
  const auto on = gated_reader(gate, filling());
  on->sync.run_once({});
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  publish(2);
  on->sync.run_once({});
  const auto catalog = on->sync.catalog();
  EXPECT_EQ(catalog->latest, 1u);
  EXPECT_TRUE(catalog->versions.empty());
  ASSERT_TRUE(catalog->incomplete.contains(1));
  EXPECT_EQ(catalog->incomplete.at(1).state, ImageState::partial);
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.state, SyncState::fetching);
  EXPECT_EQ(status.newest, 2u);
  ASSERT_EQ(status.partial.size(), 1u);
  EXPECT_LT(status.partial.at(1).bytes_here, status.partial.at(1).bytes);
  gate->open();
  ASSERT_TRUE(
      eventually([&] { return has_complete(*on, 1) && on->sync.find_partial(1) == nullptr; }));
  EXPECT_TRUE(on->sync.catalog()->incomplete.empty());
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, GoesOnByItselfWhenTheFirstVersionIsComplete) {
  publish(1);
  SyncOptions options = filling();
  options.follow.poll.interval = std::chrono::hours(1);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->stops = is_snapshot_data;
  const auto on = gated_reader(gate, options);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  publish(2);
  gate->open();
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
}

// Somebody removed a file of it, say: it would hold up all later ones until a restart.
TEST_F(SyncTest, AFirstVersionThatCannotBeRecordedHoldsUpNoLaterOne) {
  publish(1);
  SyncOptions options = filling();
  options.follow.poll.interval = std::chrono::milliseconds(50);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->stops = is_snapshot_data;
  const auto on = gated_reader(gate, options);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  const auto lost = on->host.store->images().image_directory(1) / "config.json";
  ASSERT_TRUE(eventually([&] {
    const auto first = on->sync.find_partial(1);
    return first && first->is_here("config.json");
  }));
  ASSERT_TRUE(std::filesystem::remove(lost));
  gate->open();
  EXPECT_TRUE(eventually([&] { return !on->sync.status().error.empty(); }));
  publish(2);
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
}

TEST_F(SyncTest, FillsNothingOfWhatTheStoreHas) {
  publish(1);
  reader()->sync.run_once({});
  publish(2);
  const auto on = reader("reader", kNoFloor, filling());
  EXPECT_EQ(on->sync.catalog()->latest, 1u);
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_TRUE(on->sync.status().partial.empty());
}

TEST_F(SyncTest, NamesWhatIsNotHereAndFillsItWhenItIsAskedFor) {
  for (unsigned version = 1; version <= 3; version++) publish(version);
  const auto on = reader("reader", kNoFloor, filling());
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 3); }));
  EXPECT_EQ(on->sync.catalog()->find(2), nullptr);
  on->sync.name_version(2, {});
  const auto named = on->sync.catalog();
  ASSERT_NE(named->find(2), nullptr);
  EXPECT_EQ(named->incomplete.at(2).state, ImageState::absent);
  EXPECT_EQ(named->find(2)->entries.at(1).image, ImageState::absent);
  EXPECT_EQ(named->latest, 3u);
  EXPECT_EQ(error_of([&] { on->sync.name_version(9, {}); }).code(), ErrorCode::not_found);

  EXPECT_NE(on->sync.fill_version(2, {}), nullptr);
  const auto filled = on->sync.catalog();  // it may be complete by now
  EXPECT_EQ(filled->incomplete.contains(2), !filled->versions.contains(2));
  if (filled->incomplete.contains(2)) {
    EXPECT_EQ(filled->incomplete.at(2).state, ImageState::partial);
  }
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2); }));
  EXPECT_EQ(read_tree(on->sync.catalog()->versions.at(2)->directory), read_tree(checkpoint(2)));
  // It is shown a moment before it leaves the list of those that are filled.
  EXPECT_TRUE(eventually([&] { return on->sync.fill_version(2, {}) == nullptr; }));
  EXPECT_EQ(on->sync.catalog()->latest, 3u);
  on->sync.start();
  on->sync.ask_for(1);
  EXPECT_TRUE(eventually([&] { return has_complete(*on, 1); }));
}

// Each of them cost a poll that waited for the dead bucket, and the last one another.
TEST_F(SyncTest, AllThatWereAskedForAreTriedAfterOnePollOfABucketThatIsAway) {
  for (unsigned version = 1; version <= 3; version++) publish(version);
  reader()->sync.run_once({});
  auto watched = std::make_unique<WatchedBucket>(bucket_);
  const WatchedBucket& bucket = *watched;
  SyncOptions options = filling();
  options.follow.poll.interval = std::chrono::hours(1);
  Reader on(Repository::open(std::move(watched), {}), dir_ / "reader", kNoFloor, options);
  on.sync.run_once({});
  ASSERT_TRUE(has_complete(on, 3));
  bucket_->fail_key("", ErrorCode::unavailable);
  const auto polls = [&, before = bucket.gets(keys::manifest(4)).size()] {
    return bucket.gets(keys::manifest(4)).size() - before;
  };
  const auto wait_unfilled = [&](std::uint64_t version) {
    ASSERT_TRUE(eventually([&] {
      const auto partial = on.sync.status().partial;
      const auto found = partial.find(version);
      return found != partial.end() && found->second.error;
    }));
  };
  on.sync.ask_for(1);
  on.sync.ask_for(2);
  on.sync.start();
  wait_unfilled(1);
  wait_unfilled(2);
  EXPECT_EQ(polls(), 1u);
  on.sync.ask_for(1);
  wait_unfilled(1);
  EXPECT_EQ(polls(), 2u);
}

TEST_F(SyncTest, OfThoseThatWereNamedTheLastOnesStay) {
  publish(1);
  const auto on = reader("reader", kNoFloor, filling());
  CatalogBuilder builder(*on->host.store, on->host.history);
  for (unsigned version = 2; version <= 4; version++) publish(version);
  for (unsigned version = 1; version <= 4; version++) builder.name(version, {}, 2);
  builder.name(3, {}, 2);
  const auto catalog = builder.make();
  EXPECT_EQ(catalog->incomplete.size(), 2u);
  EXPECT_TRUE(catalog->incomplete.contains(3));
  EXPECT_TRUE(catalog->incomplete.contains(4));
}

TEST_F(SyncTest, WhatDidNotExistWhenItWasAskedForIsNotLackingOnceItDoes) {
  publish(1);
  reader()->sync.run_once({});
  const auto on = reader("reader", kNoFloor, filling());
  on->sync.run_once({});
  const auto lacks = [&](std::uint64_t version) {
    const auto partial = on->sync.status().partial;
    const auto found = partial.find(version);
    return found != partial.end() && found->second.error.has_value();
  };
  for (unsigned version = 2; version <= 4; version++) {
    EXPECT_THROW((void)on->sync.fill_version(version, {}), Error);
    EXPECT_TRUE(lacks(version));
  }
  for (unsigned version = 2; version <= 4; version++) publish(version);
  on->sync.show(3);  // as a publisher does, before a poll
  EXPECT_FALSE(lacks(2) || lacks(3));
  EXPECT_TRUE(lacks(4));
  on->sync.run_once({});
  EXPECT_FALSE(lacks(4));
}

TEST_F(SyncTest, SaysWhyWhatWasAskedForCannotBeHad) {
  for (unsigned version = 1; version <= 3; version++) publish(version);
  const auto on = reader("reader", kNoFloor, filling());
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 3); }));
  const std::string pack = pack_of(2);
  bucket_->remove(pack, {});
  on->sync.start();
  on->sync.ask_for(2);
  ASSERT_TRUE(eventually([&] { return on->sync.status().partial.contains(2); }));
  ASSERT_TRUE(eventually([&] { return on->sync.status().partial[2].error.has_value(); }));
  const SyncStatus status = on->sync.status();
  EXPECT_TRUE(status.partial.at(2).is_damaged);
  expect_names(status.partial.at(2).error->what(), pack);
  EXPECT_EQ(status.error, "");
}

// It was "still being filled" until a later version came: `wait --replicas` never opened.
TEST_F(SyncTest, AVersionThatComesWholeIsNoLongerUnfilled) {
  publish(1);
  reader()->sync.run_once({});
  publish(2);
  const auto on = reader("reader", kNoFloor, filling());
  const std::string pack = pack_of(2);
  bucket_->fail_key(pack, ErrorCode::unavailable);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::unavailable);
  EXPECT_THROW((void)on->sync.fill_version(2, {}), Error);
  EXPECT_TRUE(on->sync.status().partial.contains(2));
  bucket_->heal();
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_TRUE(on->sync.status().partial.empty());
}

// ---- eviction ----

/// `latest` of every catalog so far, 0 for none.
class LatestLog {
 public:
  void note(const std::shared_ptr<const Catalog>& catalog) {
    const std::lock_guard lock(mutex_);
    if (catalog && (seen_.empty() || seen_.back() != catalog->latest))
      seen_.push_back(catalog->latest);
  }
  [[nodiscard]] std::vector<std::uint64_t> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> seen_;
};

TEST_F(SyncTest, WhatLatestIsAboutToNameIsNotEvictedForAnOlderVersion) {
  std::unique_ptr<Reader> on;
  std::atomic<std::uint64_t> prepared = 0;
  CatalogListener listener;
  listener.prepare = [&](const CatalogVersion& version) {
    if (version.number < 3 || prepared != 0) return;
    prepared = version.number;
    // A reader opens an old version at this moment: there is room for two.
    EXPECT_EQ(on->sync.catalog()->latest, 2u);
    EXPECT_EQ(error_of([&] { on->sync.fill_version(1, {}); }).code(), ErrorCode::no_space);
    EXPECT_TRUE(on->host.store->images().is_complete(version.number));
  };
  LatestLog log;
  listener.changed = [&] { log.note(on->sync.catalog()); };
  publish(1);
  publish(2);
  on = reader("reader", room_for(checkpoint(1), 25), filling());
  const auto listening = on->sync.listen(listener);
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2); }));
  on->sync.name_version(1, {});
  publish(3);
  on->sync.run_once({});
  EXPECT_EQ(prepared.load(), 3u);
  expect_latest(*on, 3);
  const auto seen = log.seen();
  const auto first = std::find_if(seen.begin(), seen.end(), [](auto latest) { return latest > 0; });
  EXPECT_EQ(std::vector(first, seen.end()), (std::vector<std::uint64_t>{2, 3}));
}

TEST_F(SyncTest, NothingIsPreparedWhileRoomIsMade) {
  std::unique_ptr<Reader> on;
  std::atomic<int> prepared = 0;  // by two threads: who fills a version shows a catalog too
  CatalogListener listener;
  listener.prepare = [&](const CatalogVersion& version) {
    if (version.number < 4) return;
    // Preparing may take a moment, during which others must not be blocked.  Who fills another
    // version may have the lock for a moment.
    const Context soon = Context{}.within(std::chrono::seconds(30));
    EXPECT_NO_THROW(static_cast<void>(on->host.store->images().lock_images(soon)));
    if (prepared++ > 0) return;
    // A reader opens an old version at this moment, and there is room for three.
    EXPECT_NE(on->sync.fill_version(1, {}), nullptr);
    EXPECT_FALSE(on->host.store->images().is_complete(2));
  };
  publish(1);
  publish(2);
  on = reader("reader", room_for(checkpoint(1), 35), filling());
  const auto listening = on->sync.listen(listener);
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2); }));
  publish(3);
  on->sync.run_once({});
  on->sync.name_version(1, {});
  publish(4);
  on->sync.run_once({});
  EXPECT_GT(prepared.load(), 0);
  expect_latest(*on, 4);
}

TEST_F(SyncTest, WhatIsFilledByNameStaysListedThoughTheDiskWasFullWhenItWasHeardOf) {
  std::atomic<std::uint64_t> free_bytes = 1ull << 40;
  SyncOptions options = filling();
  options.follow.what = {.kind = Follow::Kind::version, .version = 1};
  publish(1);
  Reader on(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "reader", kNoFloor,
            options, [&] {
              return Space{free_bytes, 1ull << 41};
            });
  on.sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(on, 1); }));
  free_bytes = 0;
  publish(2);
  on.sync.run_once({});
  ASSERT_EQ(on.sync.status().newest, 2u);
  ASSERT_EQ(on.host.store->manifests().newest().version, 1u) << "it could be recorded";
  free_bytes = 1ull << 40;
  on.sync.name_version(2, {});
  {
    const auto reserved = on.sync.reserve(2, {});
    on.sync.fill_version(2, {});
  }
  ASSERT_TRUE(eventually([&] { return on.sync.find_partial(2) == nullptr; }));
  ASSERT_TRUE(on.host.store->images().is_complete(2));
  EXPECT_TRUE(eventually([&] { return has_complete(on, 2); }));
  EXPECT_EQ(on.sync.catalog()->latest, 1u);
}

TEST_F(SyncTest, LatestThatLostItsImagesStaysAndIsFetchedAgain) {
  publish(1);
  publish(2);
  const auto on = reader("reader", kNoFloor, filling());
  on->sync.run_once({});
  // Its filling ends a moment after it is complete.
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2) && !on->sync.find_partial(2); }));
  on->host.store->images().remove_images(2);
  on->sync.name_version(1, {});  // makes a new catalog
  EXPECT_EQ(on->sync.catalog()->latest, 2u);
  EXPECT_EQ(on->sync.catalog()->incomplete.at(2).state, ImageState::absent);
  on->sync.run_once({});
  expect_latest(*on, 2);
}

/// A reader with room for this many tenths of a version; snapshot data no longer arrive.
class FullHostTest : public SyncTest {
 protected:
  void begin(unsigned versions, std::uint64_t tenths) {
    for (unsigned version = 1; version <= versions; version++) publish(version);
    gate_->stops = is_snapshot_data;
    gate_->open();
    on_ = gated_reader(gate_, filling(), room_for(checkpoint(1), tenths));
    on_->sync.run_once({});
    ASSERT_TRUE(eventually([&] { return has_complete(*on_, versions); }));
    gate_->set_shut(true);
  }
  std::shared_ptr<PartialVersion> open(std::uint64_t version) {
    on_->sync.name_version(version, {});
    const auto reserved = on_->sync.reserve(version, {});
    return on_->sync.fill_version(version, {});
  }

  std::shared_ptr<GatedBucket::Gate> gate_ = std::make_shared<GatedBucket::Gate>();
  std::unique_ptr<Reader> on_;
};

TEST_F(FullHostTest, OldVersionsThatCannotBeFilledDoNotHoldUpLatest) {
  begin(3, 35);
  for (const std::uint64_t version : {1u, 2u}) EXPECT_NE(open(version), nullptr);
  publish(4);
  on_->sync.run_once({});
  expect_latest(*on_, 4);
  publish(5);
  on_->sync.run_once({});
  expect_latest(*on_, 5);
  EXPECT_EQ(on_->sync.status().error, "");
}

TEST_F(FullHostTest, ManyOldVersionsCanBeLookedIntoOneAfterAnother) {
  begin(8, 25);
  for (int round = 0; round < 2; round++) {
    for (std::uint64_t version = 1; version < 8; version++) {
      EXPECT_NE(open(version), nullptr);
      EXPECT_EQ(on_->sync.catalog()->incomplete.at(version).state, ImageState::partial);
      // A moment after its files were removed by another thread one may still be named.
      EXPECT_TRUE(eventually([&] { return on_->sync.status().partial.size() <= 1; }));
    }
  }
  expect_latest(*on_, 8);
}

TEST_F(FullHostTest, StatusSaysWhyAVersionCannotBeOpened) {
  begin(2, 15);
  const Error error = error_of([&] { open(1); });
  EXPECT_EQ(error.code(), ErrorCode::no_space);
  expect_names(error.what(), "--store-size");
  ASSERT_TRUE(on_->sync.status().partial.contains(1));
  EXPECT_STREQ(on_->sync.status().partial.at(1).error->what(), error.what());
  expect_latest(*on_, 2);
}

TEST_F(SyncTest, AFileThatBecomesCompleteCostsNoCatalog) {
  constexpr int kFiles = 300;
  const stdfs::path directory = dir_ / "many";
  for (int i = 0; i < kFiles; i++) {
    write_text(directory / ("part-" + std::to_string(i) + ".safetensors"),
               make_safetensors({{"t" + std::to_string(i), Dtype::u8, {4}, Bytes(4)}}));
  }
  publisher_.publish(directory);
  std::atomic<int> catalogs = 0;
  const auto on = reader("reader", kNoFloor, filling());
  const auto listening = on->sync.listen({.changed = [&] { catalogs++; }});
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 1); }));
  EXPECT_LT(catalogs, 20);
}

}  // namespace
}  // namespace weightfs::test
