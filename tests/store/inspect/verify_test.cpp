#include "store/inspect/verify.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/inspect/diff_versions.hpp"
#include "store/inspect/export.hpp"
#include "store/inspect/verify_tree.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/skips.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/writer.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::error_of;
using test::make_safetensors;
using test::MemoryBucket;
using test::nudge;
using test::random_tensor;
using test::read_tree;
using test::RepositoryBuilder;
using test::TempDir;
using test::TestTensor;
using test::Tree;
using Change = TensorDiff::Change;

std::set<std::string> objects_of(const VerifyReport& report) {
  std::set<std::string> objects;
  for (const Problem& problem : report.problems) objects.insert(problem.object);
  return objects;
}

bool has_nothing_in(const filesystem::path& directory) {
  return !filesystem::exists(directory) || filesystem::is_empty(directory);
}

std::string messages_of(const VerifyReport& report) {
  std::string all;
  for (const Problem& problem : report.problems)
    all += problem.object + ": " + problem.message + "\n";
  return all;
}

/// Six versions of two shards; version 4 also has a snapshot.  Every version changes both shards.
class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 1; i <= 6; i++) {
      for (auto& [path, tensors] : files_) {
        for (TestTensor& tensor : tensors) nudge(tensor, 0.01, rng_);
      }
      builder_.add(tree(i), {.snapshot = i == 4, .uploaders = 2, .chunks_per_pack = 2});
    }
  }

  Tree tree(int version) const {
    Tree tree;
    for (const auto& [path, tensors] : files_) tree[path] = make_safetensors(tensors);
    tree["config.json"] = "{}";
    tree["sub/notes.txt"] = "version " + std::to_string(version);
    return tree;
  }

  VerifyReport verify(std::optional<std::uint64_t> only = {}) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    const auto report = verify_repository(history, directory_ / "scratch", {}, {},
                                          kernels::make_cpu_coder(), {.only = only});
    EXPECT_TRUE(has_nothing_in(directory_ / "scratch"));
    return report;
  }

  /// Verifies; exactly these objects must be named, each once.
  void expect_problems(const std::set<std::string>& objects) {
    const VerifyReport report = verify();
    EXPECT_EQ(objects_of(report), objects) << messages_of(report);
    EXPECT_EQ(report.problems.size(), objects.size()) << messages_of(report);
    EXPECT_EQ(report.versions, 6u);
    for (const Problem& problem : report.problems) {
      EXPECT_NE(problem.message.find(problem.object), std::string::npos) << problem.message;
    }
  }

  /// The n-th pack of a version.
  std::string pack(int version, std::size_t n = 0) const {
    std::vector<std::string> found;
    const std::string prefix = "packs/" + std::to_string(version) + "/";
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      if (key.starts_with(prefix)) found.push_back(key);
    }
    return found.at(n);
  }

  std::string notes_blob(int version) const {
    return keys::blob(sha256(as_bytes("version " + std::to_string(version))));
  }

  TempDir directory_;
  test::Random rng_ = test::make_rng();
  std::map<std::string, std::vector<TestTensor>> files_{
      {"a.safetensors",
       {random_tensor("x", Dtype::bf16, {300, 1000}, rng_),
        random_tensor("bytes", Dtype::u8, {1500, 1000}, rng_)}},
      {"sub/b.safetensors", {random_tensor("y", Dtype::f32, {1000}, rng_)}}};
  RepositoryBuilder builder_;
};

// ---- verify_repository ----

TEST_F(Verify, FindsNothingInAWholeRepository) {
  const VerifyReport report = verify();
  EXPECT_EQ(messages_of(report), "");
  EXPECT_EQ(report.versions, 6u);
  // Every object in the bucket is named by some version.
  EXPECT_EQ(report.objects, builder_.bucket()->objects().size());
  std::uint64_t packs = 0;
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with("packs/")) packs += bytes.size();
  }
  EXPECT_GT(report.bytes, packs);
  EXPECT_TRUE(report.orphans.empty());
}

// Regression: an interrupted publish left 1.4 GB that verify did not report.
TEST_F(Verify, ADamagedSkipThatIsNeededNamesTheVersionsThatAreBuiltFromIt) {
  const SkipRecord skip = builder_.add_skip({1, 3});
  const std::string key = keys::skip_record(skip.versions), record = *builder_.bucket()->find(key);
  GcRecord gc;
  gc.repository = builder_.open()->id();
  gc.number = 1;
  gc.head = 6;
  gc.nonce = random_hex(16);
  gc.deltas.add({2, 3});
  gc.versions.add(2);
  gc.needs.emplace(skip.versions, sha256(as_bytes(record)));
  builder_.bucket()->replace(keys::gc_record(1), gc.serialize());
  EXPECT_EQ(messages_of(verify()), "");
  const std::string pack = keys::skip_pack(skip.versions, skip.delta.packs.at(0).name);
  for (const std::string& damaged : {pack, key}) {
    const std::string good = *builder_.bucket()->find(damaged);
    builder_.flip(damaged, -1);
    const VerifyReport report = verify();
    EXPECT_EQ(objects_of(report), std::set{damaged}) << messages_of(report);
    EXPECT_NE(messages_of(report).find("; versions 3 are built from it"), std::string::npos)
        << messages_of(report);
    builder_.bucket()->replace(damaged, good);
  }
}

/// gc left the skip delta from 4 to 6 instead of the deltas of 5 and 6.
class VerifyNeededSkips : public Verify {
 protected:
  void leave_skip(const VersionPair& versions) {
    skip_ = builder_.add_skip(versions);
    GcRecord gc;
    gc.repository = builder_.open()->id();
    gc.number = 1;
    gc.head = builder_.newest();
    gc.nonce = random_hex(16);
    gc.deltas.add({versions.from + 1, versions.to});
    gc.versions.add({versions.from + 1, versions.to - 1});
    const std::string record = *builder_.bucket()->find(keys::skip_record(versions));
    gc.needs.emplace(versions, sha256(as_bytes(record)));
    builder_.bucket()->replace(keys::gc_record(1), gc.serialize());
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      for (std::uint64_t version = versions.from + 1; version <= versions.to; version++) {
        if (key.starts_with(fmt::format("packs/{}/", version))) builder_.bucket()->erase(key);
      }
    }
  }
  std::string skip_pack() { return keys::skip_pack(skip_.versions, skip_.delta.packs.at(0).name); }

  SkipRecord skip_;
};

TEST_F(VerifyNeededSkips, WhatFollowsOneIsDecoded) {
  nudge(files_["a.safetensors"][1], 0.5, rng_);
  builder_.add(tree(7), {.wrong_hash = std::pair(1u, 1u)});
  leave_skip({4, 6});
  const VerifyReport report = verify();
  EXPECT_EQ(objects_of(report), std::set{pack(7)}) << messages_of(report);
  EXPECT_NE(messages_of(report).find("chunk 1 of tensor 'bytes'"), std::string::npos);
  EXPECT_EQ(messages_of(verify(6)), "");
}

TEST_F(VerifyNeededSkips, OfOneVersionDecodesTheOneThatItIsBuiltFrom) {
  leave_skip({4, 6});
  EXPECT_EQ(messages_of(verify()), "");
  EXPECT_EQ(messages_of(verify(6)), "");
  builder_.flip(skip_pack(), -1);
  EXPECT_EQ(objects_of(verify(6)), std::set{skip_pack()});
  EXPECT_EQ(messages_of(verify(6)).find("no version depends on it"), std::string::npos);
  const VerifyReport all = verify();
  EXPECT_EQ(objects_of(all), std::set{skip_pack()}) << messages_of(all);
}

// Each of two skips is built on by what follows.
TEST_F(VerifyNeededSkips, ADamagedOneIsNamedAndNotWhatFollowsIt) {
  leave_skip({4, 6});
  const SkipRecord next = builder_.add_skip({1, 3});
  GcRecord gc = read_gc_log(*builder_.open(), {}).records.at(0);
  gc.deltas.add({2, 3});
  gc.versions.add(2);
  const std::string record = *builder_.bucket()->find(keys::skip_record(next.versions));
  gc.needs.emplace(next.versions, sha256(as_bytes(record)));
  builder_.bucket()->replace(keys::gc_record(1), gc.serialize());
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with("packs/2/") || key.starts_with("packs/3/")) builder_.bucket()->erase(key);
  }
  EXPECT_EQ(messages_of(verify()), "");
  for (const std::uint64_t version : {1u, 3u, 4u, 6u}) EXPECT_EQ(messages_of(verify(version)), "");
  builder_.flip(keys::skip_pack(next.versions, next.delta.packs.at(0).name), 20);
  const VerifyReport report = verify();
  EXPECT_EQ(report.problems.size(), 1u) << messages_of(report);
  EXPECT_NE(messages_of(report).find("; versions 3 are built from it"), std::string::npos)
      << messages_of(report);
}

// A wrong chunk is in the delta, whatever the snapshot has.
TEST_F(Verify, OfOneVersionIsBuiltByDeltaAndBySnapshot) {
  nudge(files_["a.safetensors"][1], 0.5, rng_);
  builder_.add(tree(7), {.snapshot = true, .wrong_hash = std::pair(1u, 1u)});
  const std::set<std::string> all = objects_of(verify());
  EXPECT_TRUE(all.contains(pack(7))) << messages_of(verify());
  EXPECT_EQ(objects_of(verify(7)), all) << messages_of(verify(7));
}

// Who publishes with --snapshot behind damage leads everybody past it.
TEST_F(Verify, OfOneVersionWithASnapshotDoesNotNeedItsParent) {
  nudge(files_["a.safetensors"][1], 0.5, rng_);
  builder_.add(tree(7), {.snapshot = true});
  builder_.flip(pack(6), -1);
  EXPECT_EQ(objects_of(verify(7)), std::set<std::string>{}) << messages_of(verify(7));
  EXPECT_EQ(objects_of(verify()), std::set<std::string>{pack(6)});
}

TEST_F(Verify, CountsWhatNoVersionNames) {
  MemoryBucket& bucket = *builder_.bucket();
  const std::string mine = std::string(32, 'a') + "-0.safetensors";
  const std::map<std::string, std::string> left{
      {"packs/7/" + mine, std::string(5'000, 'x')},
      {"packs/7/" + std::string(32, 'b') + "-0.safetensors", std::string(4'096, 'x')},
      {"packs/2/" + mine, std::string(4'097, 'x')},
      {"snapshots/1/" + std::string(32, 'c') + "/sub/b.safetensors", std::string(1'234'567, 'x')},
      {"blobs/" + std::string(64, 'd'), ""},
      {"layouts/" + std::string(64, 'e'), "x"}};
  for (const auto& [key, bytes] : left) bucket.replace(key, bytes);
  const auto told = [&] {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> found;
    for (const Orphans& orphans : verify().orphans) {
      found[orphans.prefix] = {orphans.objects, orphans.bytes};
    }
    return found;
  };
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> expected{
      {"packs/7/", {2, 9'096}},
      {"packs/2/", {1, 4'097}},
      {"snapshots/1/", {1, 1'234'567}},
      {"blobs/", {1, 0}},
      {"layouts/", {1, 1}}};
  EXPECT_EQ(told(), expected);

  // It is unknown what a damaged manifest names.
  builder_.flip(keys::manifest(2), 5);
  for (const char* prefix : {"packs/2/", "blobs/", "layouts/"}) expected.erase(prefix);
  EXPECT_EQ(told(), expected);
}

TEST_F(Verify, AnOrphanThatIsInNoDirectoryIsToldByItsKey) {
  for (const char* key : {"packs/left", "snapshots/left"}) {
    builder_.bucket()->replace(key, "12345");
  }
  const VerifyReport report = verify();
  std::vector<std::string> told;
  for (const Orphans& orphans : report.orphans) told.push_back(orphans.prefix);
  EXPECT_EQ(told, (std::vector<std::string>{"packs/left", "snapshots/left"}));
}

TEST_F(Verify, OfOneVersionChecksItsObjectsAndWhatItIsMadeOf) {
  for (std::uint64_t version = 1; version <= 6; version++) {
    const VerifyReport report = verify(version);
    EXPECT_EQ(objects_of(report), std::set<std::string>()) << messages_of(report);
    EXPECT_EQ(report.versions, 1u);
  }
  EXPECT_EQ(error_of([&] { verify(7); }).code(), ErrorCode::not_found);
  const std::string damaged = pack(5);
  builder_.flip(damaged, -1);
  EXPECT_EQ(objects_of(verify(5)), std::set{damaged});
  EXPECT_EQ(objects_of(verify(6)), std::set{damaged});  // it is built from version 5
  EXPECT_EQ(objects_of(verify(4)), std::set<std::string>());
}

TEST_F(Verify, FindsNothingInAnEmptyRepository) {
  const RepositoryBuilder empty;
  const auto repository = empty.open();
  History history(*repository, nullptr);
  const VerifyReport report = verify_repository(history, directory_ / "scratch", {}, {});
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.versions, 0u);
}

TEST_F(Verify, ReadsManyManifestsAtATime) {
  std::atomic<int> under_way = 0, most = 0;
  const auto is_manifest = [](const test::BucketCall& call) {
    return call.kind == "get" && call.key.starts_with(keys::kVersions);
  };
  const auto hooks = std::make_shared<test::BucketHooks>();
  hooks->before = [&](const test::BucketCall& call) {
    if (!is_manifest(call)) return;
    under_way++;
    const auto limit = Clock::now() + std::chrono::milliseconds(50);
    while (under_way < 6 && Clock::now() < limit) std::this_thread::yield();
    if (under_way == 6) most = 6;
  };
  hooks->after = [&](const test::BucketCall& call) {
    if (!is_manifest(call)) return;
    under_way--;
  };
  const auto repository =
      Repository::open(std::make_unique<test::HookedBucket>(builder_.bucket(), hooks), {});
  History history(*repository, nullptr);
  EXPECT_TRUE(verify_repository(history, directory_ / "scratch", {}, {}).problems.empty());
  EXPECT_EQ(most, 6);
}

TEST_F(Verify, TellsProgressUpToTheTotal) {
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  std::mutex mutex;
  std::uint64_t most = 0, all = 0;
  verify_repository(history, directory_ / "scratch", {},
                    [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
                      EXPECT_EQ(phase, "verifying");
                      const std::lock_guard lock(mutex);
                      most = std::max(most, done);
                      all = total;
                    });
  EXPECT_EQ(most, all);
  EXPECT_GT(all, 0u);
}

TEST_F(Verify, NamesAFlippedByteOfAPack) {
  builder_.flip(pack(3), -1);
  expect_problems({pack(3)});
}

TEST_F(Verify, NamesAFlippedByteOfAPacksHead) {
  builder_.flip(pack(3), 10);
  expect_problems({pack(3)});
}

TEST_F(Verify, NamesAMissingPack) {
  const std::string key = pack(3);
  builder_.bucket()->erase(key);
  expect_problems({key});
}

TEST_F(Verify, NamesATruncatedPack) {
  builder_.cut(pack(3), 1);
  expect_problems({pack(3)});
}

TEST_F(Verify, NamesAPackThatGoesOnBehindItsEnd) {
  builder_.bucket()->replace(pack(3), builder_.bucket()->find(pack(3)).value() + "x");
  expect_problems({pack(3)});
}

TEST_F(Verify, NamesADamagedSnapshotFile) {
  const std::string key = builder_.key("snapshots/4/", "b.safetensors");
  builder_.flip(key, -1);
  expect_problems({key});
}

TEST_F(Verify, NamesASnapshotFileThatGoesOnBehindItsEnd) {
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  builder_.bucket()->replace(key, builder_.bucket()->find(key).value() + "x");
  expect_problems({key});
}

TEST_F(Verify, NamesDamagedSnapshotHashes) {
  const std::string key = builder_.key("snapshots/4/", ".hashes");
  builder_.flip(key, -1);
  expect_problems({key});
}

TEST_F(Verify, NamesADamagedLayoutOnceThoughAllVersionsShareIt) {
  const std::string key = builder_.key("layouts/");
  builder_.flip(key, -1);
  expect_problems({key});
}

TEST_F(Verify, NamesADamagedBlobOnceThoughAllVersionsShareIt) {
  const std::string key = keys::blob(sha256(as_bytes("{}")));
  builder_.flip(key, -1);
  expect_problems({key});
}

TEST_F(Verify, NamesAManifestThatCannotBeRead) {
  builder_.bucket()->replace(keys::manifest(3), "{");
  expect_problems({keys::manifest(3)});
}

TEST_F(Verify, NamesAMissingManifest) {
  builder_.bucket()->erase(keys::manifest(3));
  expect_problems({keys::manifest(3)});
}

TEST_F(Verify, NamesAGapOnce) {
  for (const std::uint64_t version : {2u, 3u, 5u}) {
    builder_.bucket()->erase(keys::manifest(version));
  }
  expect_problems({keys::manifest(2), keys::manifest(5)});
  const std::string messages = messages_of(verify());
  EXPECT_NE(messages.find("versions 2 to 3 are missing"), std::string::npos) << messages;
}

// Anybody who may write to the bucket can put one there.
TEST_F(Verify, AStrayManifestWithAHighNumberIsOneProblem) {
  builder_.bucket()->replace(keys::manifest(1'000'000), "{}");
  const std::string pack = "packs/999999/" + std::string(32, 'a') + "-0.safetensors";
  builder_.bucket()->replace(pack, "?");
  const VerifyReport report = verify();
  EXPECT_EQ(report.versions, 6u);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].object, keys::manifest(7));
  EXPECT_NE(report.problems[0].message.find("versions 7 to 999999 are missing"), std::string::npos)
      << report.problems[0].message;
  EXPECT_NE(report.problems[0].message.find("not checked"), std::string::npos);
  EXPECT_TRUE(report.orphans.empty()) << "it is unknown what is named behind the gap";
}

TEST_F(Verify, NamesAManifestThatWasReplaced) {
  const std::string key = keys::manifest(3);
  Manifest manifest = Manifest::parse(builder_.bucket()->find(key).value(), key);
  manifest.meta["step"] = "another";
  builder_.bucket()->replace(key, manifest.serialize());
  expect_problems({key});
}

TEST_F(Verify, FindsExactlyWhatIsDamagedEverywhere) {
  const std::set<std::string> damaged{pack(2), pack(6, 1), notes_blob(5),
                                      builder_.key("snapshots/1/", "a.safetensors"),
                                      builder_.key("snapshots/4/", "b.safetensors")};
  for (const std::string& key : damaged) builder_.flip(key, -1);
  expect_problems(damaged);
}

TEST_F(Verify, NamesBothDamagedPacksOfAVersion) {
  builder_.flip(pack(3, 0), -1);
  builder_.flip(pack(3, 1), -1);
  expect_problems({pack(3, 0), pack(3, 1)});
}

TEST_F(Verify, FindsAWrongChunkHashBehindADamagedPackFromTheNextSnapshotOn) {
  nudge(files_["a.safetensors"][1], 0.5, rng_);
  builder_.add(tree(7), {.wrong_hash = std::pair(1u, 1u)});
  builder_.flip(pack(2), -1);
  const VerifyReport report = verify();
  EXPECT_EQ(objects_of(report), (std::set<std::string>{pack(2), pack(7)})) << messages_of(report);
  EXPECT_NE(messages_of(report).find("chunk 1 of tensor 'bytes'"), std::string::npos);
}

TEST_F(Verify, NamesTheVersionOfAWrongRoot) {
  nudge(files_["a.safetensors"][1], 0.5, rng_);
  builder_.add(tree(7), {.edit = [](Manifest& manifest) { manifest.root[0] ^= std::byte{1}; }});
  const VerifyReport report = verify();
  EXPECT_EQ(objects_of(report), std::set<std::string>{keys::manifest(7)}) << messages_of(report);
}

/// Two chunks with equal XXH3-64, as an attacker can make them: a word whose low half equals that
/// of the hash's secret at its place is multiplied by zero, so two such words of one lane may swap
/// their high halves.
std::pair<std::string, std::string> colliding_chunks() {
  std::string chunk(1024, 'x');
  chunk.replace(0, 4, "\xb8\xfe\x6c\x39");   // the secret's bytes 0 to 3: lane 0 of stripe 0
  chunk.replace(64, 4, "\x7c\x01\x81\x2c");  // 8 to 11: lane 0 of stripe 1
  std::string other = chunk;
  chunk.replace(4, 4, "good").replace(68, 4, "evil");
  other.replace(4, 4, "evil").replace(68, 4, "good");
  return {chunk, other};
}

Tree tree_with(const std::string& chunk) {
  const auto bytes = as_bytes(chunk);
  const TestTensor tensor{"w", Dtype::u8, {chunk.size()}, {bytes.begin(), bytes.end()}};
  return Tree{{"a.safetensors", make_safetensors({tensor})}};
}

TEST_F(VerifyNeededSkips, WhatFollowsOneIsComparedDeeply) {
  const auto [good, evil] = colliding_chunks();
  builder_.add(tree_with(good));
  builder_.add(tree_with(good), {.snapshot = true, .snapshot_tree = tree_with(evil)});
  leave_skip({4, 6});
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  const auto report = verify_repository(history, directory_ / "scratch", {}, {},
                                        kernels::make_cpu_coder(), {.deep = true});
  EXPECT_EQ(objects_of(report), std::set{keys::manifest(8)}) << messages_of(report);
}

TEST_F(Verify, DeeplyFindsADeltaThatGivesOtherBytesThanTheSnapshot) {
  const auto [good, evil] = colliding_chunks();
  ASSERT_NE(good, evil);
  ASSERT_EQ(kernels::hash_chunk(as_bytes(good)), kernels::hash_chunk(as_bytes(evil)));
  RepositoryBuilder builder;
  builder.add(tree_with(std::string(good.size(), 'y')));
  builder.add(tree_with(good), {.snapshot = true});
  builder.add(tree_with(good), {.snapshot = true, .snapshot_tree = tree_with(evil)});
  const auto problems = [&](bool deep, std::optional<std::uint64_t> only = {}) {
    const auto repository = builder.open();
    History history(*repository, nullptr);
    return verify_repository(history, directory_ / "scratch", {}, {}, kernels::make_cpu_coder(),
                             {.only = only, .deep = deep})
        .problems;
  };
  EXPECT_TRUE(problems(false).empty()) << "the hashes are right";
  const auto found = problems(true);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].object, keys::manifest(3));
  EXPECT_NE(found[0].message.find("tensor 'w'"), std::string::npos) << found[0].message;
  EXPECT_EQ(problems(true, 3).size(), 1u) << "also by itself";
  EXPECT_TRUE(problems(true, 2).empty());
}

TEST_F(Verify, DeeplyFindsNothingInAWholeRepository) {
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  const auto report = verify_repository(history, directory_ / "scratch", {}, {},
                                        kernels::make_cpu_coder(), {.deep = true});
  EXPECT_TRUE(report.problems.empty()) << messages_of(report);
}

// ---- skip deltas ----

class VerifySkips : public Verify {
 protected:
  void SetUp() override {
    Verify::SetUp();
    builder_.add_skip({1, 3});
    builder_.add_skip({2, 6});
  }
  /// A problem of the skip delta from 1 to 3, which no version depends on.
  void expect_problem_of(const std::string& object) {
    expect_problems({object});
    EXPECT_NE(messages_of(verify()).find("no version depends on it"), std::string::npos);
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    const auto report = verify_repository(history, directory_ / "scratch", {}, {},
                                          kernels::make_cpu_coder(), {.deep = true});
    EXPECT_EQ(objects_of(report), std::set<std::string>{object}) << messages_of(report);
  }
  std::string skip_pack() { return builder_.key("skips/00000000000000000003-", ".safetensors"); }
};

TEST_F(VerifySkips, WholeOnesAreCounted) {
  const VerifyReport report = verify();
  EXPECT_EQ(messages_of(report), "");
  EXPECT_EQ(report.skips, 2u);
  EXPECT_EQ(report.objects, builder_.bucket()->objects().size());
}

TEST_F(VerifySkips, NamesADamagedRecord) {
  builder_.flip(keys::skip_record({1, 3}), 30);
  expect_problem_of(keys::skip_record({1, 3}));
}

TEST_F(VerifySkips, NamesADamagedPack) {
  builder_.flip(skip_pack(), -1);
  expect_problem_of(skip_pack());
}

TEST_F(VerifySkips, NamesAMissingPack) {
  const std::string pack = skip_pack();
  builder_.bucket()->erase(pack);
  expect_problem_of(pack);
}

TEST_F(VerifySkips, NamesTheRecordOfOneThatLeadsToAnotherRoot) {
  builder_.bucket()->erase(keys::skip_record({1, 3}));
  builder_.add_skip({1, 3}, {.wrong_hash = std::pair(0u, 0u)});
  expect_problem_of(keys::skip_record({1, 3}));
}

TEST_F(VerifySkips, NamesTheRecordOfOneThatIsOfOtherManifests) {
  builder_.bucket()->erase(keys::skip_record({1, 3}));
  builder_.add_skip({1, 3},
                    {.edit = [](SkipRecord& record) { record.to_sha256[0] ^= std::byte{1}; }});
  expect_problem_of(keys::skip_record({1, 3}));
}

// A version is exported although a skip delta on its way is damaged.
TEST_F(VerifySkips, ADamagedOneIsNoErrorOfAnExport) {
  builder_.add_skip({1, 6});
  builder_.flip(builder_.key("skips/00000000000000000006-00000000000000000001/"), -1);
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  export_version(history, 6, directory_ / "six", {}, {});
  EXPECT_EQ(read_tree(directory_ / "six"), builder_.tree(6));
}

TEST_F(VerifySkips, OfOneVersionUsesNone) {
  builder_.flip(skip_pack(), -1);
  EXPECT_EQ(messages_of(verify(3)), "");
  builder_.flip(pack(3), -1);
  EXPECT_EQ(objects_of(verify(3)), std::set<std::string>{pack(3)});
}

TEST_F(Verify, IsNoVerdictWhenTheBucketIsOutOfReach) {
  builder_.bucket()->fail_key("packs/5/", ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { verify(); }).code(), ErrorCode::unavailable);
  EXPECT_TRUE(has_nothing_in(directory_ / "scratch"));
}

TEST_F(Verify, StopsWhenTold) {
  std::stop_source stop;
  stop.request_stop();
  Context context;
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  context.stop = stop.get_token();
  EXPECT_EQ(
      error_of([&] { verify_repository(history, directory_ / "scratch", context, {}); }).code(),
      ErrorCode::cancelled);
}

// ---- verify_tree ----

class VerifyTree : public Verify {
 protected:
  void SetUp() override {
    Verify::SetUp();
    for (const int version : {2, 5, 6}) {
      for (const auto& [path, bytes] : builder_.tree(static_cast<std::uint64_t>(version))) {
        test::write_text(directory_ / ("versions/" + std::to_string(version) + "/" + path), bytes);
      }
    }
  }

  VerifyReport verify_files() {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    return verify_tree(history, directory_.path(), {}, {});
  }

  void expect_tree_problem(const std::string& object, const std::string& message) {
    const VerifyReport report = verify_files();
    ASSERT_EQ(report.problems.size(), 1u) << messages_of(report);
    EXPECT_EQ(report.problems[0].object, object);
    EXPECT_NE(report.problems[0].message.find(message), std::string::npos)
        << report.problems[0].message;
  }

  void edit(const std::string& path, const std::function<void(std::string&)>& change) {
    std::string bytes = test::read_text(directory_ / path);
    change(bytes);
    test::write_text(directory_ / path, bytes);
  }
};

TEST_F(VerifyTree, FindsNothingInRightFiles) {
  const VerifyReport report = verify_files();
  EXPECT_EQ(messages_of(report), "");
  EXPECT_EQ(report.versions, 3u);
  EXPECT_EQ(report.objects, 12u);
  std::uint64_t bytes = 0;
  for (const int version : {2, 5, 6}) {
    for (const auto& [path, text] : builder_.tree(static_cast<std::uint64_t>(version))) {
      bytes += text.size();
    }
  }
  EXPECT_EQ(report.bytes, bytes);
}

TEST_F(VerifyTree, TellsProgressWithEveryChunk) {
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  std::mutex mutex;
  std::uint64_t calls = 0, most = 0, all = 0;
  const Progress progress = [&](std::string_view, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard lock(mutex);
    calls++;
    most = std::max(most, done);
    all = total;
  };
  verify_tree(history, directory_.path(), {}, progress);
  std::uint64_t chunks = 0, bytes = 0;
  for (const std::uint64_t version : {2u, 5u, 6u}) {
    chunks += builder_.layout(version).chunk_count();
    for (const LayoutTensor& tensor : builder_.layout(version).tensors()) {
      bytes += tensor.size_bytes;
    }
  }
  EXPECT_EQ(calls, chunks);
  EXPECT_EQ(most, bytes);
  EXPECT_GE(all, most);
}

TEST_F(VerifyTree, OfOneVersionLooksAtNoOther) {
  edit("versions/5/a.safetensors", [](std::string& bytes) { bytes.back() ^= 1; });
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  EXPECT_TRUE(verify_tree(history, directory_.path(), {}, {}, 6).problems.empty());
  EXPECT_EQ(verify_tree(history, directory_.path(), {}, {}, 5).problems.size(), 1u);
  EXPECT_EQ(error_of([&] { verify_tree(history, directory_.path(), {}, {}, 4); }).code(),
            ErrorCode::not_found);  // it is not in the directory
}

TEST_F(VerifyTree, NamesTensorAndChunkOfAFlippedByte) {
  edit("versions/5/a.safetensors", [](std::string& bytes) { bytes.back() ^= 1; });
  expect_tree_problem("versions/5/a.safetensors",
                      "1 of its 3 chunks are wrong; the first: tensor "
                      "'bytes', chunk 1");
}

TEST_F(VerifyTree, NamesAWrongHeader) {
  edit("versions/5/a.safetensors", [](std::string& bytes) { bytes[12] ^= 1; });
  expect_tree_problem("versions/5/a.safetensors", "header");
}

TEST_F(VerifyTree, NamesAWrongSize) {
  edit("versions/5/a.safetensors", [](std::string& bytes) { bytes.pop_back(); });
  expect_tree_problem("versions/5/a.safetensors", "expected");
}

TEST_F(VerifyTree, NamesAWrongSmallFile) {
  edit("versions/5/config.json", [](std::string& bytes) { bytes = "[]"; });
  expect_tree_problem("versions/5/config.json", "SHA-256");
}

TEST_F(VerifyTree, NamesAMissingFile) {
  filesystem::remove(directory_ / "versions/6/sub/b.safetensors");
  expect_tree_problem("versions/6/sub/b.safetensors", "missing");
}

TEST_F(VerifyTree, NamesAFileThatDoesNotBelongThere) {
  test::write_text(directory_ / "versions/6/sub/extra.txt", "x");
  expect_tree_problem("versions/6/sub/extra.txt", "is not a file of this version");
}

TEST_F(VerifyTree, TakesNoSymlinkForAFile) {
  filesystem::rename(directory_ / "versions/6/config.json", directory_ / "elsewhere");
  filesystem::create_symlink(directory_ / "elsewhere", directory_ / "versions/6/config.json");
  expect_tree_problem("versions/6/config.json", "config.json");
}

TEST_F(VerifyTree, NamesAVersionThatTheRepositoryDoesNotHave) {
  filesystem::create_directories(directory_ / "versions/9");
  expect_tree_problem("versions/9", "does not exist");
}

// That the bucket does not answer says nothing of the files.
TEST_F(VerifyTree, IsNoVerdictWhenTheBucketIsOutOfReach) {
  builder_.bucket()->fail_key("packs/5/", ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { verify_files(); }).code(), ErrorCode::unavailable);
}

// A host that is frozen there still shows it.
TEST_F(VerifyTree, AVersionThatGcRetiredIsNoProblem) {
  GcRecord gc;
  gc.repository = builder_.open()->id();
  gc.number = 1;
  gc.head = 6;
  gc.nonce = random_hex(16);
  gc.deltas.add({2, 4});
  gc.snapshots.add(1);
  gc.versions.add({1, 3});
  builder_.bucket()->replace(keys::gc_record(1), gc.serialize());
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    const bool is_old = key.starts_with("packs/2/") || key.starts_with("packs/3/") ||
                        key.starts_with("packs/4/") || key.starts_with("snapshots/1/");
    if (is_old) builder_.bucket()->erase(key);
  }
  const VerifyReport report = verify_files();
  EXPECT_EQ(messages_of(report), "");
  EXPECT_EQ(report.versions, 2u);
  EXPECT_EQ(report.retired, std::vector<std::uint64_t>{2});
  edit("versions/5/config.json", [](std::string& bytes) { bytes = "[]"; });
  expect_tree_problem("versions/5/config.json", "SHA-256");
}

TEST_F(VerifyTree, NamesEveryDamagedFileOnce) {
  edit("versions/2/a.safetensors", [](std::string& bytes) {
    for (std::size_t i = bytes.size() / 2; i < bytes.size(); i++) bytes[i] ^= 1;
  });
  edit("versions/5/config.json", [](std::string& bytes) { bytes = "[]"; });
  filesystem::remove(directory_ / "versions/6/sub/notes.txt");
  const VerifyReport report = verify_files();
  EXPECT_EQ(objects_of(report),
            (std::set<std::string>{"versions/2/a.safetensors", "versions/5/config.json",
                                   "versions/6/sub/notes.txt"}));
  EXPECT_EQ(report.problems.size(), 3u);
}

TEST_F(VerifyTree, NeedsADirectoryOfVersions) {
  filesystem::remove_all(directory_ / "versions");
  EXPECT_EQ(error_of([&] { verify_files(); }).code(), ErrorCode::not_found);
}

// ---- export_version ----

class Export : public Verify {
 protected:
  void export_to(std::uint64_t version, const filesystem::path& directory) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    export_version(history, version, directory, {}, {});
  }
};

TEST_F(Export, WritesEveryVersionByteForByte) {
  for (std::uint64_t version = 1; version <= builder_.newest(); version++) {
    const auto target = directory_ / ("export-" + std::to_string(version));
    export_to(version, target);
    EXPECT_EQ(read_tree(target), builder_.tree(version));
  }
  EXPECT_EQ(std::distance(filesystem::directory_iterator(directory_.path()), {}), 6);
}

TEST_F(Export, WritesFilesThatTheUserMayChange) {
  export_to(2, directory_ / "export");
  struct stat attributes {};
  ASSERT_EQ(::stat((directory_ / "export/a.safetensors").c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 07777, 0644u);
}

TEST_F(Export, FillsAnEmptyDirectoryAndMindsNoSlash) {
  filesystem::create_directories(directory_ / "export");
  export_to(2, directory_ / "export/");
  EXPECT_EQ(read_tree(directory_ / "export"), builder_.tree(2));
}

TEST_F(Export, RefusesADirectoryWithFiles) {
  test::write_text(directory_ / "export/mine", "mine");
  EXPECT_EQ(error_of([&] { export_to(2, directory_ / "export"); }).code(), ErrorCode::exists);
  EXPECT_EQ(read_tree(directory_.path()), (Tree{{"export/mine", "mine"}}));
}

TEST_F(Export, RefusesAFile) {
  test::write_text(directory_ / "export", "mine");
  EXPECT_EQ(error_of([&] { export_to(2, directory_ / "export"); }).code(), ErrorCode::exists);
}

TEST_F(Export, LeavesNothingAfterAFailure) {
  builder_.flip(pack(3), -1);
  EXPECT_EQ(error_of([&] { export_to(3, directory_ / "export"); }).code(), ErrorCode::corrupt);
  EXPECT_TRUE(filesystem::is_empty(directory_.path()));
}

TEST_F(Export, AVersionThatDoesNotExistIsNotFound) {
  EXPECT_EQ(error_of([&] { export_to(7, directory_ / "export"); }).code(), ErrorCode::not_found);
  EXPECT_TRUE(filesystem::is_empty(directory_.path()));
}

// ---- diff_versions ----

class DiffVersions : public ::testing::Test {
 protected:
  std::map<std::string, TensorDiff> diff(std::uint64_t from, std::uint64_t to) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    std::map<std::string, TensorDiff> by_name;
    for (TensorDiff& tensor : diff_versions(history, from, to, directory_ / "scratch", {}, {})) {
      const std::string name = tensor.file + ":" + tensor.name;
      EXPECT_TRUE(by_name.emplace(name, std::move(tensor)).second) << name;
    }
    EXPECT_TRUE(has_nothing_in(directory_ / "scratch"));
    return by_name;
  }

  static TestTensor ones(const std::string& name, std::size_t count) {
    Bytes data;
    for (std::size_t i = 0; i < count; i++)
      data.insert(data.end(), {std::byte{0x80}, std::byte{0x3F}});
    return {name, Dtype::bf16, {count}, data};
  }

  TempDir directory_;
  test::Random rng_ = test::make_rng();
  RepositoryBuilder builder_;
};

TEST_F(DiffVersions, CountsChangesAndFindsTheLargest) {
  constexpr std::size_t kElements = 1'100'000;  // two chunks
  TestTensor tensor = ones("w", kElements);
  builder_.add({{"a.safetensors", make_safetensors({tensor, ones("same", 10)})}});
  tensor.data[2 * 5] = std::byte{0x81};                // one unit up
  tensor.data[2 * (kElements - 1)] = std::byte{0x83};  // three units up, in the last chunk
  tensor.data[2 * 7] = std::byte{0x7E};                // two units down
  builder_.add({{"a.safetensors", make_safetensors({tensor, ones("same", 10)})}});
  for (const bool forwards : {true, false}) {
    const auto diffs = forwards ? diff(1, 2) : diff(2, 1);
    ASSERT_EQ(diffs.size(), 2u);
    const TensorDiff& changed = diffs.at("a.safetensors:w");
    EXPECT_EQ(changed.change, Change::changed);
    EXPECT_EQ(changed.dtype, "BF16");
    EXPECT_EQ(changed.elements, kElements);
    EXPECT_EQ(changed.changed, 3u);
    EXPECT_EQ(changed.largest_ulp, 3u);
    const TensorDiff& same = diffs.at("a.safetensors:same");
    EXPECT_EQ(same.change, Change::same);
    EXPECT_EQ(same.elements, 10u);
    EXPECT_EQ(same.changed, 0u);
  }
}

TEST_F(DiffVersions, TellsEveryKindOfChange) {
  const TestTensor moved = ones("moved", 20);
  builder_.add({{"a.safetensors", make_safetensors({ones("removed", 4), ones("retyped", 8), moved,
                                                    ones("reshaped", 6), ones("grown", 5)})},
                {"b.safetensors", make_safetensors({ones("stays", 3)})}});
  TestTensor reshaped = ones("reshaped", 6);
  reshaped.shape = {2, 3};
  builder_.add({{"a.safetensors", make_safetensors({random_tensor("retyped", Dtype::f32, {4}, rng_),
                                                    reshaped, ones("grown", 7), ones("added", 2)})},
                {"b.safetensors", make_safetensors({ones("stays", 3), moved})}});
  const auto diffs = diff(1, 2);
  std::map<std::string, Change> changes;
  for (const auto& [name, tensor] : diffs) changes[name] = tensor.change;
  const std::map<std::string, Change> expected{
      {"a.safetensors:removed", Change::removed},   {"a.safetensors:retyped", Change::retyped},
      {"a.safetensors:reshaped", Change::reshaped}, {"a.safetensors:grown", Change::reshaped},
      {"a.safetensors:added", Change::added},       {"b.safetensors:stays", Change::same},
      {"b.safetensors:moved", Change::same}};
  EXPECT_EQ(changes, expected);
  EXPECT_EQ(diffs.at("a.safetensors:retyped").dtype, "F32");
  EXPECT_EQ(diffs.at("a.safetensors:retyped").changed, 4u);
  EXPECT_EQ(diffs.at("a.safetensors:reshaped").changed, 0u);
  EXPECT_EQ(diffs.at("a.safetensors:grown").changed, 7u);
  EXPECT_EQ(diffs.at("a.safetensors:removed").elements, 4u);
}

TEST_F(DiffVersions, FindsNothingBetweenAVersionAndItself) {
  builder_.add({{"a.safetensors", make_safetensors({ones("w", 10)})}});
  const auto diffs = diff(1, 1);
  ASSERT_EQ(diffs.size(), 1u);
  EXPECT_EQ(diffs.begin()->second.change, Change::same);
}

TEST_F(DiffVersions, ListsTensorsInTheOrderOfTheLayoutAndRemovedOnesLast) {
  builder_.add({{"a.safetensors", make_safetensors({ones("gone", 4), ones("z", 8)})}});
  builder_.add({{"a.safetensors", make_safetensors({ones("z", 8), ones("a", 4)})}});
  const auto repository = builder_.open();
  History history(*repository, nullptr);
  std::vector<std::string> names;
  for (const TensorDiff& tensor : diff_versions(history, 1, 2, directory_ / "scratch", {}, {})) {
    names.push_back(tensor.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"z", "a", "gone"}));
}

}  // namespace
}  // namespace weightfs
