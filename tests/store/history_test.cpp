#include "store/history.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/bytes.hpp"
#include "store/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/memory_bucket.hpp"
#include "tests/support/small_versions.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::commit_versions;
using test::make_manifest;
using test::make_opaque_layout;
using test::MemoryBucket;
using test::TempDir;

constexpr std::string_view kHistoryId = "0123456789abcdef0123456789abcdef";

// A repository in memory and a store on disk, both of which outlive many histories.
struct HistoryFixture {
  MemoryBucket* bucket = new MemoryBucket;
  std::unique_ptr<Repository> repository = open_repository();
  TempDir parent;
  std::atomic<std::uint64_t> free_bytes = 1ull << 40;
  std::unique_ptr<Store> store =
      Store::open(parent / "store", kHistoryId, "memory:///bucket", {}, [this] {
        return Space{free_bytes, 1ull << 41};
      });

  std::unique_ptr<Repository> open_repository() {
    bucket->replace(keys::kRecord, R"({"created":1,"format":1,"id":")" + std::string(kHistoryId) +
                                       R"(","required_features":[]})");
    return Repository::open(std::unique_ptr<Bucket>(bucket), {});
  }
  std::unique_ptr<History> history() { return std::make_unique<History>(*repository, store.get()); }

  // Another history of the same numbers from `first` on: what a rewritten bucket looks like.
  void rewrite(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t number = first; number < first + count; number++) {
      bucket->erase(keys::manifest(number));
    }
    commit_versions(*repository, first + count - 1);
  }
};

TEST(History, FindsVersionsOfTheBucket) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 3);
  for (Store* store : {at.store.get(), static_cast<Store*>(nullptr)}) {
    History history(*at.repository, store);
    for (const Version& version : versions) {
      const auto found = history.find(version.number(), {});
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->manifest_sha256, version.manifest_sha256);
      EXPECT_EQ(history.find(version.number(), {}), found) << "the same object again";
    }
    EXPECT_EQ(history.find(4, {}), nullptr);
    EXPECT_EQ(history.find(0, {}), nullptr);
  }
}

TEST(History, KeepsWhatItFetched) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  at.history()->find(2, {});
  EXPECT_EQ(at.store->find_manifest(2), versions[1].manifest_bytes);
  at.bucket->fail_key("", ErrorCode::unavailable);
  const auto found = at.history()->find(2, {});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->manifest_sha256, versions[1].manifest_sha256);
  EXPECT_EQ(found->manifest_bytes, versions[1].manifest_bytes);
  EXPECT_EQ(code_of([&] { at.history()->find(1, {}); }), ErrorCode::unavailable);
}

TEST(History, DoesNotTrustARottenRecord) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  at.store->put_manifest(1, "rotten");
  at.store->put_manifest(2, versions[0].manifest_bytes);
  const auto history = at.history();
  EXPECT_EQ(history->find(1, {})->manifest_sha256, versions[0].manifest_sha256);
  EXPECT_EQ(history->find(2, {})->manifest_sha256, versions[1].manifest_sha256);
  EXPECT_EQ(at.store->find_manifest(2), versions[1].manifest_bytes) << "it was mended";
}

TEST(History, SaysWhichVersionsThereAre) {
  HistoryFixture at;
  std::string message;
  EXPECT_EQ(code_of([&] { at.history()->get(1, {}); }, &message), ErrorCode::not_found);
  EXPECT_EQ(message, "version 1 does not exist; the repository is empty");
  commit_versions(*at.repository, 3);
  EXPECT_EQ(code_of([&] { at.history()->get(9, {}); }, &message), ErrorCode::not_found);
  EXPECT_EQ(message, "version 9 does not exist; the repository has versions 1 to 3");
  EXPECT_EQ(at.history()->get(3, {})->number(), 3u);
}

TEST(History, SharesLayoutsAndKeepsThem) {
  HistoryFixture at;
  const auto layout = make_opaque_layout({{"a.bin", 100}});
  Manifest manifest = make_manifest(std::string(kHistoryId), nullptr);
  manifest.layout = at.repository->put_layout(*layout, {});
  const Version version = at.repository->commit(manifest, {});
  const auto history = at.history();
  const auto first = history->layout(version, {});
  EXPECT_EQ(first->id(), layout->id());
  EXPECT_EQ(history->layout(version, {}), first);

  at.bucket->fail_key("", ErrorCode::unavailable);
  EXPECT_EQ(at.history()->layout(version, {})->id(), layout->id());
  at.bucket->heal();
  at.store->put_layout(layout->id(), "rotten");
  EXPECT_EQ(at.history()->layout(version, {})->id(), layout->id());
  EXPECT_EQ(History(*at.repository, nullptr).layout(version, {})->id(), layout->id());
}

// ---- news ----

TEST(History, RefreshFindsWhatIsNew) {
  HistoryFixture at;
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 0u);
  commit_versions(*at.repository, 1);
  EXPECT_EQ(history->refresh(0, {}), 1u);
  EXPECT_EQ(history->refresh(1, {}), 1u);
  const auto versions = commit_versions(*at.repository, 4);
  EXPECT_EQ(history->refresh(1, {}), 4u);
  EXPECT_EQ(at.store->newest().version, 4u);
  EXPECT_EQ(at.store->newest().manifest_sha256, versions[3].manifest_sha256);
  EXPECT_EQ(History(*at.repository, nullptr).refresh(0, {}), 4u);
}

TEST(History, ALaterPollWithoutNewsIsOneGet) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  history->refresh(0, {});
  const std::uint64_t before = at.bucket->calls();
  EXPECT_EQ(history->refresh(3, {}), 3u);
  EXPECT_EQ(at.bucket->calls() - before, 1u);
}

TEST(History, RefreshHandsOutWhatCameBeforeTheTrouble) {
  HistoryFixture at;
  commit_versions(*at.repository, 4);
  const std::string good = at.bucket->find(keys::manifest(3)).value();
  at.bucket->replace(keys::manifest(3), "rotten");
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 2u);
  EXPECT_EQ(at.store->newest().version, 2u);
  std::string message;
  EXPECT_EQ(code_of([&] { history->refresh(2, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find(keys::manifest(3)), std::string::npos) << message;
  at.bucket->replace(keys::manifest(3), good);
  EXPECT_EQ(history->refresh(2, {}), 4u);
}

TEST(History, AnUnreachableBucketIsNoRollback) {
  HistoryFixture at;
  commit_versions(*at.repository, 2);
  const auto history = at.history();
  at.bucket->fail_key("", ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { history->refresh(0, {}); }), ErrorCode::unavailable);
  at.bucket->heal();
  EXPECT_EQ(history->refresh(0, {}), 2u);
}

// ---- forks and rollbacks ----

TEST(History, RefusesAVersionWithAnotherParent) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 2u);
  Manifest stranger = make_manifest(std::string(kHistoryId), &versions[1]);
  stranger.parent_sha256[0] ^= std::byte{1};
  at.repository->commit(stranger, {});
  std::string message;
  EXPECT_EQ(code_of([&] { history->refresh(2, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find("version 3 does not follow version 2"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { history->find(3, {}); }), ErrorCode::corrupt);
  EXPECT_EQ(at.store->newest().version, 2u);
  EXPECT_EQ(at.store->find_manifest(3), std::nullopt) << "what was refused is not kept";
}

TEST(History, RefusesAParentThatItsKnownChildDoesNotName) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  ASSERT_NE(history->find(3, {}), nullptr);
  at.rewrite(2, 1);
  EXPECT_EQ(code_of([&] { history->find(2, {}); }), ErrorCode::corrupt);
}

TEST(History, SeesARewrittenVersionAtItsFirstRefresh) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  EXPECT_EQ(at.history()->refresh(0, {}), 3u);
  at.rewrite(3, 2);
  std::string message;
  const auto history = at.history();
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(code_of([&] { history->refresh(3, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find("the bucket's version 3 is not the one this host knew"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(at.store->newest().version, 3u);
}

TEST(History, SeesARewrittenVersionWhenTheNextOneComes) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 3u);
  at.rewrite(3, 2);
  EXPECT_EQ(code_of([&] { history->refresh(3, {}); }), ErrorCode::corrupt);
}

TEST(History, SeesARollbackAtItsFirstRefresh) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  EXPECT_EQ(at.history()->refresh(0, {}), 3u);
  const std::string lost = at.bucket->find(keys::manifest(3)).value();
  at.bucket->erase(keys::manifest(3));
  std::string message;
  const auto history = at.history();
  EXPECT_EQ(code_of([&] { history->refresh(0, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find("lost version 3"), std::string::npos) << message;
  at.bucket->replace(keys::manifest(3), lost);
  EXPECT_EQ(history->refresh(0, {}), 3u) << "mended";
}

// The record of the newest version outlives the manifests that the store kept.
TEST(History, SeesAForkEvenIfOnlyTheNewestIsRemembered) {
  HistoryFixture at;
  commit_versions(*at.repository, 2);
  at.store->put_newest({2, Sha256{}});
  EXPECT_EQ(code_of([&] { at.history()->find(2, {}); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { at.history()->refresh(0, {}); }), ErrorCode::corrupt);
}

// ---- a full disk, and many threads ----

TEST(History, AFullDiskCostsOnlyTheMemory) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  at.free_bytes = 0;
  const auto history = at.history();
  testing::internal::CaptureStderr();
  EXPECT_EQ(history->refresh(0, {}), 3u);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("cannot keep"), std::string::npos) << log;
  EXPECT_EQ(log.find("cannot keep"), log.rfind("cannot keep")) << "said more than once: " << log;
  EXPECT_EQ(at.store->newest().version, 0u);

  at.free_bytes = 1ull << 40;
  EXPECT_EQ(history->refresh(3, {}), 3u);
  EXPECT_EQ(at.store->newest().version, 3u) << "made up for";
}

TEST(History, MayBeUsedByManyThreads) {
  HistoryFixture at;
  const auto layout = make_opaque_layout({{"a.bin", 100}});
  Manifest manifest = make_manifest(std::string(kHistoryId), nullptr);
  manifest.layout = at.repository->put_layout(*layout, {});
  const Version first = at.repository->commit(manifest, {});
  commit_versions(*at.repository, 10);
  const auto history = at.history();
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&] {
      EXPECT_EQ(history->refresh(0, {}), 10u);
      for (std::uint64_t number = 10; number > 0; number--) {
        EXPECT_EQ(history->get(number, {})->number(), number);
      }
      EXPECT_EQ(history->layout(first, {})->id(), layout->id());
    });
  }
  threads.clear();
  EXPECT_EQ(at.store->manifest_numbers().size(), 10u);
}

}  // namespace
}  // namespace weightfs
