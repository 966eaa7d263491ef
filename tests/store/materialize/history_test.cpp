#include "store/materialize/history.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <stop_token>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
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

// A repository in memory and a store on disk, used by several History objects in turn.
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

  // Replaces the versions from `first` on by others with the same numbers, as if the bucket was
  // rewritten.
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
  EXPECT_EQ(at.store->manifests().find_manifest(2), versions[1].manifest_bytes);
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
  at.store->manifests().put_manifest(1, "rotten");
  at.store->manifests().put_manifest(2, versions[0].manifest_bytes);
  const auto history = at.history();
  EXPECT_EQ(history->find(1, {})->manifest_sha256, versions[0].manifest_sha256);
  EXPECT_EQ(history->find(2, {})->manifest_sha256, versions[1].manifest_sha256);
  EXPECT_EQ(at.store->manifests().find_manifest(2), versions[1].manifest_bytes) << "it was mended";
}

TEST(History, SaysWhichVersionsThereAre) {
  HistoryFixture at;
  std::string message;
  EXPECT_EQ(code_of([&] { at.history()->get(1, {}); }, &message), ErrorCode::not_found);
  EXPECT_EQ(message, "version 1 does not exist; the repository is empty");
  commit_versions(*at.repository, 1);
  EXPECT_EQ(code_of([&] { at.history()->get(9, {}); }, &message), ErrorCode::not_found);
  EXPECT_EQ(message, "version 9 does not exist; the repository has version 1");
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
  at.store->manifests().put_layout(layout->id(), "rotten");
  EXPECT_EQ(at.history()->layout(version, {})->id(), layout->id());
  EXPECT_EQ(History(*at.repository, nullptr).layout(version, {})->id(), layout->id());
}

// A layout whose header contains `bytes` of text, and one small tensor.
std::string wordy_layout(std::uint64_t number, std::size_t bytes) {
  const std::string word = std::to_string(number) + std::string(bytes, 'x');
  std::string head = test::make_safetensors({{"w", Dtype::u8, {0}, {}}}, {{"step", word}});
  std::string layout = "WFLAYOUT";
  append_le(layout, std::uint32_t{1});
  append_le(layout, std::uint32_t{1});
  append_le(layout, std::uint8_t{0});
  append_le(layout, std::uint16_t{13});
  layout += "m.safetensors";
  append_le(layout, std::uint64_t{head.size()});
  layout += head;
  append_le(layout, std::uint64_t{head.size()});
  return layout;
}

// A trainer that writes its step into every header makes a new layout for every version. Regression
// (D3): all of them stayed, in memory and in the store.
TEST(History, LayoutsOfPastVersionsTakeNeitherMemoryNorRecords) {
  HistoryFixture at;
  const auto history = at.history();
  constexpr std::size_t kBytes = 1u << 20;
  const std::size_t fit = History::kLayoutBytesKept / kBytes;
  std::vector<std::weak_ptr<const Layout>> layouts;
  std::vector<Version> versions;
  for (std::uint64_t number = 1; number <= fit + 8; number++) {
    const auto layout = Layout::parse(wordy_layout(number, kBytes), "a test's layout");
    Manifest manifest =
        make_manifest(std::string(kHistoryId), versions.empty() ? nullptr : &versions.back());
    const bool is_fetched = number % 4 == 1;
    manifest.layout.sha256 = layout->id();
    if (is_fetched) manifest.layout = at.repository->put_layout(*layout, {});
    versions.push_back(at.repository->commit(manifest, {}));
    if (is_fetched) {
      layouts.push_back(history->layout(*history->get(number, {}), {}));
    } else {
      layouts.push_back(layout);
      history->add(versions.back(), layout);
    }
  }
  const auto alive = std::count_if(layouts.begin(), layouts.end(),
                                   [](const auto& layout) { return !layout.expired(); });
  EXPECT_LE(static_cast<std::size_t>(alive), fit);
  EXPECT_GT(alive, 1) << "those used last stay";
  EXPECT_LE(at.store->manifests().layout_ids().size(), 2u)
      << "of the newest, and of the one in use";
  EXPECT_EQ(history->layout(versions.front(), {})->id(), versions.front().manifest.layout.sha256);
}

TEST(History, LayoutsOfVersionsThatAreHereStayInTheStore) {
  HistoryFixture at;
  std::vector<Version> versions;
  for (std::uint64_t number = 1; number <= 4; number++) {
    Manifest manifest =
        make_manifest(std::string(kHistoryId), versions.empty() ? nullptr : &versions.back());
    const auto layout = Layout::parse(wordy_layout(number, 10), "a test's layout");
    manifest.layout = at.repository->put_layout(*layout, {});
    versions.push_back(at.repository->commit(manifest, {}));
    at.history()->layout(versions.back(), {});
    if (number != 2) continue;
    at.history()->find(2, {});
    at.store->images().begin_images(2);
    at.store->images().complete_images(2, {}, {});
  }
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 4u);
  const auto used = history->layout(versions[2], {});
  history->layout(versions[3], {});
  const auto id = [&](std::size_t i) { return versions[i].manifest.layout.sha256; };
  EXPECT_EQ(at.store->manifests().layout_ids(), (std::set<Sha256>{id(1), id(2), id(3)}));
  at.bucket->fail_key("layouts/", ErrorCode::unavailable);
  EXPECT_NE(at.history()->find_layout(versions[1]), nullptr);
  EXPECT_EQ(at.history()->find_layout(versions[0]), nullptr);
}

// A layout that was pruned while it was unused in memory is recorded again when it is used.
TEST(History, ALayoutThatComesIntoUseAgainIsRecordedAgain) {
  HistoryFixture at;
  const auto history = at.history();
  const auto versions = commit_versions(*at.repository, 1);
  std::vector<Version> with_layouts;
  for (std::uint64_t number = 2; number <= 3; number++) {
    Manifest manifest = make_manifest(std::string(kHistoryId),
                                      with_layouts.empty() ? &versions[0] : &with_layouts.back());
    manifest.layout =
        at.repository->put_layout(*Layout::parse(wordy_layout(number, 10), "a test's layout"), {});
    with_layouts.push_back(at.repository->commit(manifest, {}));
    history->layout(with_layouts.back(), {});
  }
  const Sha256 first = with_layouts[0].manifest.layout.sha256;
  EXPECT_FALSE(at.store->manifests().layout_ids().contains(first));
  at.bucket->fail_key("", ErrorCode::unavailable);
  const auto used = history->layout(with_layouts[0], {});
  EXPECT_TRUE(at.store->manifests().layout_ids().contains(first));
}

// ---- new versions ----

// Regression (D5): manifests were fetched one after another, each taking 20 ms if the bucket is 20
// ms away.
TEST(History, RefreshFetchesManyManifestsAtATime) {
  HistoryFixture at;
  commit_versions(*at.repository, 100);
  at.bucket->fail_list(ErrorCode::permission);
  at.bucket->hang_key("versions/0000000000000000003");
  const std::uint64_t before = at.bucket->calls("get");
  const auto history = at.history();
  std::uint64_t newest = 0;
  std::jthread thread([&] { newest = history->refresh(0, {}); });
  EXPECT_TRUE(test::eventually([&] { return at.bucket->waiting() == 10; }))
      << at.bucket->waiting() << " of the manifests 30 to 39 are asked for at a time";
  at.bucket->heal();
  thread.join();
  EXPECT_EQ(newest, 100u);
  EXPECT_LE(at.bucket->calls("get") - before, 100u + 32u) << "few that do not exist";
  EXPECT_EQ(at.store->manifests().manifest_numbers().size(), 100u);
}

TEST(History, RefreshStopsAtTheFirstThatDoesNotFitHoweverManyCome) {
  HistoryFixture at;
  commit_versions(*at.repository, 40);
  for (const std::uint64_t bad : {17u, 30u}) {
    HistoryFixture fresh;
    const auto versions = commit_versions(*fresh.repository, bad - 1);
    Manifest stranger = make_manifest(std::string(kHistoryId), &versions.back());
    stranger.parent_sha256[0] ^= std::byte{1};
    fresh.repository->commit(stranger, {});
    commit_versions(*fresh.repository, 40);
    fresh.bucket->fail_list(ErrorCode::permission);
    const auto history = fresh.history();
    EXPECT_EQ(history->refresh(0, {}), bad - 1);
    EXPECT_EQ(fresh.store->manifests().find_manifest(bad), std::nullopt);
    EXPECT_EQ(fresh.store->manifests().find_manifest(bad + 1), std::nullopt)
        << "nor what follows it";
    std::string message;
    EXPECT_EQ(code_of([&] { history->refresh(bad - 1, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find("version " + std::to_string(bad) + " does not follow"),
              std::string::npos)
        << message;
  }
  at.bucket->fail_list(ErrorCode::permission);
  at.bucket->fail_key(keys::manifest(25), ErrorCode::unavailable);
  EXPECT_EQ(at.history()->refresh(0, {}), 24u);
}

TEST(History, ARefreshThatWaitsForManyCanBeStopped) {
  HistoryFixture at;
  commit_versions(*at.repository, 100);
  at.bucket->fail_list(ErrorCode::permission);
  at.bucket->hang_key("versions/0000000000000000003");
  const auto history = at.history();
  std::stop_source stop;
  std::uint64_t newest = 0;
  std::jthread thread([&] {
    newest = history->refresh(0, {stop.get_token(), Clock::time_point::max()});
  });
  EXPECT_TRUE(test::eventually([&] { return at.bucket->waiting() > 1; }));
  stop.request_stop();
  thread.join();
  EXPECT_LT(newest, 30u);
}

TEST(History, NeighboursThatComeAtOnceAreCompared) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  Manifest stranger = make_manifest(std::string(kHistoryId), &versions[1]);
  stranger.parent_sha256[0] ^= std::byte{1};
  at.repository->commit(stranger, {});

  // Each recording thread waits a while for the other, which must not get that far.
  std::atomic<bool> is_armed = false;
  std::atomic<int> recording = 0;
  const auto store = Store::open(at.parent / "slow", kHistoryId, "memory:///bucket", {}, [&] {
    if (is_armed) {
      recording++;
      const auto limit = Clock::now() + std::chrono::milliseconds(100);
      while (recording < 2 && Clock::now() < limit) std::this_thread::yield();
    }
    return Space{1ull << 40, 1ull << 41};
  });
  History history(*at.repository, store.get());
  is_armed = true;
  std::atomic<int> refused = 0;
  const auto find = [&](std::uint64_t number) {
    try {
      history.find(number, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
      refused++;
    }
  };
  std::jthread two(find, 2), three(find, 3);
  two.join();
  three.join();
  EXPECT_EQ(refused, 1);
}

TEST(History, RefreshFindsWhatIsNew) {
  HistoryFixture at;
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 0u);
  commit_versions(*at.repository, 1);
  EXPECT_EQ(history->refresh(0, {}), 1u);
  EXPECT_EQ(history->refresh(1, {}), 1u);
  const auto versions = commit_versions(*at.repository, 4);
  EXPECT_EQ(history->refresh(1, {}), 4u);
  EXPECT_EQ(at.store->manifests().newest().version, 4u);
  EXPECT_EQ(at.store->manifests().newest().manifest_sha256, versions[3].manifest_sha256);
  EXPECT_EQ(History(*at.repository, nullptr).refresh(0, {}), 4u);
}

TEST(History, ThatTheNextVersionIsThereTakesOneGet) {
  HistoryFixture at;
  commit_versions(*at.repository, 1);
  const auto history = at.history();
  history->refresh(0, {});
  commit_versions(*at.repository, 3);
  const std::uint64_t before = at.bucket->calls();
  EXPECT_EQ(history->refresh(1, {}, History::Reach::next), 2u);
  EXPECT_EQ(at.bucket->calls() - before, 1u);
  EXPECT_EQ(history->refresh(2, {}), 3u);
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

// ---- far behind ----

using Numbers = std::vector<std::uint64_t>;

// A host that joins at version 1,000 does not read 1,000 manifests.
TEST(History, RefreshJumpsToTheNewestOfManyVersions) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 300);
  const std::uint64_t before = at.bucket->calls();
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 300u);
  EXPECT_LE(at.bucket->calls() - before, 9u);
  EXPECT_EQ(at.store->manifests().manifest_numbers(), (Numbers{1, 2, 3, 4, 300}));
  EXPECT_EQ(at.store->manifests().newest().version, 300u);
  EXPECT_EQ(at.store->manifests().newest().manifest_sha256, versions[299].manifest_sha256);
  EXPECT_EQ(history->find(150, {})->manifest_sha256, versions[149].manifest_sha256);
  const std::uint64_t quiet = at.bucket->calls();
  EXPECT_EQ(history->refresh(300, {}), 300u);
  EXPECT_EQ(at.bucket->calls() - quiet, 1u);
}

TEST(History, AHostThatIsAFewVersionsBehindReadsAllOfThem) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  history->refresh(0, {});
  commit_versions(*at.repository, 3 + 4 + History::kWalkedMax);
  EXPECT_EQ(history->refresh(3, {}), 7 + History::kWalkedMax);
  EXPECT_EQ(at.store->manifests().manifest_numbers().size(), 7 + History::kWalkedMax);
}

// The first versions after the one that a host knows are read in any case.
TEST(History, AJumpLeadsIntoNoOtherHistory) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 3u);
  at.rewrite(3, 98);
  EXPECT_EQ(code_of([&] { history->refresh(3, {}); }), ErrorCode::corrupt);
  EXPECT_EQ(at.store->manifests().newest().version, 3u);
}

TEST(History, WhatWasJumpedOverIsComparedWhenItIsRead) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 49);
  Manifest stranger = make_manifest(std::string(kHistoryId), &versions.back());
  stranger.parent_sha256[0] ^= std::byte{1};
  at.repository->commit(stranger, {});
  commit_versions(*at.repository, 100);
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 100u);
  EXPECT_NE(history->find(50, {}), nullptr);
  EXPECT_EQ(code_of([&] { history->find(49, {}); }), ErrorCode::corrupt);
}

// Whoever is about to publish reads everything.
TEST(History, APublisherDoesNotJump) {
  HistoryFixture at;
  const auto versions = commit_versions(*at.repository, 49);
  Manifest stranger = make_manifest(std::string(kHistoryId), &versions.back());
  stranger.parent_sha256[0] ^= std::byte{1};
  at.repository->commit(stranger, {});
  commit_versions(*at.repository, 100);
  const auto history = at.history();
  history->look_behind_the_newest();
  EXPECT_EQ(history->refresh(0, {}), 49u);
  EXPECT_EQ(code_of([&] { history->refresh(49, {}); }), ErrorCode::corrupt);
}

TEST(History, AJumpSeesAGapThatListShows) {
  HistoryFixture at;
  commit_versions(*at.repository, 100);
  const std::string lost = at.bucket->find(keys::manifest(50)).value();
  at.bucket->erase(keys::manifest(50));
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 49u) << "what came before the gap";
  std::string message;
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(code_of([&] { history->refresh(49, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find(keys::manifest(50)), std::string::npos) << message;
  }
  at.bucket->replace(keys::manifest(50), lost);
  EXPECT_EQ(history->refresh(49, {}), 100u) << "mended";
}

TEST(History, AJumpTakesNoWordOfAList) {
  HistoryFixture at;
  commit_versions(*at.repository, 100);
  at.bucket->list_also(keys::manifest(500));
  EXPECT_EQ(at.history()->refresh(0, {}), 100u) << "it names what is not there";
  HistoryFixture lagging;
  commit_versions(*lagging.repository, 100);
  lagging.bucket->lag_list(30);
  EXPECT_EQ(lagging.history()->refresh(0, {}), 100u) << "it lags";
  HistoryFixture holes;
  commit_versions(*holes.repository, 100);
  holes.bucket->hide_from_list(keys::manifest(50).substr(0, keys::manifest(50).size() - 6));
  EXPECT_EQ(holes.history()->refresh(0, {}), 100u) << "it leaves out 50 to 59";
  HistoryFixture hidden;
  commit_versions(*hidden.repository, 100);
  hidden.bucket->hide_from_list("versions/");
  EXPECT_EQ(hidden.history()->refresh(0, {}), 100u) << "it shows nothing";
}

TEST(History, ADamagedManifestWhereAJumpLeadsIsTroubleOnlyForThatVersion) {
  HistoryFixture at;
  commit_versions(*at.repository, 100);
  at.bucket->replace(keys::manifest(100), "rotten");
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 99u);
  std::string message;
  EXPECT_EQ(code_of([&] { history->refresh(99, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find(keys::manifest(100)), std::string::npos) << message;
}

// ---- trouble ----

TEST(History, RefreshHandsOutWhatCameBeforeTheTrouble) {
  HistoryFixture at;
  commit_versions(*at.repository, 4);
  const std::string good = at.bucket->find(keys::manifest(3)).value();
  at.bucket->replace(keys::manifest(3), "rotten");
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 2u);
  EXPECT_EQ(at.store->manifests().newest().version, 2u);
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
  EXPECT_EQ(at.store->manifests().newest().version, 2u);
  EXPECT_EQ(at.store->manifests().find_manifest(3), std::nullopt) << "what was refused is not kept";
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
    EXPECT_NE(message.find("the bucket's version 3 is not the one that this host knew"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(at.store->manifests().newest().version, 3u);
}

TEST(History, SeesARewrittenVersionWhenTheNextOneComes) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 3u);
  at.rewrite(3, 2);
  EXPECT_EQ(code_of([&] { history->refresh(3, {}); }), ErrorCode::corrupt);
}

// The hash of the newest is kept beside its manifest, which may have rotted.
TEST(History, RefusesTheNextVersionOfAnotherHistoryAlsoWithoutTheManifestOfItsOwn) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  EXPECT_EQ(at.history()->refresh(0, {}), 3u);
  at.store->db().remove_range(ColumnFamily::manifests, {}, {}, {});
  at.rewrite(3, 2);
  std::string message;
  EXPECT_EQ(code_of([&] { at.history()->find(4, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find("the bucket's version 3 is not the one that this host knew"),
            std::string::npos)
      << message;
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

// ---- manifests of releases before 0.6.0 ----

/// Versions whose manifests have no hash of their own.
std::vector<Version> commit_old_versions(Repository& repository, std::uint64_t count) {
  std::vector<Version> versions;
  while (versions.size() < count) {
    Manifest manifest =
        make_manifest(repository.id(), versions.empty() ? nullptr : &versions.back(), "a-tag");
    manifest.features.clear();
    versions.push_back(repository.commit(manifest, {}));
  }
  return versions;
}

TEST(History, ComparesAnOldManifestWithTheVersionAfterIt) {
  HistoryFixture at;
  commit_old_versions(*at.repository, 3);
  std::string bytes = at.bucket->find(keys::manifest(2)).value();
  bytes.replace(bytes.find("a-tag"), 5, "b-tag");
  at.bucket->replace(keys::manifest(2), bytes);
  std::string message;
  for (Store* store : {static_cast<Store*>(nullptr), at.store.get()}) {
    History history(*at.repository, store);
    EXPECT_EQ(code_of([&] { history.find(2, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find("version 3 does not follow version 2"), std::string::npos) << message;
    EXPECT_EQ(history.refresh(0, {}), 1u) << "what comes before it is told";
    EXPECT_NE(history.find(3, {}), nullptr);
    EXPECT_EQ(code_of([&] { history.find(2, {}); }), ErrorCode::corrupt);
  }
  EXPECT_EQ(at.store->manifests().find_manifest(2), std::nullopt) << "what was refused is not kept";
}

TEST(History, AnOldManifestIsReadThoughTheVersionAfterItIsDamaged) {
  HistoryFixture at;
  commit_old_versions(*at.repository, 3);
  at.bucket->replace(keys::manifest(3), "rotten");
  EXPECT_NE(at.history()->find(2, {}), nullptr);
  EXPECT_EQ(at.history()->refresh(0, {}), 2u);
}

TEST(History, ANewManifestCostsNoLookAtTheVersionAfterIt) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  History history(*at.repository, nullptr);
  const std::uint64_t before = at.bucket->calls();
  ASSERT_NE(history.find(2, {}), nullptr);
  EXPECT_EQ(at.bucket->calls() - before, 1u);
}

// The record of the newest version outlives the stored manifests.
TEST(History, SeesAForkEvenIfOnlyTheNewestIsRemembered) {
  HistoryFixture at;
  commit_versions(*at.repository, 2);
  at.store->manifests().put_newest({2, Sha256{}});
  EXPECT_EQ(code_of([&] { at.history()->find(2, {}); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { at.history()->refresh(0, {}); }), ErrorCode::corrupt);
}

// ---- gaps ----

TEST(History, SeesAGapAtItsFirstRefreshAndNamesTheManifest) {
  HistoryFixture at;
  commit_versions(*at.repository, 6);
  const std::string lost = at.bucket->find(keys::manifest(4)).value();
  at.bucket->erase(keys::manifest(4));
  const auto history = at.history();
  EXPECT_EQ(history->refresh(0, {}), 3u) << "what came before the gap";
  std::string message;
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(code_of([&] { history->refresh(3, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find(keys::manifest(4)), std::string::npos) << message;
  }
  at.bucket->replace(keys::manifest(4), lost);
  EXPECT_EQ(history->refresh(3, {}), 6u) << "mended";
}

TEST(History, SeesThatTheFirstManifestIsGone) {
  HistoryFixture at;
  commit_versions(*at.repository, 2);
  at.bucket->erase(keys::manifest(1));
  EXPECT_EQ(code_of([&] { at.history()->refresh(0, {}); }), ErrorCode::corrupt);
  // A caller that only looks must not take the repository for empty, either.
  std::string message;
  EXPECT_EQ(code_of([&] { at.repository->newest_version(0, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find(keys::manifest(1)), std::string::npos) << message;
}

TEST(History, NamesAManifestThatIsMissing) {
  HistoryFixture at;
  commit_versions(*at.repository, 6);
  at.bucket->erase(keys::manifest(2));
  std::string message;
  EXPECT_EQ(code_of([&] { History(*at.repository, nullptr).get(2, {}); }, &message),
            ErrorCode::corrupt);
  EXPECT_NE(message.find(keys::manifest(2)), std::string::npos) << message;
}

// A LIST may be outdated, or name what was removed.
TEST(History, TakesNoWordOfAListForAGap) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  at.bucket->list_also(keys::manifest(9));
  EXPECT_EQ(at.history()->refresh(0, {}), 3u);
  EXPECT_EQ(at.history()->refresh(3, {}), 3u) << "the list names what is not there";
  at.bucket->heal();
  at.bucket->fail_list(ErrorCode::permission);
  EXPECT_EQ(at.history()->refresh(3, {}), 3u) << "who may not list goes on without";
  EXPECT_GT(at.bucket->failures(), 0u);
}

TEST(History, LooksBehindTheNewestOnceUnlessToldTo) {
  HistoryFixture at;
  commit_versions(*at.repository, 3);
  const auto history = at.history();
  history->refresh(0, {});
  EXPECT_EQ(at.bucket->calls("list"), 1u);
  for (int poll = 0; poll < 3; poll++) history->refresh(3, {});
  EXPECT_EQ(at.bucket->calls("list"), 1u);
  history->look_behind_the_newest();
  for (int poll = 0; poll < 3; poll++) history->refresh(3, {});
  EXPECT_EQ(at.bucket->calls("list"), 2u);
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
  EXPECT_EQ(at.store->manifests().newest().version, 0u);

  at.free_bytes = 1ull << 40;
  EXPECT_EQ(history->refresh(3, {}), 3u);
  EXPECT_EQ(at.store->manifests().newest().version, 3u) << "made up for";
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
  EXPECT_EQ(at.store->manifests().manifest_numbers().size(), 10u);
}

}  // namespace
}  // namespace weightfs
