#include "store/materialize/file_filter.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "store/base/path_rules.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/check_images.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/plan.hpp"
#include "store/streaming/partial_images.hpp"
#include "store/streaming/remote_files.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs {
namespace {

using test::error_of;
using test::make_safetensors;
using test::nudge;
using test::random_tensor;
using test::read_tree;
using test::TestTensor;
using test::Tree;

/// A view of a bucket that records what is read.
class WatchedBucket final : public test::BucketView {
 public:
  struct Seen {
    std::mutex mutex;
    std::map<std::string, std::uint64_t> bytes;  // by key
  };
  WatchedBucket(std::shared_ptr<test::MemoryBucket> bucket, std::shared_ptr<Seen> seen)
      : BucketView(std::move(bucket)), seen_(std::move(seen)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    const std::size_t got = BucketView::get(key, offset_bytes, into, context);
    const std::lock_guard lock(seen_->mutex);
    seen_->bytes[std::string(key)] += got;
    return got;
  }

 private:
  std::shared_ptr<Seen> seen_;
};

/// A repository whose versions have three shards, the third in a sub-directory.
class KeptFiles : public ::testing::Test {
 protected:
  using Shards = std::map<std::string, std::vector<TestTensor>>;

  KeptFiles() {
    std::uint64_t elements = 1'060'000;  // two chunks
    for (const auto* path : {"a.safetensors", "b.safetensors", "sub/c.safetensors"}) {
      const Dtype dtype = elements == 1'060'000 ? Dtype::bf16 : Dtype::u8;
      shards_[path] = {random_tensor(std::string(path) + ".x", dtype, {elements}, rng_),
                       random_tensor(std::string(path) + ".y", Dtype::f32, {300}, rng_)};
      elements += 10'000;
    }
    add();
  }

  void add(const test::BuildOptions& options = {}) {
    Tree tree{{"config.json", "{\"n\":" + std::to_string(builder_.newest()) + "}"},
              {"sub/notes.txt", "notes"}};
    for (const auto& [path, tensors] : shards_) tree[path] = make_safetensors(tensors);
    builder_.add(tree, options);
  }

  /// Adds a version in which all shards changed.
  void add_changed(double share = 0.01, const test::BuildOptions& options = {}) {
    for (auto& [path, tensors] : shards_) {
      for (TestTensor& tensor : tensors) nudge(tensor, share, rng_);
    }
    add(options);
  }

  test::Host& host() {
    if (!host_) {
      host_.emplace(Repository::open(std::make_unique<WatchedBucket>(builder_.bucket(), seen_), {}),
                    directory_ / "store", StoreLimits{1u << 30, 0});
      check_images(*host_->store, host_->history, {});
    }
    return *host_;
  }

  void bring(std::uint64_t version, const std::vector<std::string>& only) {
    materialize(*host().store, host().history, version, {}, {}, coder_, only);
  }

  /// The version's directory contains these shards and all small files.
  void expect_kept(std::uint64_t version, const std::set<std::string>& kept) {
    Tree expected;
    for (const auto& [path, bytes] : builder_.tree(version)) {
      if (!shards_.contains(path) || kept.contains(path)) expected[path] = bytes;
    }
    EXPECT_TRUE(host().store->images().is_complete(version));
    EXPECT_TRUE(read_tree(host().store->images().image_directory(version)) == expected)
        << "version " << version;
    EXPECT_TRUE(test::unsealed_files(host().store->images().image_directory(version)).empty());
    EXPECT_EQ(host().store->images().has_all_files(version), kept.size() == shards_.size());
  }

  [[nodiscard]] std::uint64_t read_of(std::string_view part) const {
    std::uint64_t bytes = 0;
    for (const auto& [key, size] : seen_->bytes) {
      if (key.find(part) != std::string::npos) bytes += size;
    }
    return bytes;
  }

  [[nodiscard]] ino_t inode_of(std::uint64_t version, const std::string& path) {
    struct stat attributes {};
    const auto file = host().store->images().image_directory(version) / path;
    EXPECT_EQ(::stat(file.c_str(), &attributes), 0) << file;
    return attributes.st_ino;
  }

  test::Random rng_ = test::make_rng();
  test::TempDir directory_;
  test::RepositoryBuilder builder_;
  Shards shards_;
  std::shared_ptr<WatchedBucket::Seen> seen_ = std::make_shared<WatchedBucket::Seen>();
  std::shared_ptr<test::MeddlingCoder> coder_ = std::make_shared<test::MeddlingCoder>();
  std::optional<test::Host> host_;
};

const std::vector<std::string> kOnlyB{"b.*"};
const std::vector<std::string> kOnlyC{"sub/*"};

TEST(Globs, FitTheLastNameOrTheWholePath) {
  const std::vector<std::string> name{"b*.safetensors"}, path{"sub/*"}, none;
  EXPECT_TRUE(matches_glob("b.safetensors", name));
  EXPECT_TRUE(matches_glob("sub/b.safetensors", name));
  EXPECT_FALSE(matches_glob("a.safetensors", name));
  EXPECT_TRUE(matches_glob("sub/c.safetensors", path));
  EXPECT_FALSE(matches_glob("sub/dir/c.safetensors", path));
  EXPECT_FALSE(matches_glob("c.safetensors", path));
  EXPECT_FALSE(matches_glob("b.safetensors", none));
}

// ---- versions with some of their files ----

TEST_F(KeptFiles, AreThoseThatFitAndAllSmallOnes) {
  bring(1, kOnlyB);
  expect_kept(1, {"b.safetensors"});
  EXPECT_GT(read_of("snapshots/1/"), 0u);
  EXPECT_EQ(read_of("a.safetensors"), 0u);
  EXPECT_EQ(read_of("c.safetensors"), 0u);
  const Layout& layout = builder_.layout(1);
  const FileSet absent = absent_files(*host().store, *host().history.get(1, {}), layout);
  EXPECT_EQ(absent, left_out(layout, kOnlyB));
}

TEST_F(KeptFiles, AreBroughtInFromThoseOfTheVersionBefore) {
  bring(1, kOnlyB);
  for (std::uint64_t version = 2; version <= 4; version++) {
    add_changed();
    coder_->decoded = 0;
    bring(version, kOnlyB);
    expect_kept(version, {"b.safetensors"});
    EXPECT_EQ(coder_->decoded, 3u) << "the chunks of b.safetensors";
  }
  EXPECT_EQ(read_of("a.safetensors"), 0u);
}

TEST_F(KeptFiles, NeedOnlyAPartOfADelta) {
  bring(1, kOnlyB);
  add_changed(1.0, {.chunks_per_pack = 1});
  bring(2, kOnlyB);
  expect_kept(2, {"b.safetensors"});
  std::uint64_t size = 0;
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with("packs/2/")) size += bytes.size();
  }
  EXPECT_LT(read_of("packs/2/"), size / 2) << "b.safetensors is a quarter of the version";
}

TEST_F(KeptFiles, ThatDidNotChangeAreLinks) {
  bring(1, kOnlyB);
  nudge(shards_["a.safetensors"][0], 0.01, rng_);
  add();
  bring(2, kOnlyB);
  expect_kept(2, {"b.safetensors"});
  EXPECT_EQ(inode_of(1, "b.safetensors"), inode_of(2, "b.safetensors"));
}

TEST_F(KeptFiles, AreKnownToAStoreThatIsOpenedAgain) {
  bring(1, kOnlyB);
  const auto absent = host().store->images().absent_files(1);
  const auto bytes = host().store->images().image_bytes();
  host_.reset();
  expect_kept(1, {"b.safetensors"});
  EXPECT_EQ(host().store->images().absent_files(1), absent);
  EXPECT_EQ(host().store->images().image_bytes(), bytes);
  builder_.bucket()->fail_key("", ErrorCode::unavailable);
  bring(1, kOnlyB);
}

TEST_F(KeptFiles, AFileThatNobodyRecordedIsNotTrusted) {
  bring(1, kOnlyB);
  const auto stray = host().store->images().image_directory(1) / "a.safetensors";
  host_.reset();
  test::write_text(stray, std::string(builder_.tree(1).at("a.safetensors").size(), '\0'));
  EXPECT_FALSE(host().store->images().is_complete(1));
  EXPECT_FALSE(std::filesystem::exists(stray));
}

TEST_F(KeptFiles, TheRestIsAddedToThemForWhoWantsItAll) {
  bring(1, kOnlyB);
  const ino_t inode = inode_of(1, "b.safetensors");
  const std::uint64_t fetched = read_of("/b.safetensors");
  bring(1, {"a.*"});
  expect_kept(1, {"a.safetensors", "b.safetensors"});
  bring(1, {});
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
  EXPECT_EQ(inode_of(1, "b.safetensors"), inode);
  EXPECT_EQ(read_of("/b.safetensors"), fetched) << "it was fetched once";
  host_.reset();
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

TEST_F(KeptFiles, AFailureToAddToThemLeavesThem) {
  bring(1, kOnlyB);
  const std::string key = builder_.key("snapshots/1/", "/a.safetensors");
  builder_.flip(key, -1);
  EXPECT_EQ(error_of([&] { bring(1, {}); }).code(), ErrorCode::corrupt);
  expect_kept(1, {"b.safetensors"});
  EXPECT_TRUE(std::filesystem::is_empty(host().store->temporary_directory()));
  builder_.flip(key, -1);
  bring(1, {});
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

TEST_F(KeptFiles, WhoDiesWhileFilesAreAddedKeepsWhatWasHere) {
  bring(1, kOnlyB);
  const auto directory = host().store->images().image_directory(1);
  // The last file cannot be moved in: it goes as far as it can.
  const auto taken = directory / "sub/c.safetensors";
  std::filesystem::create_directories(taken / "x");
  EXPECT_ANY_THROW(bring(1, {}));
  std::filesystem::remove_all(taken);
  host_.reset();
  test::write_text(directory / "a.safetensors", builder_.tree(1).at("a.safetensors"));
  expect_kept(1, {"b.safetensors"});
  bring(1, {});
  host_.reset();
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

TEST_F(KeptFiles, AStoreOpensThoughSomethingCannotBeRemovedThatWasBeingAdded) {
  bring(1, kOnlyB);
  const auto taken = host().store->images().image_directory(1) / "sub/c.safetensors";
  std::filesystem::create_directories(taken / "x");
  EXPECT_ANY_THROW(bring(1, {}));
  host_.reset();
  EXPECT_TRUE(host().store->images().is_complete(1));
  std::filesystem::remove_all(taken);
  bring(1, {});
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

/// What is recorded may outlive a power cut: it is on the disk before.
TEST_F(KeptFiles, WhatTheDiskDoesNotTakeWhileFilesAreAddedCostsNothingElse) {
  bring(1, kOnlyB);
  {
    const test::SyncWatch watch("/files-");
    const Error error = error_of([&] { bring(1, {}); });
    EXPECT_NE(std::string(error.what()).find("the disk did not take"), std::string::npos)
        << error.what();
  }
  expect_kept(1, {"b.safetensors"});
  host_.reset();
  expect_kept(1, {"b.safetensors"});
  const test::SyncWatch watch;
  bring(1, {});
  const std::string directory = host().store->images().image_directory(1);
  EXPECT_TRUE(watch.has_seen(directory));
  EXPECT_TRUE(watch.has_seen(directory + "/sub"));
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

/// An older release adds files without removing the note.
TEST_F(KeptFiles, ANoteOfFilesThatHaveComeTakesNone) {
  bring(1, {});
  host().store->images().announce_files(1, std::vector<std::string>{"a.safetensors"});
  host_.reset();
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

TEST_F(KeptFiles, OthersThanBeforeComeFromTheSnapshot) {
  bring(1, kOnlyB);
  add_changed();
  bring(2, kOnlyC);
  expect_kept(2, {"sub/c.safetensors"});
  EXPECT_GT(read_of("c.safetensors"), 0u);
  EXPECT_EQ(read_of("/a.safetensors"), 0u);
}

TEST_F(KeptFiles, ComeFromAVersionThatIsHereAsAWhole) {
  bring(1, {});
  add_changed();
  const std::uint64_t before = read_of("snapshots/");
  bring(2, kOnlyC);
  expect_kept(2, {"sub/c.safetensors"});
  EXPECT_EQ(read_of("snapshots/"), before);
}

TEST_F(KeptFiles, ATensorThatCameFromAnotherFileIsNotMadeFromThem) {
  bring(1, kOnlyB);
  shards_["b.safetensors"].push_back(shards_["a.safetensors"][0]);
  shards_["a.safetensors"].erase(shards_["a.safetensors"].begin());
  nudge(shards_["b.safetensors"].back(), 0.01, rng_);
  add();
  const Plan plan = make_plan(host().history, host().history.get(2, {}),
                              std::vector{base_of(*host().store, host().history, 1, {})}, {},
                              {.without = left_out(builder_.layout(2), kOnlyB)});
  EXPECT_FALSE(plan.base);
  bring(2, kOnlyB);
  expect_kept(2, {"b.safetensors"});
}

TEST_F(KeptFiles, OfSmallPacksThatTheyDoNotNeedOnlyHeadersAreRead) {
  bring(1, kOnlyB);
  add_changed(0.01, {.chunks_per_pack = 1});
  bring(2, kOnlyB);
  int whole = 0, heads = 0;
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (!key.starts_with("packs/2/")) continue;
    read_of(key) >= bytes.size() ? whole++ : heads++;
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(heads, whole);
}

// A host that keeps an eighth of the files fetches an eighth of a delta, and 4 MiB at its edges.
TEST_F(KeptFiles, AnEighthOfThemCostsAnEighthOfTheDeltas) {
  constexpr int kShards = 8;
  for (int i = 0; i < kShards; i++) {
    shards_["shard-" + std::to_string(i) + ".safetensors"] = {
        random_tensor("s" + std::to_string(i), Dtype::u8, {8u << 20}, rng_)};
  }
  add();
  const std::uint64_t first = builder_.newest();
  bring(first, {"shard-3*"});
  for (int step = 0; step < 2; step++) {
    for (auto& [path, tensors] : shards_) {
      if (path.starts_with("shard-")) {
        tensors.front() = random_tensor(tensors.front().name, Dtype::u8, {8u << 20}, rng_);
      }
    }
    add();
  }
  const std::uint64_t before = read_of("packs/");
  bring(first + 2, {"shard-3*"});
  const std::uint64_t one = read_of("packs/") - before;
  std::uint64_t all = 0;
  for (const auto& [key, bytes] : builder_.bucket()->objects()) {
    if (key.starts_with("packs/" + std::to_string(first + 1) + "/")) all += bytes.size();
    if (key.starts_with("packs/" + std::to_string(first + 2) + "/")) all += bytes.size();
  }
  EXPECT_GT(all, 2u * kShards * (8u << 20));
  EXPECT_GE(one, all / kShards);
  EXPECT_LE(one, all / kShards + 4 * (4u << 20)) << "each of two has two edges";
}

TEST_F(KeptFiles, MayBeNoneOfTheShards) {
  bring(1, {"nothing*"});
  expect_kept(1, {});
  add_changed();
  bring(2, {"nothing*"});
  expect_kept(2, {});
  EXPECT_EQ(read_of("safetensors"), read_of("packs/")) << "nothing of a snapshot's files";
}

TEST_F(KeptFiles, CountAsWhatTheyTakeOnTheDisk) {
  bring(1, kOnlyB);
  const std::uint64_t kept = builder_.tree(1).at("b.safetensors").size();
  EXPECT_GE(host().store->images().image_bytes(), kept);
  EXPECT_LT(host().store->images().image_bytes(), kept + 1000);
}

// ---- partial versions ----

TEST_F(KeptFiles, OfAPartialVersionTheyAreAllThatIsFilled) {
  PartialImagesOptions options;
  options.only = kOnlyB;
  PartialImages images(*host().store, host().history, std::move(options));
  for (std::uint64_t version = 1; version <= 2; version++) {
    const auto filled = images.begin(version, {});
    ASSERT_NE(filled, nullptr);
    filled->wait_complete({});
    host().store->images().wait_partial(version, {});
    expect_kept(version, {"b.safetensors"});
    if (version == 1) add_changed();
  }
  EXPECT_EQ(read_of("a.safetensors"), 0u);
}

// ---- what a mount shows ----

TEST_F(KeptFiles, ASyncShowsTheWholeVersionWhereTheRestIsServed) {
  SyncOptions options;
  options.only = kOnlyB;
  options.with_absent = true;
  Sync sync(*host().store, host().history, std::move(options));
  sync.run_once({});
  const auto catalog = sync.catalog();
  ASSERT_EQ(catalog->latest, 1u);
  const CatalogVersion& version = *catalog->versions.at(1);
  std::uint64_t total = 0;
  for (const auto& [path, bytes] : builder_.tree(1)) total += bytes.size();
  EXPECT_EQ(version.size_bytes(), total);
  EXPECT_FALSE(version.has_all_files());
  for (const CatalogEntry& entry : version.entries) {
    const bool is_remote = shards_.contains(entry.path) && entry.path != "b.safetensors";
    EXPECT_EQ(entry.image, is_remote ? ImageState::absent : ImageState::complete) << entry.path;
    if (entry.is_directory) continue;
    EXPECT_EQ(entry.size_bytes, builder_.tree(1).at(entry.path).size()) << entry.path;
  }
}

TEST_F(KeptFiles, ASyncOfOrdinaryFilesShowsAVersionWhenAllOfItIsHere) {
  bring(1, kOnlyB);
  host().store->manifests().put_newest({1, host().history.get(1, {})->manifest_sha256});
  Sync sync(*host().store, host().history, {});
  EXPECT_EQ(sync.catalog()->latest, 0u);
  sync.run_once({});
  EXPECT_EQ(sync.catalog()->latest, 1u);
  expect_kept(1, {"a.safetensors", "b.safetensors", "sub/c.safetensors"});
}

TEST_F(KeptFiles, ASyncThatKeepsMoreThanTheOneBeforeShowsWhatIsHereAndAddsTheRest) {
  {
    SyncOptions options;
    options.only = kOnlyB;
    options.with_absent = true;
    Sync(*host().store, host().history, std::move(options)).run_once({});
  }
  SyncOptions options;
  options.with_absent = true;
  Sync sync(*host().store, host().history, std::move(options));
  EXPECT_EQ(sync.catalog()->latest, 1u);
  EXPECT_FALSE(sync.catalog()->versions.at(1)->has_all_files());
  EXPECT_TRUE(sync.catalog()->versions.at(1)->lacks_files);
  sync.run_once({});
  EXPECT_FALSE(sync.catalog()->versions.at(1)->lacks_files);
  EXPECT_TRUE(sync.catalog()->versions.at(1)->has_all_files());
  EXPECT_EQ(sync.status().state, SyncStatus::State::current);
}

// ---- files that are not kept ----

class RemoteFilesTest : public KeptFiles {
 protected:
  std::string read(std::uint64_t version, const std::string& path, std::uint64_t offset,
                   std::size_t size) {
    std::string bytes(size, '?');
    const std::size_t got =
        rest().read(version, path, offset, std::as_writable_bytes(std::span(bytes)), {});
    bytes.resize(got);
    return bytes;
  }

  RemoteFiles& rest() {
    if (!rest_) {
      rest_ = std::make_unique<RemoteFiles>(
          *host().store, host().history,
          RemoteFilesOptions{.coder = coder_, .retry = std::chrono::milliseconds(200)});
    }
    return *rest_;
  }

  std::unique_ptr<RemoteFiles> rest_;
};

TEST_F(RemoteFilesTest, IsReadByteForByte) {
  add_changed();
  add_changed();
  for (const std::uint64_t version : {3u, 1u}) {
    for (const auto& [path, tensors] : shards_) {
      const std::string& expected = builder_.tree(version).at(path);
      EXPECT_TRUE(read(version, path, 0, expected.size() + 10) == expected);
      for (int i = 0; i < 20; i++) {
        const std::size_t offset = rng_() % (expected.size() + 100);
        const std::size_t size = rng_() % 300'000;
        EXPECT_TRUE(read(version, path, offset, size) ==
                    expected.substr(std::min(offset, expected.size()), size))
            << path << " " << offset << " " << size;
      }
      EXPECT_EQ(read(version, path, expected.size(), 1), "");
    }
  }
}

TEST_F(RemoteFilesTest, OnlyWhatIsReadIsFetchedAndOnlyOnce) {
  add_changed();
  const std::string& expected = builder_.tree(2).at("a.safetensors");
  EXPECT_TRUE(read(2, "a.safetensors", 0, 100'000) == expected.substr(0, 100'000));
  EXPECT_EQ(rest().made_bytes(), 2u << 20) << "the first chunk";
  EXPECT_EQ(read_of("b.safetensors"), 0u);
  const std::size_t decoded = coder_->decoded;
  EXPECT_GT(decoded, 0u);
  EXPECT_TRUE(read(2, "a.safetensors", 50'000, 100'000) == expected.substr(50'000, 100'000));
  EXPECT_EQ(coder_->decoded, decoded);
}

TEST_F(RemoteFilesTest, ADamagedSkipDeltaOnlyMeansAnotherWay) {
  for (int i = 0; i < 9; i++) add_changed();
  builder_.add_skip({1, 9});
  const std::string& expected = builder_.tree(10).at("b.safetensors");
  EXPECT_TRUE(read(10, "b.safetensors", 0, 1000) == expected.substr(0, 1000));
  EXPECT_GT(read_of("skips/"), 0u);
  rest_.reset();
  host_.reset();
  builder_.flip(builder_.key("skips/", ".safetensors"), -2);
  EXPECT_TRUE(read(10, "b.safetensors", 0, expected.size()) == expected);
}

TEST_F(RemoteFilesTest, OfABucketThatIsDamagedIsAnErrorThatNamesTheObject) {
  const std::string key = builder_.key("snapshots/1/", "/a.safetensors");
  builder_.flip(key, -1);
  const std::string& expected = builder_.tree(1).at("a.safetensors");
  const auto read_end = [&] { return read(1, "a.safetensors", expected.size() - 10, 10); };
  const Error error = error_of(read_end);
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  builder_.flip(key, -1);
  EXPECT_EQ(read_end(), expected.substr(expected.size() - 10));
  builder_.bucket()->erase(key);
  rest_.reset();
  const Error gone = error_of(read_end);
  EXPECT_EQ(gone.code(), ErrorCode::io) << "ENOENT of a read means something else";
  EXPECT_NE(std::string(gone.what()).find(key), std::string::npos) << gone.what();
}

TEST_F(RemoteFilesTest, IsReadAllTheSameWhenTheNetworkFailsOnce) {
  const std::string& expected = builder_.tree(1).at("a.safetensors");
  host();
  for (std::uint64_t call = 1; call <= 4; call++) {
    rest_.reset();
    builder_.bucket()->fail_call(call, ErrorCode::unavailable);
    EXPECT_TRUE(read(1, "a.safetensors", 1000, 1000) == expected.substr(1000, 1000));
  }
  EXPECT_GE(builder_.bucket()->failures(), 2u);
}

TEST_F(RemoteFilesTest, IsAnErrorAndNeverFewerBytesWhileTheBucketIsGone) {
  builder_.bucket()->fail_key("snapshots/", ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { read(1, "a.safetensors", 0, 100); }).code(), ErrorCode::unavailable);
  builder_.bucket()->heal();
  EXPECT_EQ(read(1, "a.safetensors", 0, 100), builder_.tree(1).at("a.safetensors").substr(0, 100));
}

TEST_F(RemoteFilesTest, StopsWhoWaitsForTheBucket) {
  EXPECT_EQ(read(1, "a.safetensors", 0, 100).size(), 100u);
  builder_.bucket()->hang_key("snapshots/");
  Error error(ErrorCode::io, "");
  std::thread reader([&] { error = error_of([&] { read(1, "b.safetensors", 0, 5000); }); });
  while (builder_.bucket()->waiting() == 0) std::this_thread::yield();
  rest().stop();
  reader.join();
  EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
}

TEST_F(RemoteFilesTest, APlanThatHangsDoesNotHoldUpVersionsWhosePlanIsKnown) {
  add_changed();
  const std::string& expected = builder_.tree(1).at("b.safetensors");
  EXPECT_EQ(read(1, "a.safetensors", 0, 100).size(), 100u);
  builder_.bucket()->hang_key("versions/");
  builder_.bucket()->hang_key("layouts/");
  builder_.bucket()->hang_key("packs/");
  std::string bytes;
  std::thread planner([&] { bytes = read(2, "a.safetensors", 0, 100); });
  while (builder_.bucket()->waiting() == 0) std::this_thread::yield();
  EXPECT_EQ(read(1, "b.safetensors", 0, 100), expected.substr(0, 100));
  builder_.bucket()->heal();
  planner.join();
  EXPECT_EQ(bytes, builder_.tree(2).at("a.safetensors").substr(0, 100));
}

TEST_F(RemoteFilesTest, APlanThatHangsDoesNotHoldUpThePlanOfAnotherVersion) {
  add_changed();
  add_changed();
  host().history.get(3, {});
  builder_.bucket()->hang_key("packs/3/");
  std::string bytes;
  std::thread planner([&] { bytes = read(3, "a.safetensors", 0, 100); });
  while (builder_.bucket()->waiting() == 0) std::this_thread::yield();
  EXPECT_EQ(read(1, "a.safetensors", 0, 100), builder_.tree(1).at("a.safetensors").substr(0, 100));
  builder_.bucket()->heal();
  planner.join();
  EXPECT_EQ(bytes, builder_.tree(3).at("a.safetensors").substr(0, 100));
}

TEST_F(RemoteFilesTest, WhoWaitsForAPlanObeysItsContext) {
  add_changed();
  host();
  rest();
  builder_.bucket()->hang_key("versions/");
  std::string bytes;
  std::thread planner([&] { bytes = read(2, "a.safetensors", 0, 100); });
  while (builder_.bucket()->waiting() == 0) std::this_thread::yield();
  const auto read_with = [&](const Context& context) {
    std::string unused(100, '?');
    return error_of([&] {
             rest().read(2, "a.safetensors", 0, std::as_writable_bytes(std::span(unused)), context);
           })
        .code();
  };
  EXPECT_EQ(read_with({{}, Clock::now()}), ErrorCode::timed_out);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(read_with({stop.get_token(), Clock::time_point::max()}), ErrorCode::cancelled);
  builder_.bucket()->heal();
  planner.join();
  EXPECT_EQ(bytes, builder_.tree(2).at("a.safetensors").substr(0, 100));
}

TEST_F(RemoteFilesTest, APlanThatFailedIsMadeByWhoWaitedForIt) {
  add_changed();
  host();
  rest();
  builder_.bucket()->hang_key("versions/");
  std::vector<std::string> read_bytes(3);
  std::vector<std::thread> readers;
  std::atomic<int> failed = 0;
  for (std::string& bytes : read_bytes) {
    readers.emplace_back([&] {
      try {
        bytes = read(2, "a.safetensors", 0, 100);
      } catch (const Error& error) {  // it may have waited for longer than it retries
        EXPECT_EQ(error.code(), ErrorCode::unavailable);
        failed++;
      }
    });
  }
  while (builder_.bucket()->waiting() == 0) std::this_thread::yield();
  builder_.bucket()->heal();
  builder_.bucket()->fail_call(1, ErrorCode::unavailable);
  for (std::thread& reader : readers) reader.join();
  EXPECT_LE(failed, 1);
  const std::string expected = builder_.tree(2).at("a.safetensors").substr(0, 100);
  EXPECT_EQ(std::count(read_bytes.begin(), read_bytes.end(), expected), 3 - failed);
}

// More versions than plans are kept.
TEST_F(RemoteFilesTest, PlansOfManyVersionsAreMadeByManyReaders) {
  for (int i = 0; i < 3; i++) add_changed();
  std::vector<std::thread> readers;
  std::atomic<int> wrong = 0;
  rest();
  for (unsigned i = 0; i < 6; i++) {
    readers.emplace_back([&, i] {
      test::Random rng(test::seed() + i);
      for (int n = 0; n < 10; n++) {
        const std::uint64_t version = 1 + rng() % 4;
        const std::string& expected = builder_.tree(version).at("b.safetensors");
        const std::size_t offset = rng() % expected.size(), size = rng() % 50'000;
        if (read(version, "b.safetensors", offset, size) != expected.substr(offset, size)) wrong++;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(RemoteFilesTest, IsReadByManyAtATime) {
  add_changed();
  std::vector<std::thread> readers;
  std::atomic<int> wrong = 0;
  rest();
  for (unsigned i = 0; i < 6; i++) {
    readers.emplace_back([&, i] {
      test::Random rng(test::seed() + i);
      for (int n = 0; n < 20; n++) {
        const std::string path = n % 3 == 0 ? "sub/c.safetensors" : "a.safetensors";
        const std::string& expected = builder_.tree(2).at(path);
        const std::size_t offset = rng() % expected.size(), size = rng() % 200'000;
        if (read(2, path, offset, size) != expected.substr(offset, size)) wrong++;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(rest().made_bytes(), 5u << 20) << "each chunk was made once";
}

}  // namespace
}  // namespace weightfs
