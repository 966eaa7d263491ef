// Sync: new versions, the thread, and versions published by this host.
#include "store/sync/sync.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <set>
#include <thread>

#include "store/base/error.hpp"
#include "store/catalog/catalog_builder.hpp"
#include "store/materialize/adopt.hpp"
#include "store/os/file.hpp"
#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/small_versions.hpp"

namespace weightfs::test {
namespace {

// ---- new versions ----

TEST_F(SyncTest, ShowsAnEmptyRepositoryAndThenItsFirstVersion) {
  const auto on = reader();
  EXPECT_EQ(on->sync.status().state, SyncState::starting);
  on->sync.run_once({});
  EXPECT_EQ(on->sync.catalog()->latest, 0u);
  EXPECT_TRUE(on->sync.catalog()->versions.empty());
  EXPECT_EQ(on->sync.status().state, SyncState::current);
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  publish(1);
  on->sync.run_once({});
  expect_latest(*on, 1);
}

TEST_F(SyncTest, CatchesUpSeveralVersionsInOnePass) {
  const auto on = reader();
  publish(1);
  on->sync.run_once({});
  for (unsigned version = 2; version <= 5; version++) publish(version);
  on->sync.run_once({});
  expect_latest(*on, 5);
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 5}));
}

TEST_F(SyncTest, LearnsTheRhythmOfTheRun) {
  SyncOptions options;
  options.follow.poll.interval = std::chrono::hours(1);
  const auto on = reader("reader", kNoFloor, options);
  for (unsigned version = 1; version <= 4; version++) {
    publish(version);
    on->sync.run_once({});
  }
  on->sync.start();
  publish(5);
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 5; }));
}

TEST_F(SyncTest, MovesLatestOnlyWhenEverythingIsThere) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  std::atomic<int> seen{0};
  on->sync.run_once({}, [&](std::string_view, std::uint64_t, std::uint64_t) {
    seen++;
    EXPECT_EQ(on->sync.catalog()->latest, 1u);
    EXPECT_EQ(on->sync.status().state, SyncState::fetching);
  });
  EXPECT_GT(seen, 0);
  expect_latest(*on, 2);
  EXPECT_EQ(on->host.store->manifests().newest().version, 2u);
}

TEST_F(SyncTest, TellsWhatItKnows) {
  publish(1);
  publish(2);
  const auto on = reader();
  const std::uint64_t bytes = [&] {
    std::uint64_t sum = 0;
    for (const auto& [path, content] : read_tree(checkpoint(2))) sum += content.size();
    return sum;
  }();
  on->sync.run_once({});
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.state, SyncState::current);
  EXPECT_EQ(status.latest, 2u);
  EXPECT_EQ(status.newest, 2u);
  EXPECT_GT(status.newest_time, 1'700'000'000);
  EXPECT_GE(status.checked_time, status.newest_time);
  EXPECT_EQ(status.offline_since, 0);
  EXPECT_EQ(status.error, "");
  EXPECT_GT(status.fetched_bytes, bytes);  // the snapshot, and the pack
  EXPECT_LE(status.fetched_bytes, bytes + bucket_->find(pack_of(2)).value().size());
  EXPECT_EQ(status.image_bytes, bytes);
  EXPECT_EQ(on->sync.catalog()->repository_time, status.newest_time);
  EXPECT_EQ(to_string(status.state), "current");
}

// Each LOOKUP of a number asks, and a disk that hangs must not hold it up.
TEST_F(SyncTest, TheNewestIsKnownWithoutALookAtTheImages) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  const File watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const stdfs::path images = on->sync.catalog()->versions.at(1)->directory;
  ASSERT_GE(inotify_add_watch(watch.fd(), images.c_str(), IN_OPEN), 0);
  const auto was_opened = [&] {
    std::array<char, 4096> events{};
    return read(watch.fd(), events.data(), events.size()) > 0;
  };
  (void)was_opened();
  EXPECT_EQ(on->sync.newest(), 1u);
  EXPECT_FALSE(was_opened());
  EXPECT_EQ(on->sync.status().newest, 1u);
  EXPECT_TRUE(was_opened()) << "the watch sees nothing";
}

TEST_F(SyncTest, KnowsEveryTagAlsoOfVersionsThatAreNotHere) {
  publish(1, "first");
  publish(2, "again");
  publish(3);
  publish(4, "again");
  const auto on = reader();
  on->sync.run_once({});
  EXPECT_EQ(on->sync.catalog()->tags,
            (std::map<std::string, std::uint64_t>{{"first", 1}, {"again", 4}}));
  publish(5, "first");
  on->sync.run_once({});
  EXPECT_EQ(on->sync.catalog()->tags,
            (std::map<std::string, std::uint64_t>{{"first", 5}, {"again", 4}}));
}

TEST_F(SyncTest, ReadsManyTagsAtATime) {
  const auto bucket = test::make_memory_repository();
  Host host(bucket, dir_ / "tags");
  test::commit_versions(*host.repository, 60);
  CatalogBuilder builder(*host.store, host.history);
  bucket->hang_key("versions/0000000000000000003");
  bool learned = false;
  std::jthread reading([&] { learned = builder.read_tags(60, {}, Clock::time_point::max()); });
  EXPECT_TRUE(eventually([&] { return bucket->waiting() == 10; })) << bucket->waiting();
  bucket->heal();
  reading.join();
  EXPECT_TRUE(learned);
  const auto tags = builder.make()->tags;
  EXPECT_EQ(tags.size(), 60u);
  EXPECT_EQ(tags.at("step-7"), 7u);
  EXPECT_EQ(builder.find_carrier("step-9", 60, {}), 9u);
}

TEST_F(SyncTest, ShowsTheTagTogetherWithItsVersion) {
  publish(1, "one");
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) {
      const auto catalog = on->sync.catalog();
      if (catalog->latest > 0) {
        EXPECT_TRUE(catalog->tags.contains(catalog->latest == 1 ? "one" : "two"));
      }
    }
  });
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  publish(2, "two");
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
  done = true;
  watcher.join();
}

// ---- the thread ----

TEST_F(SyncTest, FollowsThePublisherAndCanBeStoppedAndStartedAgain) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  on->sync.start();
  on->sync.wait_ready({}, {});
  expect_latest(*on, 1);
  for (unsigned version = 2; version <= 4; version++) {
    publish(version);
    ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == version; }));
  }
  on->sync.stop();
  on->sync.stop();
  publish(5);
  EXPECT_EQ(on->sync.catalog()->latest, 4u);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 5; }));
  expect_latest(*on, 5);
}

TEST_F(SyncTest, LetsAnybodyAskWhileItWorks) {
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  std::atomic<bool> done{false};
  std::vector<std::thread> askers;
  for (int i = 0; i < 3; i++) {
    askers.emplace_back([&] {
      std::uint64_t last = 0;
      while (!done) {
        const auto catalog = on->sync.catalog();
        EXPECT_GE(catalog->latest, last);
        EXPECT_TRUE(catalog->latest == 0 || catalog->versions.contains(catalog->latest));
        last = catalog->latest;
        const SyncStatus status = on->sync.status();
        EXPECT_LE(status.latest, status.newest);
      }
    });
  }
  for (unsigned version = 1; version <= 6; version++) publish(version);
  EXPECT_TRUE(eventually([&] { return on->sync.catalog()->latest == 6; }));
  on->sync.run_once({});
  done = true;
  for (std::thread& asker : askers) asker.join();
  expect_latest(*on, 6);
}

TEST_F(SyncTest, StopsInTheMiddleOfAVersion) {
  publish(1);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  const auto on = gated_reader(gate, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  publish(2);
  ASSERT_TRUE(eventually([&] { return gate->somebody_waits(); }));
  on->sync.stop();
  expect_latest(*on, 1);
  EXPECT_EQ(on->sync.status().error, "");
  gate->open();
  on->sync.run_once({});
  expect_latest(*on, 2);
}

// ---- versions published by this host ----

/// Publishes on the reader's own host, and adopts the files as images.
std::uint64_t publish_and_adopt(Reader& on, const stdfs::path& directory, const std::string& tag) {
  PublishOptions options;
  options.directory = directory;
  options.wishes.tag = tag;
  options.lock_images = true;
  const PublishResult result = on.host.publish(options);
  adopt_images(*on.host.store, result.images, directory, result.images_lock);
  return result.version;
}

TEST_F(SyncTest, ShowsAnAdoptedVersionWithItsTagThoughTheBucketIsOutOfReach) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  write_checkpoint(dir_ / "mine", 2, kSyncElements);
  const std::uint64_t version = publish_and_adopt(*on, dir_ / "mine", "step-2");
  expect_latest(*on, 1);
  const std::uint64_t calls = bucket_->calls();
  bucket_->fail_key("", ErrorCode::unavailable);
  on->sync.show(version);
  expect_latest(*on, 2);
  EXPECT_EQ(bucket_->calls(), calls);
  EXPECT_EQ(on->sync.catalog()->tags.at("step-2"), 2u);
  EXPECT_EQ(on->sync.status().newest, 2u);
  EXPECT_EQ(on->host.store->manifests().newest().version, 2u);
  EXPECT_EQ(read_tree(on->host.store->images().image_directory(2)), read_tree(dir_ / "mine"));
  bucket_->heal();
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, ShowsAnAdoptedVersionWhileARoundHangsInTheBucket) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.run_once({});
  write_checkpoint(dir_ / "mine", 2, kSyncElements);
  PublishOptions options;
  options.directory = dir_ / "mine";
  options.lock_images = true;
  const PublishResult result = on->host.publish(options);
  bucket_->hang_key(keys::manifest(3));
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  adopt_images(*on->host.store, result.images, dir_ / "mine", result.images_lock);
  on->sync.show(2);
  EXPECT_EQ(bucket_->waiting(), 1);
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.status().newest, 2u);
  bucket_->heal();
  EXPECT_TRUE(eventually([&] { return on->sync.status().state == SyncState::current; }));
}

TEST_F(SyncTest, ShowsTheFirstVersionOfItsOwnHost) {
  const auto on = reader();
  on->sync.run_once({});
  write_checkpoint(dir_ / "mine", 1, kSyncElements);
  on->sync.show(publish_and_adopt(*on, dir_ / "mine", ""));
  expect_latest(*on, 1);
  EXPECT_EQ(on->sync.status().newest, 1u);
  on->sync.wait_ready({}, {});
}

TEST_F(SyncTest, DoesNotFetchAVersionThatItsHostIsAboutToAdopt) {
  publish(1);
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  for (unsigned version = 2; version <= 4; version++) {
    write_checkpoint(dir_ / "mine", version, kSyncElements);
    PublishOptions options;
    options.directory = dir_ / "mine";
    options.lock_images = true;
    PublishResult result = on->host.publish(options);
    // The sync sees the version, and waits.
    ASSERT_TRUE(eventually([&] { return on->sync.status().newest == version; }));
    adopt_images(*on->host.store, result.images, dir_ / "mine", result.images_lock);
    result.images_lock.unlock();
    ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == version; }));
    EXPECT_EQ(
        stdfs::hard_link_count(on->host.store->images().image_directory(version) / "config.json"),
        2u);
    stdfs::remove_all(dir_ / "mine");
  }
}

TEST_F(SyncTest, HidesAVersionThatOthersWantToRemoveUnlessItIsTheLatest) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  on->sync.run_once({});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 2}));
  EXPECT_FALSE(on->host.store->evictor().evict(2));
  {
    const File open = File::open(
        on->host.store->images().image_directory(1) / "model-00001-of-00002.safetensors", O_RDONLY);
    EXPECT_FALSE(on->host.store->evictor().evict(1));
    EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 2}));
  }
  EXPECT_TRUE(on->host.store->evictor().evict(1));
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2}));
  EXPECT_FALSE(on->host.store->images().is_complete(1));
  on->sync.show(2);
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2}));
}

TEST_F(SyncTest, GivesUpWaitingAtTheDeadlineOrWhenStopped) {
  publish(1);
  publish(2);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  const auto on = gated_reader(gate, often());
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return gate->somebody_waits(); }));
  const Context soon = Context{}.within(milliseconds(1));
  EXPECT_EQ(error_of([&] { on->sync.wait_ready(soon, {}); }).code(), ErrorCode::timed_out);
  std::stop_source source;
  source.request_stop();
  const Context stopped{source.get_token(), Clock::time_point::max()};
  EXPECT_EQ(error_of([&] { on->sync.wait_ready(stopped, {}); }).code(), ErrorCode::cancelled);
  gate->open();
  on->sync.wait_ready({}, {});
  expect_latest(*on, 2);
}

}  // namespace
}  // namespace weightfs::test
