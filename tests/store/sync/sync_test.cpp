#include "store/sync/sync.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <thread>

#include "store/base/error.hpp"
#include "store/materialize/adopt.hpp"
#include "store/sync/catalog_builder.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/small_versions.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using SyncState = SyncStatus::State;
using std::chrono::milliseconds;

constexpr std::size_t kSyncElements = 50'000;

/// The bytes of a snapshot's files.
bool is_snapshot_data(std::string_view key) {
  return key.starts_with("snapshots/") && !key.ends_with("/.hashes");
}

/// A view of a bucket whose packs, or what else is said, do not come while it is shut.
class GatedBucket final : public Bucket {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable_any moved;
    bool shut = true;
    int waiting = 0;
    bool (*stops)(std::string_view key) = [](std::string_view key) {
      return key.starts_with("packs/");
    };

    void open() { set_shut(false); }
    void set_shut(bool is_shut) {
      {
        const std::lock_guard lock(mutex);
        shut = is_shut;
      }
      moved.notify_all();
    }
    bool somebody_waits() {
      const std::lock_guard lock(mutex);
      return waiting > 0;
    }
  };

  GatedBucket(std::shared_ptr<MemoryBucket> bucket, std::shared_ptr<Gate> gate)
      : bucket_(std::move(bucket)), gate_(std::move(gate)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    if (gate_->stops(key)) {
      std::unique_lock lock(gate_->mutex);
      gate_->waiting++;
      gate_->moved.wait(lock, context.stop, [this] { return !gate_->shut; });
      gate_->waiting--;
    }
    context.check("reading " + std::string(key));
    return bucket_.get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    bucket_.put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    return bucket_.put_if_absent(key, bytes, context);
  }
  std::vector<std::string> list(std::string_view prefix, std::string_view after,
                                const Context& context) override {
    return bucket_.list(prefix, after, context);
  }
  void remove(std::string_view key, const Context& context) override {
    bucket_.remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_.url(); }

 private:
  BucketView bucket_;
  std::shared_ptr<Gate> gate_;
};

/// A host that follows a repository.
struct Reader {
  Reader(std::unique_ptr<Repository> repository, const stdfs::path& store, StoreLimits limits,
         SyncOptions options, std::function<Space()> space = {})
      : host(std::move(repository), store, limits, std::move(space)),
        sync(*host.store, host.history, std::move(options)) {}

  [[nodiscard]] std::set<std::uint64_t> versions() const {
    std::set<std::uint64_t> numbers;
    for (const auto& [number, version] : sync.catalog()->versions) numbers.insert(number);
    return numbers;
  }

  Host host;
  Sync sync;
};

/// A publisher, and readers of what it publishes.
class SyncTest : public testing::Test {
 protected:
  std::unique_ptr<Reader> reader(const std::string& name = "reader", StoreLimits limits = kNoFloor,
                                 SyncOptions options = {}) {
    return std::make_unique<Reader>(Repository::open(std::make_unique<BucketView>(bucket_), {}),
                                    dir_ / name, limits, std::move(options));
  }
  std::unique_ptr<Reader> gated_reader(const std::shared_ptr<GatedBucket::Gate>& gate,
                                       SyncOptions options = {}, StoreLimits limits = kNoFloor) {
    return std::make_unique<Reader>(
        Repository::open(std::make_unique<GatedBucket>(bucket_, gate), {}), dir_ / "reader", limits,
        std::move(options));
  }
  /// On the store of reader(), but the bucket is not there.
  std::unique_ptr<Reader> offline_reader(const std::string& name = "reader") {
    const std::string url = "file://" + (dir_ / "no-bucket").string();
    return std::make_unique<Reader>(Repository::assume(url, publisher_.repository->id()),
                                    dir_ / name, kNoFloor, SyncOptions{});
  }
  static SyncOptions often() {
    SyncOptions options;
    options.follow.poll = milliseconds(2);
    return options;
  }

  stdfs::path checkpoint(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version, kSyncElements);
    return directory;
  }
  void publish(unsigned version, const std::string& tag = "") {
    ASSERT_EQ(publisher_.publish(checkpoint(version), tag).version, version);
  }

  std::string pack_of(std::uint64_t version) {
    for (const auto& [key, bytes] : bucket_->objects()) {
      if (key.starts_with("packs/" + std::to_string(version) + "/")) return key;
    }
    ADD_FAILURE() << "version " << version << " has no pack";
    return "";
  }
  /// Flips a bit of an object.  Returns: what mends it.
  std::function<void()> spoil(const std::string& key) {
    const std::string good = bucket_->find(key).value();
    std::string bad = good;
    bad.back() = static_cast<char>(bad.back() ^ 1);
    bucket_->replace(key, bad);
    return [this, key, good] { bucket_->replace(key, good); };
  }

  Error round_error(Reader& on) {
    return error_of([&] { on.sync.run_once({}); });
  }

  /// What readers see: `latest`, and every byte of it.
  void expect_latest(Reader& on, unsigned version) {
    const auto catalog = on.sync.catalog();
    ASSERT_EQ(catalog->latest, version);
    EXPECT_EQ(on.sync.status().latest, version);
    ASSERT_TRUE(catalog->versions.contains(version));
    EXPECT_EQ(read_tree(catalog->versions.at(version)->directory), read_tree(checkpoint(version)));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
};

void expect_names(const std::string& message, const std::string& object) {
  EXPECT_NE(message.find(object), std::string::npos) << message << "\n  does not name " << object;
}

// ---- news ----

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
  EXPECT_EQ(on->host.store->newest().version, 2u);
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

TEST_F(SyncTest, ShowsAColdHostTheNewestVersionThatCanBeMade) {
  for (unsigned version = 1; version <= 3; version++) publish(version);
  const auto mend = spoil(pack_of(3));
  const auto on = reader();
  on->sync.start();
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  expect_latest(*on, 2);
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
    static_cast<void>(round_error(*on));  // brings in version 2; the trouble may come next time
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

TEST_F(SyncTest, HealsABaseThatRotted) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  publish(2);
  const auto image = on->host.store->image_directory(1) / "model-00001-of-00002.safetensors";
  std::string bytes = read_text(image);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  stdfs::permissions(image, stdfs::perms::owner_write, stdfs::perm_options::add);
  write_text(image, bytes);
  on->sync.run_once({});
  expect_latest(*on, 2);
}

// ---- without the bucket ----

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
    const auto version = on->host.history.get(1, {});
    on->host.store->put_layout(version->manifest.layout.sha256, "rotten");
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

/// A directory that is gone holds no version N + 1 either: that must not look like "nothing new".
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

/// What ran out of memory was once tried again at every poll, at its full cost.
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

/// It was called offline, and the bucket was looked at for what this host lacked.
TEST_F(SyncTest, WhoHasNoMemoryToPollIsNotOffline) {
  publish(1);
  reader()->sync.run_once({});
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->shut = false;
  static bool is_code;  // an Error with it, as of a system call that failed
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

/// However long the history is: a thousand idle hosts cost a bucket a thousand small GETs a poll.
TEST_F(SyncTest, APollOfALongHistoryIsOneGetAndNoList) {
  RepositoryBuilder builder;
  std::mt19937_64 rng(7);
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
  EXPECT_EQ(bucket.calls("list"), 1u) << "the first poll looks for gaps";
  for (int poll = 0; poll < 5; poll++) {
    const std::uint64_t all = bucket.calls(), gets = bucket.calls("get");
    reader.sync.run_once({});
    EXPECT_EQ(bucket.calls() - all, 1u);
    EXPECT_EQ(bucket.calls("get") - gets, 1u);
  }
  EXPECT_EQ(bucket.calls("list"), 1u);
}

/// A key that may not read: somebody has to change it, so the words are there at once, and the
/// bucket is left in peace.
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

// ---- room ----

/// Room for so many tenths of a version.
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
        on->host.store->image_directory(2) / "model-00001-of-00002.safetensors", O_RDONLY);
    publish(4);
    on->sync.run_once({});
    EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2, 3, 4}));
  }
  publish(5);
  on->sync.run_once({});
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{4, 5}));
  EXPECT_FALSE(stdfs::exists(on->host.store->image_directory(2)));
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

// ---- versions of this host's own ----

/// Publishes on a reader's own host, and makes the files its images.
std::uint64_t publish_and_adopt(Reader& on, const stdfs::path& directory, const std::string& tag) {
  PublishOptions options;
  options.directory = directory;
  options.tag = tag;
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
  EXPECT_EQ(on->host.store->newest().version, 2u);
  EXPECT_EQ(read_tree(on->host.store->image_directory(2)), read_tree(dir_ / "mine"));
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
    // It sees the version, and waits.
    ASSERT_TRUE(eventually([&] { return on->sync.status().newest == version; }));
    adopt_images(*on->host.store, result.images, dir_ / "mine", result.images_lock);
    result.images_lock.unlock();
    ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == version; }));
    EXPECT_EQ(stdfs::hard_link_count(on->host.store->image_directory(version) / "config.json"), 2u);
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
        on->host.store->image_directory(1) / "model-00001-of-00002.safetensors", O_RDONLY);
    EXPECT_FALSE(on->host.store->evictor().evict(1));
    EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{1, 2}));
  }
  EXPECT_TRUE(on->host.store->evictor().evict(1));
  EXPECT_EQ(on->versions(), (std::set<std::uint64_t>{2}));
  EXPECT_FALSE(on->host.store->is_complete(1));
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

// ---- versions that are filled while they are read ----

SyncOptions filling() {
  SyncOptions options;
  options.follow.poll = milliseconds(2);
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
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 1); }));
  EXPECT_TRUE(on->sync.catalog()->incomplete.empty());
  on->sync.run_once({});
  expect_latest(*on, 2);
  EXPECT_EQ(on->sync.status().state, SyncState::current);
}

TEST_F(SyncTest, GoesOnByItselfWhenTheFirstVersionIsComplete) {
  publish(1);
  SyncOptions options = filling();
  options.follow.poll = std::chrono::hours(1);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->stops = is_snapshot_data;
  const auto on = gated_reader(gate, options);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 1; }));
  publish(2);
  gate->open();
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
  EXPECT_EQ(on->sync.catalog()->incomplete.at(2).state, ImageState::partial);
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2); }));
  EXPECT_EQ(read_tree(on->sync.catalog()->versions.at(2)->directory), read_tree(checkpoint(2)));
  EXPECT_EQ(on->sync.fill_version(2, {}), nullptr);
  EXPECT_EQ(on->sync.catalog()->latest, 3u);
  on->sync.start();
  on->sync.ask_for(1);
  EXPECT_TRUE(eventually([&] { return has_complete(*on, 1); }));
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

// ---- eviction ----

/// `latest` of every catalog that there was, 0 for none.
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
  std::uint64_t prepared = 0;
  CatalogListener listener;
  listener.prepare = [&](const CatalogVersion& version) {
    if (version.number < 3 || prepared != 0) return;
    prepared = version.number;
    // A reader opens an old version just now: there is room for two.
    EXPECT_EQ(on->sync.catalog()->latest, 2u);
    EXPECT_EQ(error_of([&] { on->sync.fill_version(1, {}); }).code(), ErrorCode::no_space);
    EXPECT_TRUE(on->host.store->is_complete(version.number));
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
  EXPECT_EQ(prepared, 3u);
  expect_latest(*on, 3);
  const auto seen = log.seen();
  const auto first = std::find_if(seen.begin(), seen.end(), [](auto latest) { return latest > 0; });
  EXPECT_EQ(std::vector(first, seen.end()), (std::vector<std::uint64_t>{2, 3}));
}

TEST_F(SyncTest, NothingIsPreparedWhileRoomIsMade) {
  std::unique_ptr<Reader> on;
  int prepared = 0;
  CatalogListener listener;
  listener.prepare = [&](const CatalogVersion& version) {
    if (version.number < 4) return;
    // It may take a moment: nobody else is to wait for it.
    const Context now = Context{}.within({});
    EXPECT_NO_THROW(static_cast<void>(on->host.store->lock_images(now)));
    if (prepared++ > 0) return;
    // A reader opens an old version just now, and there is room for three.
    EXPECT_NE(on->sync.fill_version(1, {}), nullptr);
    EXPECT_FALSE(on->host.store->is_complete(2));
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
  EXPECT_GT(prepared, 0);
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
  ASSERT_EQ(on.host.store->newest().version, 1u) << "it could be recorded";
  free_bytes = 1ull << 40;
  on.sync.name_version(2, {});
  {
    const auto reserved = on.sync.reserve(2, {});
    on.sync.fill_version(2, {});
  }
  ASSERT_TRUE(eventually([&] { return on.sync.find_partial(2) == nullptr; }));
  ASSERT_TRUE(on.host.store->is_complete(2));
  EXPECT_TRUE(eventually([&] { return has_complete(on, 2); }));
  EXPECT_EQ(on.sync.catalog()->latest, 1u);
}

TEST_F(SyncTest, LatestThatLostItsImagesStaysAndIsFetchedAgain) {
  publish(1);
  publish(2);
  const auto on = reader("reader", kNoFloor, filling());
  on->sync.run_once({});
  ASSERT_TRUE(eventually([&] { return has_complete(*on, 2); }));
  on->host.store->remove_images(2);
  on->sync.name_version(1, {});  // makes a new catalog
  EXPECT_EQ(on->sync.catalog()->latest, 2u);
  EXPECT_EQ(on->sync.catalog()->incomplete.at(2).state, ImageState::absent);
  on->sync.run_once({});
  expect_latest(*on, 2);
}

/// A reader with room for so many tenths of a version, whose snapshots do not come from now on.
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
      EXPECT_LE(on_->sync.status().partial.size(), 1u);
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
