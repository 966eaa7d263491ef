// The contract of store/bucket/bucket.hpp for all buckets; then tests of directories only.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/bucket/bucket.hpp"
#include "store/bucket/dir_bucket.hpp"
#include "store/repository/open_bucket.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/fake_s3.hpp"
#include "tests/support/memory_bucket.hpp"
#include "tests/support/support.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::MemoryBucket;
using test::TempDir;

void put(Bucket& bucket, std::string_view key, std::string_view text) {
  bucket.put(key, TextSource(text), {});
}

std::string get(Bucket& bucket, std::string_view key) { return get_all(bucket, key, 1u << 30, {}); }

std::string get_part(Bucket& bucket, std::string_view key, std::uint64_t offset, std::size_t size) {
  std::string part(size, '?');
  part.resize(bucket.get(key, offset, std::as_writable_bytes(std::span(part)), {}));
  return part;
}

class BucketContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "directory") {
      bucket_ = std::make_unique<DirBucket>(directory_.path(), false);
    } else if (GetParam() == "s3") {
      fake_.emplace();
      bucket_ = fake_->open("run/of-a-test");
    } else if (GetParam() == "live") {
      // A live service for the tests, configured as for the AWS tools.
      const char* const url = std::getenv("WEIGHTFS_TEST_S3_URL");
      if (url == nullptr) GTEST_SKIP() << "WEIGHTFS_TEST_S3_URL names no service";
      bucket_ = open_bucket(std::string(url) + "/" + random_hex(8), false);
    } else {
      bucket_ = std::make_unique<MemoryBucket>();
    }
  }
  Bucket& bucket() { return *bucket_; }

  // Creates many objects without as many fsyncs.
  void plant(const std::string& key) {
    if (auto* memory = dynamic_cast<MemoryBucket*>(bucket_.get())) {
      memory->replace(key, "");
    } else if (GetParam() == "directory") {
      test::write_text(directory_ / key, "");
    } else {
      put(*bucket_, key, "");
    }
  }

 private:
  TempDir directory_;
  std::optional<test::FakeS3> fake_;
  std::unique_ptr<Bucket> bucket_;
};

TEST_P(BucketContract, GivesBackWhatWasPut) {
  put(bucket(), "a/b/c.bin", "hello");
  put(bucket(), "top", "");
  EXPECT_EQ(get(bucket(), "a/b/c.bin"), "hello");
  EXPECT_EQ(get(bucket(), "top"), "");
}

TEST_P(BucketContract, GivesBackLargeObjects) {
  std::string large((17u << 20) + 3, '\0');
  for (std::size_t i = 0; i < large.size(); i++) large[i] = static_cast<char>(i * 2654435761u >> 7);
  put(bucket(), "large", large);
  EXPECT_TRUE(get(bucket(), "large") == large);
  EXPECT_TRUE(get_part(bucket(), "large", 8'388'600, 1000) == large.substr(8'388'600, 1000));
}

TEST_P(BucketContract, PutReplaces) {
  put(bucket(), "key", "a long first text");
  put(bucket(), "key", "second");
  EXPECT_EQ(get(bucket(), "key"), "second");
}

TEST_P(BucketContract, ReadsRanges) {
  put(bucket(), "key", "0123456789");
  EXPECT_EQ(get_part(bucket(), "key", 0, 4), "0123");
  EXPECT_EQ(get_part(bucket(), "key", 3, 4), "3456");
  EXPECT_EQ(get_part(bucket(), "key", 8, 10), "89");
  EXPECT_EQ(get_part(bucket(), "key", 10, 1), "");
  EXPECT_EQ(get_part(bucket(), "key", ~std::uint64_t{0}, 1), "");
  EXPECT_EQ(get_part(bucket(), "key", 2, 0), "");
}

TEST_P(BucketContract, SaysNotFoundForWhatIsNotThere) {
  put(bucket(), "a/b", "x");
  for (const char* key : {"absent", "a", "a/c", "a/b/c", "x/y/z"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { get_part(bucket(), key, 0, 1); }, &message), ErrorCode::not_found);
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NE(message.find(bucket().url()), std::string::npos) << message;
  }
}

TEST_P(BucketContract, PutIfAbsentKeepsTheFirst) {
  EXPECT_EQ(bucket().put_if_absent("v/1", "first", {}), Bucket::Put::created);
  EXPECT_EQ(bucket().put_if_absent("v/1", "second", {}), Bucket::Put::exists);
  EXPECT_EQ(get(bucket(), "v/1"), "first");
  put(bucket(), "v/2", "put");
  EXPECT_EQ(bucket().put_if_absent("v/2", "second", {}), Bucket::Put::exists);
  EXPECT_EQ(get(bucket(), "v/2"), "put");
}

TEST_P(BucketContract, OfManyPutIfAbsentExactlyOneCreates) {
  constexpr int kThreads = 8, kRounds = 50;
  std::vector<std::atomic<int>> created(kRounds);
  std::vector<std::atomic<int>> winner(kRounds);
  std::atomic<int> ready = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; thread++) {
    threads.emplace_back([&, thread] {
      ready++;
      while (ready < kThreads) std::this_thread::yield();
      for (int round = 0; round < kRounds; round++) {
        const auto put =
            bucket().put_if_absent("race/" + std::to_string(round), std::to_string(thread), {});
        if (put != Bucket::Put::created) continue;
        created[static_cast<std::size_t>(round)]++;
        winner[static_cast<std::size_t>(round)] = thread;
      }
    });
  }
  threads.clear();
  for (std::size_t round = 0; round < kRounds; round++) {
    EXPECT_EQ(created[round], 1) << "round " << round;
    EXPECT_EQ(get(bucket(), "race/" + std::to_string(round)), std::to_string(winner[round]));
  }
}

TEST_P(BucketContract, NeverShowsHalfAnObject) {
  const std::string first(300'000, 'a'), second(200'000, 'b');
  put(bucket(), "key", first);
  std::atomic<bool> done = false;
  std::atomic<int> looks = 0;
  std::jthread reader([&] {
    while (!done || looks == 0) {
      const std::string seen = get_part(bucket(), "key", 0, 400'000);
      EXPECT_TRUE(seen == first || seen == second) << seen.size() << " bytes";
      looks++;
    }
  });
  for (int round = 0; round < 50; round++) put(bucket(), "key", round % 2 == 0 ? second : first);
  done = true;
}

TEST_P(BucketContract, NeverShowsHalfOfWhatIsCreated) {
  const std::string text(300'000, 'a');
  for (int round = 0; round < 20; round++) {
    const std::string key = "new/" + std::to_string(round);
    std::jthread writer([&] { bucket().put_if_absent(key, text, {}); });
    for (;;) {
      try {
        EXPECT_TRUE(get_part(bucket(), key, 0, 400'000) == text);
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::not_found);
      }
    }
  }
}

TEST_P(BucketContract, ListsKeysInTheirOrder) {
  // '-' sorts before '/', '0' after it: a directory does not sort by its name alone.
  for (const char* key : {"a/x", "a-b", "a0", "a/y/z", "b", "\xC3\xA9/k"}) put(bucket(), key, "1");
  EXPECT_EQ(bucket().list("", "", {}),
            (std::vector<std::string>{"a-b", "a/x", "a/y/z", "a0", "b", "\xC3\xA9/k"}));
  EXPECT_EQ(bucket().list("a/", "", {}), (std::vector<std::string>{"a/x", "a/y/z"}));
  EXPECT_EQ(bucket().list("a", "a/x", {}), (std::vector<std::string>{"a/y/z", "a0"}));
  EXPECT_EQ(bucket().list("a/y", "", {}), (std::vector<std::string>{"a/y/z"}));
  EXPECT_EQ(bucket().list("", "a/x0", {}),
            (std::vector<std::string>{"a/y/z", "a0", "b", "\xC3\xA9/k"}));
  EXPECT_TRUE(bucket().list("absent/", "", {}).empty());
  EXPECT_TRUE(bucket().list("a/", "b", {}).empty());
}

TEST_P(BucketContract, ListsAThousandAtATime) {
  std::vector<std::string> all;
  for (int i = 0; i < 1203; i++) {
    char key[32];
    std::snprintf(key, sizeof key, "v/%d/%05d", i / 600, i);
    all.emplace_back(key);
    plant(all.back());
  }
  const auto first = bucket().list("v/", "", {});
  ASSERT_EQ(first.size(), 1000u);
  const auto second = bucket().list("v/", first.back(), {});
  EXPECT_EQ(second.size(), 203u);
  std::vector<std::string> both = first;
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(both, all);
  EXPECT_TRUE(bucket().list("v/", second.back(), {}).empty());
}

TEST_P(BucketContract, ListsSizesAndTimesByTheBucketsOwnClock) {
  const auto before = bucket().now({});
  put(bucket(), "a/empty", "");
  put(bucket(), "a/five", "12345");
  EXPECT_EQ(bucket().put_if_absent("a/one", "1", {}), Bucket::Put::created);
  const auto after = bucket().now({});
  const std::vector<ObjectInfo> objects = bucket().list_objects("a/", "", {});
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[0].key, "a/empty");
  EXPECT_EQ(objects[0].size_bytes, 0u);
  EXPECT_EQ(objects[1].key, "a/five");
  EXPECT_EQ(objects[1].size_bytes, 5u);
  EXPECT_EQ(objects[2].key, "a/one");
  EXPECT_EQ(objects[2].size_bytes, 1u);
  // Services give seconds, and several of them may answer.
  constexpr auto kInexact = std::chrono::seconds(5);
  for (const ObjectInfo& object : objects) {
    EXPECT_GE(object.written, before - kInexact) << object.key;
    EXPECT_LE(object.written, after + kInexact) << object.key;
  }
}

TEST_P(BucketContract, RemoveIsFineTwice) {
  put(bucket(), "a/b", "x");
  bucket().remove("a/b", {});
  EXPECT_EQ(code_of([&] { get_part(bucket(), "a/b", 0, 1); }), ErrorCode::not_found);
  bucket().remove("a/b", {});
  bucket().remove("never/was", {});
  EXPECT_EQ(bucket().put_if_absent("a/b", "again", {}), Bucket::Put::created);
}

TEST_P(BucketContract, RefusesInvalidKeys) {
  const std::vector<std::string> bad{"",
                                     "/a",
                                     "a/",
                                     "a//b",
                                     "a/../b",
                                     "..",
                                     ".",
                                     "a/.",
                                     ".d/x",
                                     "a\\b",
                                     "a\nb",
                                     "a\x7F",
                                     ".tmp",
                                     "x/.tmp",
                                     "a\tb",
                                     std::string(256, 'n'),
                                     std::string("a\0b", 3)};
  for (const std::string& key : bad) {
    EXPECT_EQ(code_of([&] { get_part(bucket(), key, 0, 1); }), ErrorCode::invalid) << key;
    EXPECT_EQ(code_of([&] { put(bucket(), key, "x"); }), ErrorCode::invalid) << key;
    EXPECT_EQ(code_of([&] { bucket().put_if_absent(key, "x", {}); }), ErrorCode::invalid) << key;
    EXPECT_EQ(code_of([&] { bucket().remove(key, {}); }), ErrorCode::invalid) << key;
  }
  EXPECT_TRUE(bucket().list("", "", {}).empty());
}

TEST_P(BucketContract, TakesKeysThatOnlyLookOdd) {
  for (const std::string& key :
       {std::string("a/.hashes"), std::string(255, 'n'),
        std::string("sp ace/gr\xC3\xBC\xC3\x9F.bin"), std::string("...")}) {
    put(bucket(), key, key);
    EXPECT_EQ(get(bucket(), key), key);
  }
}

TEST_P(BucketContract, StopsWhenToldTo) {
  put(bucket(), "key", "text");
  std::stop_source stop;
  stop.request_stop();
  const Context stopped{stop.get_token()};
  Context late;
  late.deadline = Clock::now() - std::chrono::seconds(1);
  for (const auto& each :
       {std::pair{stopped, ErrorCode::cancelled}, std::pair{late, ErrorCode::timed_out}}) {
    const Context& context = each.first;
    const ErrorCode code = each.second;
    std::byte byte{};
    EXPECT_EQ(code_of([&] { bucket().get("key", 0, {&byte, 1}, context); }), code);
    EXPECT_EQ(code_of([&] { bucket().put("key", TextSource("new"), context); }), code);
    EXPECT_EQ(code_of([&] { bucket().put_if_absent("key2", "new", context); }), code);
    EXPECT_EQ(code_of([&] { bucket().list("", "", context); }), code);
    EXPECT_EQ(code_of([&] { bucket().remove("key", context); }), code);
  }
  EXPECT_EQ(get(bucket(), "key"), "text");
  EXPECT_EQ(bucket().list("", "", {}), std::vector<std::string>{"key"});
}

TEST_P(BucketContract, AFailingSourceLeavesNothing) {
  class Failing final : public Source {
   public:
    [[nodiscard]] std::uint64_t size_bytes() const override { return 100; }
    void read(std::uint64_t, std::span<std::byte>) const override {
      throw Error(ErrorCode::busy, "the source changed");
    }
  };
  EXPECT_EQ(code_of([&] { bucket().put("a/key", Failing(), {}); }), ErrorCode::busy);
  EXPECT_TRUE(bucket().list("", "", {}).empty());
}

TEST_P(BucketContract, GetAllBoundsWhatItTakes) {
  put(bucket(), "key", std::string(100'000, 'x'));
  EXPECT_EQ(get_all(bucket(), "key", 100'000, {}).size(), 100'000u);
  EXPECT_EQ(code_of([&] { get_all(bucket(), "key", 99'999, {}); }), ErrorCode::corrupt);
  put(bucket(), "empty", "");
  EXPECT_EQ(get_all(bucket(), "empty", 0, {}), "");
  EXPECT_EQ(code_of([&] { get_all(bucket(), "absent", 10, {}); }), ErrorCode::not_found);
}

TEST_P(BucketContract, GetExactRefusesAShortObject) {
  put(bucket(), "key", "0123456789");
  std::string part(4, '?');
  get_exact(bucket(), "key", 6, std::as_writable_bytes(std::span(part)), {});
  EXPECT_EQ(part, "6789");
  std::string message;
  EXPECT_EQ(
      code_of([&] { get_exact(bucket(), "key", 7, std::as_writable_bytes(std::span(part)), {}); },
              &message),
      ErrorCode::corrupt);
  EXPECT_NE(message.find("key"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, BucketContract, testing::Values("directory", "memory", "s3", "live"),
                         [](const auto& name) { return name.param; });

// ---- directories only ----

struct Directory {
  TempDir parent;
  std::filesystem::path root = parent / "bucket";
  DirBucket bucket{root, true};
};

TEST(DirBucket, IsMadeOnlyIfTold) {
  const TempDir directory;
  std::string message;
  EXPECT_EQ(code_of([&] { DirBucket(directory / "a/b", false); }, &message), ErrorCode::not_found);
  EXPECT_NE(message.find("a/b"), std::string::npos) << message;
  DirBucket(directory / "a/b", true);
  EXPECT_TRUE(std::filesystem::is_directory(directory / "a/b"));
}

TEST(DirBucket, RefusesAFile) {
  const TempDir directory;
  test::write_text(directory / "file", "x");
  EXPECT_EQ(code_of([&] { DirBucket(directory / "file", false); }), ErrorCode::invalid);
}

TEST(DirBucket, LeavesNothingUnderTmp) {
  Directory at;
  put(at.bucket, "a/b", "x");
  at.bucket.put_if_absent("a/c", "x", {});
  at.bucket.put_if_absent("a/c", "x", {});
  EXPECT_TRUE(std::filesystem::is_empty(at.root / ".tmp"));
}

TEST(DirBucket, RemovesOnlyOldTemporaries) {
  Directory at;
  test::write_text(at.root / ".tmp/old", "x");
  test::write_text(at.root / ".tmp/new", "x");
  std::filesystem::last_write_time(
      at.root / ".tmp/old", std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  put(at.bucket, "key", "x");
  EXPECT_FALSE(std::filesystem::exists(at.root / ".tmp/old"));
  EXPECT_TRUE(std::filesystem::exists(at.root / ".tmp/new"));
}

TEST(DirBucket, ListsOnlyObjects) {
  Directory at;
  put(at.bucket, "a/b", "x");
  test::write_text(at.root / ".tmp/t", "x");
  test::write_text(at.root / ".git/t", "x");
  test::write_text(at.root / "a/back\\slash", "x");
  ASSERT_EQ(::mkfifo((at.root / "fifo").c_str(), 0600), 0);
  std::filesystem::create_directory_symlink(at.root, at.root / "a/circle");
  EXPECT_EQ(at.bucket.list("", "", {}), std::vector<std::string>{"a/b"});
}

TEST(DirBucket, DoesNotReadBesideThePrefix) {
  Directory at;
  put(at.bucket, "a/b", "x");
  put(at.bucket, "z/b", "x");
  if (::geteuid() != 0) std::filesystem::permissions(at.root / "z", std::filesystem::perms::none);
  EXPECT_EQ(at.bucket.list("a/", "", {}), std::vector<std::string>{"a/b"});
  if (::geteuid() != 0) std::filesystem::permissions(at.root / "z", std::filesystem::perms::all);
}

TEST(DirBucket, DoesNotHangOnAFifo) {
  Directory at;
  ASSERT_EQ(::mkfifo((at.root / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { get_part(at.bucket, "fifo", 0, 1); }), ErrorCode::not_found);
}

// A bucket on a mount that went away must not look like one without a new version.
TEST(DirBucket, AVanishedRootIsUnavailableUntilItIsBack) {
  Directory at;
  put(at.bucket, "a/b", "x");
  std::filesystem::rename(at.root, at.parent / "away");
  std::string message;
  const auto expect_gone = [&](const std::function<void()>& call) {
    EXPECT_EQ(code_of(call, &message), ErrorCode::unavailable);
    EXPECT_NE(message.find(at.root.string() + " is gone"), std::string::npos) << message;
  };
  expect_gone([&] { get_part(at.bucket, "a/b", 0, 1); });
  expect_gone([&] { put(at.bucket, "a/c", "x"); });
  expect_gone([&] { at.bucket.put_if_absent("a/c", "x", {}); });
  expect_gone([&] { at.bucket.list("", "", {}); });
  expect_gone([&] { at.bucket.remove("a/b", {}); });
  EXPECT_FALSE(std::filesystem::exists(at.root)) << "a write made the root again";

  std::filesystem::rename(at.parent / "away", at.root);
  EXPECT_EQ(get(at.bucket, "a/b"), "x");
}

// While it lives, the process runs as a user without write permission for root's files.
class AsNobody {
 public:
  AsNobody() {
    if (::getuid() == 0 && ::seteuid(65534) != 0) ADD_FAILURE() << "cannot become uid 65534";
  }
  ~AsNobody() {
    if (::seteuid(::getuid()) != 0) ADD_FAILURE() << "cannot become root again";
  }
};

// A file system is not mounted there for a while: its mount point is an empty directory.
TEST(DirBucket, IsGoneWithoutItsLandmarkAndNothingIsWritten) {
  Directory at;
  put(at.bucket, "record", "x");
  at.bucket.set_landmark("record");
  const std::filesystem::path away = at.root.string() + ".away";
  std::filesystem::rename(at.root, away);
  std::filesystem::create_directory(at.root);
  const std::function<void()> calls[] = {
      [&] { get_part(at.bucket, "record", 0, 1); }, [&] { get_part(at.bucket, "other", 0, 1); },
      [&] { put(at.bucket, "a/b", "x"); },          [&] { at.bucket.put_if_absent("c", "x", {}); },
      [&] { at.bucket.list("", "", {}); },          [&] { at.bucket.now({}); },
      [&] { at.bucket.remove("record", {}); }};
  for (const auto& call : calls) {
    std::string message;
    EXPECT_EQ(code_of(call, &message), ErrorCode::unavailable);
    EXPECT_NE(message.find("has no record now"), std::string::npos) << message;
  }
  EXPECT_TRUE(std::filesystem::is_empty(at.root));
  std::filesystem::remove(at.root);
  std::filesystem::rename(away, at.root);
  put(at.bucket, "a/b", "x");
  EXPECT_EQ(at.bucket.list("", "", {}), (std::vector<std::string>{"a/b", "record"}));
}

// `doctor` may be told a directory that is to be something else, such as a mount point.
TEST(DirBucket, LeavesNothingInADirectoryThatIsNoBucket) {
  const TempDir directory;
  for (const bool is_bucket : {false, true}) {
    {
      DirBucket bucket(directory.path(), false);
      if (is_bucket) {
        bucket.put_if_absent("record", "x", {});
        bucket.set_landmark("record");
      }
      bucket.put_if_absent("probe", "x", {});
      bucket.remove("probe", {});
    }
    EXPECT_EQ(std::filesystem::is_empty(directory.path()), !is_bucket);
  }
}

TEST(DirBucket, SaysThatItMayNotBeWritten) {
  namespace fs = std::filesystem;
  Directory at;
  put(at.bucket, "a/b", "x");
  const std::vector<std::string> directories{"", "a", ".tmp"};
  fs::permissions(at.parent.path(), fs::perms::all);
  for (const std::string& name : directories) fs::permissions(at.root / name, fs::perms{0555});
  {
    const AsNobody nobody;
    std::string message;
    EXPECT_EQ(code_of([&] { put(at.bucket, "a/c", "x"); }, &message), ErrorCode::permission);
    EXPECT_NE(message.find("is not writable by uid " + std::to_string(::geteuid())),
              std::string::npos)
        << message;
    EXPECT_EQ(code_of([&] { at.bucket.put_if_absent("a/c", "x", {}); }), ErrorCode::permission);
    EXPECT_EQ(code_of([&] { at.bucket.remove("a/b", {}); }), ErrorCode::permission);
    EXPECT_EQ(get(at.bucket, "a/b"), "x");
  }
  for (const std::string& name : directories) fs::permissions(at.root / name, fs::perms::owner_all);
}

// Who made it may not have come to that, and a manifest that builds on it would outlive it.
TEST(DirBucket, AnObjectThatIsThereAlreadyIsDurableToo) {
  Directory at;
  put(at.bucket, "a/b", "x");
  DirBucket other(at.root, false);
  {
    const test::SyncWatch watch;
    EXPECT_EQ(other.put_if_absent("a/b", "y", {}), Bucket::Put::exists);
    EXPECT_TRUE(watch.has_seen(at.root / "a"));
    EXPECT_TRUE(watch.has_seen(at.root));
  }
  const test::SyncWatch fails("bucket/a");
  std::string message;
  EXPECT_EQ(code_of([&] { other.put_if_absent("a/b", "y", {}); }, &message), ErrorCode::io);
  EXPECT_NE(message.find("may be lost in a power cut"), std::string::npos) << message;
}

// /dev/full cannot be a bucket, so a file size limit simulates a full disk.
TEST(DirBucket, AFailedWriteLeavesNoTemporary) {
  Directory at;
  put(at.bucket, "a/b", "x");
  rlimit limit{}, small{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 1000;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  const ErrorCode code = code_of([&] { put(at.bucket, "a/c", std::string(5000, 'x')); }, &message);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, ErrorCode::io);
  EXPECT_NE(message.find("a/c"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(at.root / ".tmp"));
  EXPECT_EQ(code_of([&] { get_part(at.bucket, "a/c", 0, 1); }), ErrorCode::not_found);
}

// ---- URLs ----

TEST(BucketUrl, HasOneCanonicalForm) {
  EXPECT_EQ(canonical_url("file:///a/b"), "file:///a/b");
  EXPECT_EQ(canonical_url("file:///a//b/./c/../"), "file:///a/b");
  EXPECT_EQ(canonical_url("/a/b/"), "file:///a/b");
  EXPECT_EQ(canonical_url("/"), "file:///");
  EXPECT_EQ(canonical_url("file:///a%20b"), "file:///a%20b");
  EXPECT_EQ(canonical_url("./x"), "file://" + (std::filesystem::current_path() / "x").string());
  EXPECT_EQ(directory_of_url("file:///a/b"), "/a/b");
  EXPECT_EQ(directory_of_url("file:///"), "/");
  EXPECT_EQ(directory_of_url("s3://a/b"), "");
}

TEST(BucketUrl, RefusesWhatIsNone) {
  for (const char* url : {"", "bucket", "file://", "file://a/b", "file://host/a", "file:/a", "://x",
                          "file:///a\nb"}) {
    EXPECT_EQ(code_of([&] { canonical_url(url); }), ErrorCode::invalid) << url;
  }
}

TEST(BucketUrl, NeverShowsWhatMayBeASecret) {
  for (const char* url : {"s3://AKID:hidden@bucket/x", "AKID:hidden@bucket", "hf://hidden@org/b",
                          "https://AKID:hidden@host/x", "s3://AKID:hid/hidden@bucket"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { open_bucket(url, true); }, &message), ErrorCode::invalid);
    EXPECT_EQ(message.find("hidden"), std::string::npos) << message;
  }
}

TEST(BucketUrl, OptionsOfS3AreRefusedForADirectory) {
  const TempDir directory;
  BucketOptions options;
  options.region = "eu-west-1";
  std::string message;
  EXPECT_EQ(code_of([&] { open_bucket(directory.path().string(), true, options); }, &message),
            ErrorCode::invalid);
  EXPECT_NE(message.find("is a directory"), std::string::npos) << message;
}

// ---- faults of the fake ----

TEST(MemoryBucket, FailsWhereItIsTold) {
  MemoryBucket bucket;
  put(bucket, "a/1", "x");
  bucket.fail_key("a/", ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { get(bucket, "a/1"); }), ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { put(bucket, "a/2", "x"); }), ErrorCode::unavailable);
  put(bucket, "b", "x");
  bucket.heal();
  EXPECT_EQ(get(bucket, "a/1"), "x");
  bucket.fail_call(2, ErrorCode::timed_out);
  EXPECT_EQ(get_part(bucket, "b", 0, 1), "x");
  EXPECT_EQ(code_of([&] { get_part(bucket, "b", 0, 1); }), ErrorCode::timed_out);
  EXPECT_EQ(get_part(bucket, "b", 0, 1), "x");
  EXPECT_EQ(bucket.failures(), 3u);
}

TEST(MemoryBucket, LosesAReply) {
  MemoryBucket bucket;
  bucket.lose_reply("v/");
  EXPECT_EQ(code_of([&] { bucket.put_if_absent("v/1", "x", {}); }), ErrorCode::unavailable);
  EXPECT_EQ(bucket.put_if_absent("v/1", "x", {}), Bucket::Put::exists);
}

}  // namespace
}  // namespace weightfs
