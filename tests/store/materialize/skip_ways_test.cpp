// Ways with skip deltas: which are taken, what they cost, and that nothing depends on them.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "store/base/bytes.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/skips.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs {
namespace {

using test::BuildOptions;
using test::code_of;
using test::Model;
using test::TestTensor;
using test::WatchedBucket;

/// "1 2 >8 9": the start, then where deltas lead, and skips (>).
std::string text_of(const Plan& plan) {
  std::string text =
      std::to_string(plan.base ? plan.base->version->number() : plan.snapshot->version->number());
  for (const Step& step : plan.steps) {
    text += (step.skip ? " >" : " ") + std::to_string(step.version->number());
  }
  return text;
}

class SkipWays : public test::Materialize {
 protected:
  /// `count` versions of a small model, a bit of which changes with each.
  void add_versions(std::uint64_t count, const BuildOptions& options = {}) {
    if (model_.files.empty()) model_.files["m.safetensors"] = {tensor("w"), tensor("v")};
    for (std::uint64_t i = 0; i < count; i++) {
      builder_.add(model_.tree(), options);
      model_.nudge_all(0.001, rng_);
    }
  }
  TestTensor tensor(const std::string& name) {
    return test::random_tensor(name, Dtype::bf16, {1000, 1500}, rng_);  // 3 MB
  }
  /// As a new process would plan it.
  Plan plan_anew(std::uint64_t version, const std::vector<Base>& bases = {}) {
    History history(*repository_, nullptr);
    return make_plan(history, history.get(version, {}), bases, {});
  }
  void expect_built(std::uint64_t version) { expect_version(write(plan(version))); }

  Model model_;
};

TEST_F(SkipWays, AreTakenAndLeadToTheRightBytes) {
  add_versions(20);
  builder_.add_skip({1, 9});
  builder_.add_skip({9, 17});
  const Plan way = plan(19);
  EXPECT_EQ(text_of(way), "1 >9 >17 18 19");
  expect_version(write(way));
  EXPECT_EQ(text_of(plan(9)), "1 >9");
  expect_built(9);
}

TEST_F(SkipWays, FromABaseHere) {
  add_versions(20);
  builder_.add_skip({4, 12});
  const Base base = write(plan(3));
  const Plan way = plan(14, {base});
  EXPECT_EQ(text_of(way), "3 4 >12 13 14");
  expect_version(write(way));
}

TEST_F(SkipWays, ADearOneIsNotTaken) {
  add_versions(10);
  builder_.add_skip({1, 9});
  builder_.bucket()->replace(keys::skip_pack({1, 9}, std::string(32, 'a') + "-0"),
                             std::string(32u << 20, 'x'));
  EXPECT_EQ(text_of(plan(9)), "1 2 3 4 5 6 7 8 9") << "as LIST says: a hint";
}

// A host that is one version behind asks for nothing more than it did: the header of a pack.
TEST_F(SkipWays, AHostThatIsOneVersionBehindMakesNoOtherRequest) {
  add_versions(20);
  builder_.add_skip({1, 9});
  builder_.add_skip({1, 17});
  const Base base = write(plan(19));
  history_.get(20, {});
  const auto before = builder_.bucket()->calls(), lists = builder_.bucket()->calls("list");
  const Plan way = plan(20, {base});
  EXPECT_EQ(text_of(way), "19 20");
  EXPECT_EQ(builder_.bucket()->calls() - before, way.steps[0].packs.size());
  EXPECT_EQ(builder_.bucket()->calls("list"), lists);
}

TEST_F(SkipWays, OnlyManifestsOnTheWayAreRead) {
  add_versions(100);
  for (std::uint64_t to = 9; to <= 97; to += 8) builder_.add_skip({to - 8, to});
  for (std::uint64_t to = 33; to <= 97; to += 32) builder_.add_skip({to - 32, to});
  auto watched = std::make_unique<WatchedBucket>(builder_.bucket());
  const WatchedBucket& bucket = *watched;
  const auto repository = Repository::open(std::move(watched), {});
  History history(*repository, nullptr);
  const auto wanted = history.get(100, {});
  const auto lists = builder_.bucket()->calls("list");
  const Plan way = make_plan(history, wanted, {}, {});
  EXPECT_EQ(text_of(way), "1 >33 >65 >97 98 99 100");
  std::set<std::string> read;
  for (const auto& get : bucket.gets(keys::kVersions)) read.insert(get.key);
  std::set<std::string> expected;
  for (const std::uint64_t n : {1u, 33u, 65u, 97u, 98u, 99u, 100u})
    expected.insert(keys::manifest(n));
  EXPECT_EQ(read, expected);
  EXPECT_EQ(builder_.bucket()->calls("list") - lists, 1u);
  // Record, and the header of a pack, for each skip.
  EXPECT_EQ(bucket.gets(keys::kSkips).size(), 3u * 2u);
}

TEST_F(SkipWays, HistoriesWithoutTheNameOfTheSnapshotAreWalked) {
  add_versions(30, {.names_snapshot = false});
  builder_.add_skip({1, 25});
  EXPECT_EQ(text_of(plan_anew(27)), "1 >25 26 27");
  EXPECT_EQ(text_of(plan_anew(3)), "1 2 3");
}

TEST_F(SkipWays, AManifestThatNamesNoSnapshotIsNotBelieved) {
  add_versions(5);
  add_versions(1, {.edit = [](Manifest& manifest) { manifest.snapshot_before = 3; }});
  add_versions(1);
  add_versions(1, {.edit = [](Manifest& manifest) { manifest.snapshot_before = 0; }});
  EXPECT_EQ(text_of(plan_anew(6)), "1 2 3 4 5 6");
  expect_built(6);
}

// ---- nothing depends on them ----

class BadSkips : public SkipWays {
 protected:
  static constexpr VersionPair kBad{1, 9};

  void SetUp() override { add_versions(12); }
  /// Builds version 10 as if the skip did not exist, and says so once.
  void expect_done_without() {
    testing::internal::CaptureStderr();
    const Plan way = plan(10);
    EXPECT_EQ(text_of(way), "1 2 3 4 5 6 7 8 9 10");
    expect_version(write(way));
    EXPECT_EQ(text_of(plan(9)), "1 2 3 4 5 6 7 8 9");
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string said = "the skip delta from version 1 to 9 is not used";
    EXPECT_NE(log.find(said), std::string::npos) << log;
    EXPECT_EQ(log.find(said), log.rfind(said)) << "said more than once: " << log;
  }
  std::string pack() { return builder_.key("skips/00000000000000000009-", ".safetensors"); }
};

TEST_F(BadSkips, ARecordThatIsDamaged) {
  builder_.add_skip(kBad);
  builder_.flip(keys::skip_record(kBad), 40);
  expect_done_without();
}

TEST_F(BadSkips, ARecordThatIsGone) {
  builder_.bucket()->list_also(keys::skip_record(kBad));
  expect_done_without();
}

TEST_F(BadSkips, ARecordThatMayNotBeRead) {
  builder_.add_skip(kBad);
  builder_.bucket()->fail_key(std::string(keys::kSkips) + "0", ErrorCode::permission);
  expect_done_without();
}

TEST_F(BadSkips, APackThatMayNotBeRead) {
  builder_.add_skip(kBad);
  builder_.bucket()->fail_key(pack(), ErrorCode::permission);
  expect_done_without();
}

TEST_F(BadSkips, ARecordWithAFeatureThatIsNotKnown) {
  builder_.add_skip(kBad);
  SkipRecord record = SkipRecord::parse(*builder_.bucket()->find(keys::skip_record(kBad)), "it");
  record.features = {"later"};
  builder_.bucket()->replace(keys::skip_record(kBad), record.serialize());
  expect_done_without();
}

TEST_F(BadSkips, ARecordOfAnotherFrom) {
  builder_.add_skip(kBad,
                    {.edit = [](SkipRecord& record) { record.from_sha256[0] ^= std::byte{1}; }});
  expect_done_without();
}

TEST_F(BadSkips, ARecordOfAnotherTo) {
  builder_.add_skip(kBad,
                    {.edit = [](SkipRecord& record) { record.to_sha256[0] ^= std::byte{1}; }});
  expect_done_without();
}

TEST_F(BadSkips, APackThatIsGone) {
  builder_.add_skip(kBad);
  builder_.bucket()->erase(pack());
  expect_done_without();
}

TEST_F(BadSkips, APackWithADamagedHeader) {
  builder_.add_skip(kBad);
  builder_.flip(pack(), 20);
  expect_done_without();
}

TEST_F(BadSkips, OneThatLeadsToAnotherRoot) {
  builder_.add_skip(kBad, {.wrong_hash = std::pair(0u, 0u)});
  expect_done_without();
}

TEST_F(BadSkips, OneThatLeavesOutAChunk) {
  builder_.add_skip(kBad, {.left_out = std::pair(0u, 0u)});
  expect_done_without();
}

TEST_F(BadSkips, ManyOfThem) {
  for (std::uint64_t from = 1; from <= 8; from++) {
    for (std::uint64_t to = from + 2; to <= 10; to++) {
      builder_.add_skip({from, to}, {.wrong_hash = std::pair(0u, 0u)});
    }
  }
  testing::internal::CaptureStderr();
  const Plan way = plan(10);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(text_of(way), "1 2 3 4 5 6 7 8 9 10");
  expect_version(write(way));
}

// gc left nothing but two skips and what follows them; all others are bad.
TEST_F(BadSkips, ManyOfThemBesideThoseThatAreNeeded) {
  builder_.add_skip({1, 9});
  builder_.add_skip({9, 12});
  add_versions(1);
  for (std::uint64_t from = 1; from <= 10; from++) {
    for (std::uint64_t to = from + 2; to <= 13; to++) {
      if (to == 9 || to == 12) continue;
      builder_.add_skip({from, to}, {.wrong_hash = std::pair(0u, 0u)});
    }
  }
  GcRecord record;
  record.repository = repository_->id();
  record.number = 1;
  record.head = 13;
  record.nonce = std::string(32, 'c');
  for (const VersionPair& skip : {VersionPair{1, 9}, VersionPair{9, 12}}) {
    record.needs.emplace(skip, sha256(as_bytes(*builder_.bucket()->find(keys::skip_record(skip)))));
  }
  builder_.bucket()->replace(keys::gc_record(1), record.serialize());
  for (std::uint64_t version = 2; version <= 12; version++) {
    builder_.bucket()->erase(builder_.key("packs/" + std::to_string(version) + "/"));
  }
  testing::internal::CaptureStderr();
  const Plan way = plan(13);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(text_of(way), "1 >9 >12 13");
  expect_version(write(way));
}

TEST_F(BadSkips, OneBeyondAChangeOfTheTensorTable) {
  model_.files["m.safetensors"].push_back(tensor("new"));
  add_versions(6);
  builder_.add_skip({12, 14});
  builder_.add_skip({8, 16});
  testing::internal::CaptureStderr();
  const Plan way = plan(16);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(text_of(way), "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16");
  expect_version(write(way));
}

// LIST fails: the version is built without skips.
TEST_F(BadSkips, AListThatFails) {
  builder_.add_skip(kBad);
  builder_.bucket()->fail_list(ErrorCode::io);
  EXPECT_EQ(text_of(plan(9)), "1 2 3 4 5 6 7 8 9");
}

// A skip may lead around a delta that is damaged.
TEST_F(BadSkips, AGoodOneLeadsAroundADamagedDelta) {
  builder_.add_skip({1, 3});
  builder_.flip(builder_.key("packs/2/"), 20);
  const Plan way = plan(4);
  EXPECT_EQ(text_of(way), "1 >3 4");
  expect_version(write(way));
}

// gc may leave nothing else: then it is tried again once it is mended, as any object is.
TEST_F(BadSkips, OneThatIsTheOnlyWayIsTriedAgain) {
  builder_.add_skip(kBad);
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with("packs/5/")) builder_.bucket()->erase(key);
  }
  const std::string key = pack(), good = *builder_.bucket()->find(key);
  builder_.bucket()->erase(key);
  testing::internal::CaptureStderr();
  EXPECT_EQ(code_of([&] { plan(10); }), ErrorCode::not_found);
  builder_.bucket()->replace(key, good);
  const Plan way = plan(10);
  EXPECT_EQ(text_of(way), "1 >9 10");
  expect_version(write(way));
  testing::internal::GetCapturedStderr();
}

// ---- damage that only decoding finds ----

class SkipsInUse : public BadSkips {
 protected:
  void SetUp() override {
    BadSkips::SetUp();
    builder_.add_skip(kBad);
  }
  test::Host host() { return {builder_.bucket(), directory_ / "store"}; }
};

TEST_F(SkipsInUse, APieceThatIsDamagedLeadsToAnotherWay) {
  builder_.flip(pack(), -5);
  test::Host host(builder_.bucket(), directory_ / "store");
  EXPECT_EQ(host.read_version(10), builder_.tree(10));
}

TEST_F(SkipsInUse, APackThatGoesMeanwhileLeadsToAnotherWay) {
  test::Host host(builder_.bucket(), directory_ / "store");
  VersionWatch watch(10);
  const std::string key = pack();
  bool is_gone = false;
  materialize(
      *host.store, host.history, 10, {},
      [&](std::string_view, std::uint64_t, std::uint64_t) {
        if (!std::exchange(is_gone, true)) builder_.bucket()->erase(key);
      },
      kernels::make_cpu_coder(), {}, &watch);
  EXPECT_TRUE(is_gone);
  EXPECT_EQ(host.read_version(10), builder_.tree(10));
}

TEST_F(SkipsInUse, AreCounted) {
  test::Host host(builder_.bucket(), directory_ / "store");
  VersionWatch watch(10);
  materialize(*host.store, host.history, 10, {}, {}, kernels::make_cpu_coder(), {}, &watch);
  EXPECT_EQ(watch.timing.skips, 1u);
  EXPECT_EQ(watch.timing.deltas, 1u);
}

// ---- random ----

TEST_F(SkipWays, WhateverHappensToSkipsEveryVersionIsBuilt) {
  constexpr std::uint64_t kVersions = 24;
  model_.files["m.safetensors"] = {test::random_tensor("w", Dtype::bf16, {70'000}, rng_),
                                   test::random_tensor("v", Dtype::u8, {300'000}, rng_)};
  for (std::uint64_t n = 1; n <= kVersions; n++) {
    add_versions(1, {.snapshot = rng_() % 10 == 0, .names_snapshot = rng_() % 4 != 0});
    if (rng_() % 12 == 0) {
      model_.files["m.safetensors"].push_back(
          test::random_tensor("t" + std::to_string(n), Dtype::u8, {1000}, rng_));
    }
  }
  for (int i = 0; i < 40; i++) {
    const std::uint64_t from = 1 + rng_() % (kVersions - 2);
    const VersionPair versions{from, from + 2 + rng_() % (kVersions - from - 1)};
    if (builder_.bucket()->find(keys::skip_record(versions))) continue;
    const bool is_wrong = rng_() % 6 == 0;
    builder_.add_skip(versions,
                      {.wrong_hash = is_wrong ? std::optional(std::pair(0u, 0u)) : std::nullopt});
  }
  std::vector<std::string> objects;
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with(keys::kSkips) && !bytes.empty()) objects.push_back(key);
  }
  for (const std::string& key : objects) {
    const auto size = static_cast<std::int64_t>(builder_.bucket()->find(key)->size());
    if (rng_() % 4 == 0) builder_.flip(key, static_cast<std::int64_t>(rng_()) % size);
    if (rng_() % 8 == 0) builder_.bucket()->erase(key);
  }
  testing::internal::CaptureStderr();
  test::Host host(builder_.bucket(), directory_ / "store");
  for (int i = 0; i < 12; i++) {
    const std::uint64_t version = 1 + rng_() % kVersions;
    ASSERT_EQ(host.read_version(version), builder_.tree(version)) << version;
    if (rng_() % 3 == 0) static_cast<void>(host.store->evictor().evict(version));
    test::Host cold(builder_.bucket(), directory_ / ("cold-" + std::to_string(i)));
    ASSERT_EQ(cold.read_version(version), builder_.tree(version)) << version;
  }
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace weightfs
