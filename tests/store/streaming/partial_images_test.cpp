#include "store/streaming/partial_images.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "store/format/version_images.hpp"
#include "store/materialize/adopt.hpp"
#include "store/materialize/check_images.hpp"
#include "store/materialize/materialize.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/writer.hpp"

namespace weightfs {
namespace {

using test::error_of;
using test::eventually;
using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kGiB = 1ull << 30;

/// Stops the first thread that arrives after arm(), each time it arrives.
class Stopper {
 public:
  void arm() {
    const std::lock_guard lock(mutex_);
    is_armed_ = true;
  }
  void come() {
    std::unique_lock lock(mutex_);
    if (!is_armed_) return;
    if (who_ == std::thread::id()) who_ = std::this_thread::get_id();
    if (who_ != std::this_thread::get_id()) return;
    const unsigned time = ++came_;
    moved_.notify_all();
    moved_.wait(lock, [&] { return !is_armed_ || let_go_ >= time; });
  }

  /// Waits until it has arrived that often; false after a very long time.
  bool has_come(unsigned times) {
    std::unique_lock lock(mutex_);
    return moved_.wait_for(lock, std::chrono::minutes(1), [&] { return came_ >= times; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    let_go_++;
    moved_.notify_all();
  }
  void disarm() {
    const std::lock_guard lock(mutex_);
    is_armed_ = false;
    moved_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable moved_;
  bool is_armed_ = false;
  std::thread::id who_;
  unsigned came_ = 0, let_go_ = 0;
};

class PartialImagesTest : public ::testing::Test {
 protected:
  PartialImagesTest() { open(); }
  ~PartialImagesTest() override { stopper_.disarm(); }

  void open() {
    images_.reset();
    history_.reset();
    store_.reset();
    repository_ = builder_.open();
    store_ =
        Store::open(directory_ / "store", repository_->id(), repository_->url(), limits_, [this] {
          return Space{free_bytes_, 1000 * kGiB};
        });
    history_ = std::make_unique<History>(*repository_, store_.get());
    check_images(*store_, *history_, {});
    begin_images();
  }
  void begin_images() {
    PartialImagesOptions options;
    options.threads = 2;
    options.tell_failures_for = std::chrono::milliseconds(20);
    options.changed = [this] {
      if (!complete().empty() && told_complete_++ < untold_) throw std::bad_alloc();
      changes_++;
      stopper_.come();
    };
    images_ = std::make_unique<PartialImages>(*store_, *history_, std::move(options));
  }

  /// Three windows, one small file that never changes, and a blob.
  void add_versions(int count, const std::string& config = "{}") {
    for (int i = 0; i < count; i++) {
      weights_.data[rng_() % weights_.data.size()] ^= std::byte{1};
      builder_.add({{"a.safetensors", test::make_safetensors({weights_})},
                    {"b.safetensors", test::make_safetensors({small_})},
                    {"config.json", config}});
    }
  }

  std::shared_ptr<PartialVersion> begin(std::uint64_t version) {
    return images_->begin(version, {});
  }

  /// Begins while no bytes of snapshots or blobs arrive.  Deltas do: they are fetched in begin().
  std::shared_ptr<PartialVersion> begin_hanging(std::uint64_t version) {
    history_->get(version, {});
    builder_.bucket()->hang_key("blobs/");
    for (const std::string& key : data_keys()) builder_.bucket()->hang_key(key);
    return begin(version);
  }
  [[nodiscard]] Numbers complete() const { return store_->images().complete_versions(); }

  void bring(std::uint64_t version) {
    materialize(*store_, *history_, version, Context{}.within(std::chrono::minutes(1)), {});
  }

  void expect_version(std::uint64_t version) {
    EXPECT_TRUE(store_->images().is_complete(version));
    EXPECT_EQ(test::read_tree(store_->images().image_directory(version)), builder_.tree(version));
    EXPECT_TRUE(test::unsealed_files(store_->images().image_directory(version)).empty());
  }
  /// It is made of a base or a snapshot, and one delta.
  static void expect_origin(const VersionWatch& watch, std::uint64_t base, std::uint64_t snapshot) {
    EXPECT_EQ(watch.timing.base, base);
    EXPECT_EQ(watch.timing.snapshot, snapshot);
    EXPECT_EQ(watch.timing.deltas, 1u);
  }
  void expect_nothing_of(std::uint64_t version) {
    EXPECT_FALSE(store_->images().is_complete(version));
    EXPECT_FALSE(store_->images().is_partial(version));
    EXPECT_FALSE(std::filesystem::exists(store_->images().image_directory(version)));
    EXPECT_EQ(images_->find(version), nullptr);
    EXPECT_TRUE(std::filesystem::is_empty(store_->temporary_directory()));
  }
  /// Waits until everything is here, and its threads have reported it.
  static void expect_all_here(PartialVersion& filled) {
    filled.wait_complete({});
    filled.stop();
  }
  bool becomes_complete(std::uint64_t version) {
    return eventually([&] {
      return store_->images().is_complete(version) && !store_->images().is_partial(version);
    });
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
  test::TestTensor weights_{"x", Dtype::u8, {9u << 20}, Bytes(9u << 20)};
  test::TestTensor small_{"y", Dtype::u8, {1000}, Bytes(1000)};
  test::RepositoryBuilder builder_;
  StoreLimits limits_{kGiB, 0};
  std::atomic<std::uint64_t> free_bytes_ = 100 * kGiB;
  std::atomic<int> changes_ = 0, told_complete_ = 0;
  int untold_ = 0;   // of those told of a complete version: they throw
  Stopper stopper_;  // used in `changed`
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<History> history_;
  std::unique_ptr<PartialImages> images_;

 private:
  /// Keys of files in snapshots, without the hashes, which a plan needs.
  [[nodiscard]] std::vector<std::string> data_keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      if (key.starts_with("snapshots/") && key.ends_with("safetensors")) keys.push_back(key);
    }
    return keys;
  }
};

TEST_F(PartialImagesTest, AVersionIsFilledAndThenCompleteInTheStore) {
  add_versions(2);
  const auto filled = begin_hanging(2);
  ASSERT_NE(filled, nullptr);
  EXPECT_EQ(images_->find(2), filled);
  EXPECT_EQ(images_->list().size(), 1u);
  EXPECT_EQ(begin(2), filled) << "it is begun once";
  EXPECT_TRUE(store_->images().is_partial(2));
  EXPECT_FALSE(store_->images().is_complete(2));
  const int changes = changes_;
  builder_.bucket()->heal();
  ASSERT_TRUE(becomes_complete(2));
  expect_version(2);
  EXPECT_EQ(store_->images().chunk_hashes(2), filled->plan().hashes);
  EXPECT_TRUE(eventually([&] { return images_->find(2) == nullptr; }));
  EXPECT_EQ(begin(2), nullptr);
  EXPECT_TRUE(eventually([&] { return changes_ > changes + 1; })) << "all is here, and recorded";
  EXPECT_GT(images_->fetched_bytes(), filled->plan().layout->size_bytes()) << "and the pack";
  EXPECT_LE(images_->fetched_bytes(), filled->plan().fetch_bytes);
  bring(2);
  open();
  expect_version(2);
}

TEST_F(PartialImagesTest, AnOlderVersionIsFilledFromItsNewestBase) {
  add_versions(4);
  bring(2);
  bring(4);
  const auto filled = begin(3);
  ASSERT_TRUE(filled->plan().base);
  EXPECT_EQ(filled->plan().base->version->number(), 2u);
  ASSERT_TRUE(becomes_complete(3));
  expect_version(3);
  EXPECT_EQ(std::filesystem::hard_link_count(store_->images().image_directory(3) / "b.safetensors"),
            3u);
}

TEST_F(PartialImagesTest, ABaseThatRotsIsLeftForTheSnapshot) {
  add_versions(2);
  bring(1);
  const auto path = store_->images().image_directory(1) / "a.safetensors";
  std::string rotten = test::read_text(path);
  for (std::size_t i = 4096; i < rotten.size(); i += 4096) rotten[i] ^= 1;
  std::filesystem::remove(path);
  test::write_text(path, rotten);
  for (const bool is_known : {false, true}) {  // the second time it is not asked
    VersionWatch watch(2);
    const auto filled = images_->begin(2, {}, &watch);
    ASSERT_NE(filled, nullptr);
    EXPECT_EQ(filled->plan().base.has_value(), !is_known);
    is_known ? expect_origin(watch, 0, 1) : expect_origin(watch, 1, 0);  // as it began
    ASSERT_TRUE(becomes_complete(2));
    expect_version(2);
    EXPECT_TRUE(eventually([&] { return images_->find(2) == nullptr; }));
    store_->images().remove_images(2);
  }
}

TEST_F(PartialImagesTest, AVersionIsFilledByWayOfASkipDelta) {
  add_versions(12);
  builder_.add_skip({1, 9});
  const auto filled = begin(10);
  ASSERT_EQ(filled->plan().steps.size(), 2u);
  EXPECT_TRUE(filled->plan().steps.front().skip);
  expect_all_here(*filled);
  ASSERT_TRUE(becomes_complete(10));
  expect_version(10);
}

// What is wrong with a skip delta may be found only when a window is made.
TEST_F(PartialImagesTest, ADamagedSkipDeltaOnlyMeansAnotherWay) {
  add_versions(12);
  builder_.add_skip({1, 9});
  builder_.flip(builder_.key("skips/", ".safetensors"), -3);
  const auto filled = begin(10);
  EXPECT_TRUE(filled->plan().steps.front().skip);
  expect_all_here(*filled);
  EXPECT_FALSE(filled->progress().error);
  ASSERT_TRUE(becomes_complete(10));
  expect_version(10);
}

TEST_F(PartialImagesTest, ADamagedSkipDeltaFromABaseOnlyMeansAnotherWay) {
  add_versions(12);
  builder_.add_skip({2, 9});
  builder_.flip(builder_.key("skips/", ".safetensors"), -3);
  bring(2);
  const auto filled = begin(10);
  ASSERT_TRUE(filled->plan().base);
  EXPECT_TRUE(filled->plan().steps.front().skip);
  expect_all_here(*filled);
  EXPECT_FALSE(filled->progress().error);
  ASSERT_TRUE(becomes_complete(10));
  expect_version(10);
}

// gc may remove it.  What is whole windows of a snapshot is made by another way then.
TEST_F(PartialImagesTest, ASnapshotThatGoesWhileItIsReadMeansAnotherWay) {
  add_versions(1);
  weights_.data[7] ^= std::byte{1};
  builder_.add({{"a.safetensors", test::make_safetensors({weights_})},
                {"b.safetensors", test::make_safetensors({small_})},
                {"config.json", "{}"}},
               {.snapshot = true});
  std::atomic<int> reads = 0;
  const auto hooks = std::make_shared<test::BucketHooks>();
  hooks->before = [&](const test::BucketCall& call) {
    const bool is_file = call.key.starts_with("snapshots/2/") && call.key.ends_with(".safetensors");
    if (call.kind != "get" || !is_file || ++reads != 2) return;
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      if (key.starts_with("snapshots/2/")) builder_.bucket()->erase(key);
    }
  };
  test::Host host(
      Repository::open(std::make_unique<test::HookedBucket>(builder_.bucket(), hooks), {}),
      directory_ / "other");
  PartialImages images(*host.store, host.history,
                       {.threads = 2, .tell_failures_for = std::chrono::milliseconds(20)});
  const auto filled = images.begin(2, {});
  ASSERT_TRUE(filled->plan().snapshot);
  EXPECT_EQ(filled->plan().snapshot->version->number(), 2u);
  ASSERT_TRUE(eventually([&] { return host.store->images().is_complete(2); }));
  EXPECT_GE(reads, 2);
  EXPECT_EQ(test::read_tree(host.store->images().image_directory(2)), builder_.tree(2));
}

TEST_F(PartialImagesTest, SeveralVersionsAreFilledAtATime) {
  add_versions(3);
  const auto third = begin_hanging(3);
  const auto second = begin(2);
  EXPECT_NE(second, third);
  EXPECT_EQ(images_->list().size(), 2u);
  builder_.bucket()->heal();
  ASSERT_TRUE(becomes_complete(2) && becomes_complete(3));
  expect_version(2);
  expect_version(3);
}

TEST_F(PartialImagesTest, MaterializeWaitsForAVersionThatIsPartial) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  std::atomic<bool> done = false;
  const auto inode = [&] {
    struct stat found {};
    EXPECT_EQ(::stat((store_->images().image_directory(1) / "a.safetensors").c_str(), &found), 0);
    return found.st_ino;
  };
  const auto filled_inode = inode();
  std::jthread waiter([&] {
    bring(1);
    done = true;
  });
  EXPECT_EQ(error_of([&] {
              materialize(*store_, *history_, 1, Context{}.within(std::chrono::seconds(0)), {});
            }).code(),
            ErrorCode::timed_out);
  EXPECT_FALSE(done);
  builder_.bucket()->heal();
  waiter.join();
  expect_version(1);
  EXPECT_EQ(inode(), filled_inode) << "it was begun anew";
  EXPECT_TRUE(filled->is_complete());
}

TEST_F(PartialImagesTest, MaterializeIsToldOfWhatIsDamagedAndFinishesOnceItIsMended) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  const std::string whole = builder_.bucket()->find(key).value();
  builder_.flip(key, 5 << 20);
  begin(1);
  const Error error = error_of([&] { bring(1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  builder_.bucket()->replace(key, whole);
  EXPECT_TRUE(becomes_complete(1));
  bring(1);
  expect_version(1);
}

TEST_F(PartialImagesTest, CompletingWaitsForWhoBringsInAnotherVersion) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  ImagesLock lock = store_->images().lock_images({});
  builder_.bucket()->heal();
  filled->wait_complete({});
  const Context soon = Context{}.within(std::chrono::milliseconds(100));
  EXPECT_EQ(error_of([&] { store_->images().wait_partial(1, soon); }).code(), ErrorCode::timed_out);
  EXPECT_FALSE(store_->images().is_complete(1));
  lock.unlock();
  EXPECT_TRUE(becomes_complete(1));
}

TEST_F(PartialImagesTest, ARecordThatHasNoRoomIsWrittenLater) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  free_bytes_ = 0;
  builder_.bucket()->heal();
  filled->wait_complete({});
  EXPECT_TRUE(eventually([&] { return changes_ > 1; })) << "it began, and all is here";
  EXPECT_TRUE(store_->images().is_partial(1));
  EXPECT_FALSE(store_->images().is_complete(1));
  EXPECT_TRUE(eventually([&] { return images_->record_error(1).has_value(); }));
  EXPECT_EQ(images_->record_error(1)->code(), ErrorCode::no_space);
  const Error error = error_of([&] { bring(1); });
  EXPECT_EQ(error.code(), ErrorCode::no_space);
  EXPECT_NE(std::string_view(error.what()).find("version 1 is complete, but cannot be recorded"),
            std::string_view::npos)
      << error.what();
  free_bytes_ = 100 * kGiB;
  EXPECT_TRUE(becomes_complete(1));
  EXPECT_TRUE(eventually([&] { return !images_->record_error(1); }));
  expect_version(1);
}

// ---- room ----

// It would not be shown before something else changes.
TEST_F(PartialImagesTest, WhoCouldNotBeToldOfACompleteVersionIsToldLater) {
  add_versions(1);
  untold_ = 2;
  begin_hanging(1);
  builder_.bucket()->heal();
  ASSERT_TRUE(becomes_complete(1));
  EXPECT_TRUE(eventually([&] { return told_complete_ > 2; }));
}

TEST_F(PartialImagesTest, WithoutRoomNothingIsLeft) {
  add_versions(1);
  limits_.store_bytes = 1 << 20;
  open();
  EXPECT_EQ(error_of([&] { begin(1); }).code(), ErrorCode::no_space);
  expect_nothing_of(1);
}

TEST_F(PartialImagesTest, WhatIsPartialCountsAndIsEvictedUnlessItIsReserved) {
  add_versions(3);
  const std::uint64_t size = 9 << 20;
  limits_.store_bytes = 2 * size + size / 2;
  open();
  const auto filled = begin_hanging(1);
  store_->evictor().evict_for_images(size);
  EXPECT_TRUE(store_->images().is_partial(1)) << "it fits as it is";
  {
    const auto latest = store_->eviction().reserve(1, Eviction::Claim::stays, {});
    EXPECT_EQ(error_of([&] { store_->evictor().evict_for_images(2 * size); }).code(),
              ErrorCode::no_space);
  }
  EXPECT_TRUE(store_->images().is_partial(1));
  store_->evictor().evict_for_images(2 * size);
  expect_nothing_of(1);
  EXPECT_EQ(images_->find(1), nullptr);
  EXPECT_EQ(error_of([&] { filled->ask("a.safetensors", 0, 1, {}); }).code(), ErrorCode::cancelled);
  builder_.bucket()->heal();
  begin(1);
  EXPECT_TRUE(becomes_complete(1));
  expect_version(1);
}

TEST_F(PartialImagesTest, WhatIsPartialKeepsItsBaseUntilItIsEvictedItself) {
  add_versions(1);
  add_versions(2, "{ }");  // not the base's, so that it hangs
  bring(1);
  const std::uint64_t size = 9 << 20;
  limits_.store_bytes = 2 * size + size / 2;
  open();
  const auto filled = begin_hanging(2);
  ASSERT_TRUE(filled->plan().base);
  EXPECT_FALSE(store_->evictor().evict(1));
  store_->evictor().evict_for_images(size);
  EXPECT_FALSE(store_->images().is_partial(2));
  // Its last thread may still be about to let go of the base.
  EXPECT_TRUE(eventually([&] { return store_->evictor().evict(1); }));
  builder_.bucket()->heal();
}

TEST_F(PartialImagesTest, BeginningMakesRoomButKeepsItsBase) {
  add_versions(3);
  bring(1);
  bring(3);
  limits_.store_bytes = (9u << 20) * 11 / 5;
  open();
  begin(2);
  ASSERT_TRUE(becomes_complete(2));
  EXPECT_EQ(complete(), (Numbers{1, 2}));
}

TEST_F(PartialImagesTest, WhatIsBegunAnewIsNotRecordedForTheFillingThatWasEvicted) {
  add_versions(3);
  const std::uint64_t size = 9 << 20;
  limits_.store_bytes = 3 * size + size / 2;
  open();
  // The recording thread is stopped after version 1, ...
  const auto first = begin_hanging(1);
  {
    const ImagesLock lock = store_->images().lock_images({});
    builder_.bucket()->heal();
    expect_all_here(*first);
    stopper_.arm();
  }
  ASSERT_TRUE(stopper_.has_come(1));
  // ... and between 2 and 3, after it has seen that both are complete.
  for (const std::uint64_t version : {2u, 3u}) expect_all_here(*begin(version));
  stopper_.let_go();
  ASSERT_TRUE(stopper_.has_come(2));
  ASSERT_EQ(complete(), (Numbers{1, 2}));
  ASSERT_TRUE(store_->images().is_partial(3));

  store_->evictor().evict_for_images(3 * size);
  expect_nothing_of(3);
  ASSERT_EQ(complete(), Numbers{}) << "there would be a base to fill it from";
  const auto anew = begin_hanging(3);
  ASSERT_FALSE(anew->is_complete());
  stopper_.let_go();
  ASSERT_TRUE(stopper_.has_come(3)) << "it was looked at";
  EXPECT_FALSE(store_->images().is_complete(3)) << "what is not here yet is read as zeros";
  EXPECT_EQ(images_->find(3), anew);
  stopper_.disarm();
  builder_.bucket()->heal();
  ASSERT_TRUE(becomes_complete(3));
  expect_version(3);
}

// ---- failures and the end ----

TEST_F(PartialImagesTest, ADamagedBaseIsNotBuiltOn) {
  add_versions(2);
  bring(1);
  std::filesystem::remove_all(store_->images().image_directory(1));
  VersionWatch watch(2);
  const auto filled = images_->begin(2, {}, &watch);
  EXPECT_FALSE(filled->plan().base);
  expect_origin(watch, 0, 1);
  ASSERT_TRUE(becomes_complete(2));
  expect_version(2);
}

TEST_F(PartialImagesTest, AVersionThatDoesNotExistIsNotFound) {
  add_versions(1);
  EXPECT_EQ(error_of([&] { begin(2); }).code(), ErrorCode::not_found);
  expect_nothing_of(2);
}

TEST_F(PartialImagesTest, WhatIsNotCompleteEndsWithIt) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  EXPECT_FALSE(filled->ask("a.safetensors", 0, 1, {}));
  images_.reset();
  EXPECT_FALSE(store_->images().is_partial(1));
  EXPECT_FALSE(std::filesystem::exists(store_->images().image_directory(1)));
  EXPECT_EQ(error_of([&] { filled->ask("a.safetensors", 0, 1, {}); }).code(), ErrorCode::cancelled);
  builder_.bucket()->heal();
  begin_images();
  begin(1);
  ASSERT_TRUE(becomes_complete(1));
  expect_version(1);
}

TEST_F(PartialImagesTest, WhatIsWholeIsRecordedBeforeTheEnd) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  const ImagesLock lock = store_->images().lock_images({});
  builder_.bucket()->heal();
  filled->wait_complete({});
  images_.reset();
  expect_version(1);
}

TEST_F(PartialImagesTest, WhatAKilledProcessLeftIsRemoved) {
  add_versions(1);
  test::write_text(store_->images().begin_images(1) / "a.safetensors", "some of it");
  const auto left = store_->images().image_directory(1);
  ASSERT_TRUE(std::filesystem::exists(left));
  open();
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(PartialImagesTest, WhatIsPartialIsNotAdopted) {
  add_versions(1);
  const auto filled = begin_hanging(1);
  const VersionImages images{1, 0, {{"a.safetensors", 10}}, {}};
  const ImagesLock lock = store_->images().lock_images({});
  EXPECT_EQ(error_of([&] { adopt_images(*store_, images, directory_.path(), lock); }).code(),
            ErrorCode::busy);
  EXPECT_TRUE(std::filesystem::exists(store_->images().image_directory(1) / "a.safetensors"));
}

}  // namespace
}  // namespace weightfs
