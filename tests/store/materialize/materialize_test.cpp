#include "store/materialize/materialize.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "kernels/dispatch/hash.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/lease.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::BuildOptions;
using test::error_of;
using test::Host;
using test::make_safetensors;
using test::nudge;
using test::random_tensor;
using test::read_tree;
using test::RepositoryBuilder;
using test::TempDir;
using test::TestTensor;
using test::Tree;

constexpr std::size_t kMany = 700'000;  // bytes as U8: not a whole chunk

/// Tensors of the files of a checkpoint, and its small files; what random histories change.
struct Model {
  std::map<std::string, std::vector<TestTensor>> files;
  Tree blobs;
  std::map<std::string, std::string> metadata;

  [[nodiscard]] Tree tree() const {
    Tree tree = blobs;
    for (const auto& [path, tensors] : files) tree[path] = make_safetensors(tensors, metadata);
    return tree;
  }
  void nudge_all(double share, std::mt19937_64& rng) {
    for (auto& [path, tensors] : files) {
      for (TestTensor& tensor : tensors) nudge(tensor, share, rng);
    }
  }
};

/// Two shards, a sub-directory, a file without tensors, an empty tensor, and names that occur
/// twice.
Model small_model(std::mt19937_64& rng) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {300, 100}, rng),
                                  random_tensor("bytes", Dtype::u8, {1500, 1000}, rng),
                                  random_tensor("empty", Dtype::f32, {0, 4}, rng)};
  model.files["b.safetensors"] = {random_tensor("x", Dtype::bf16, {70'000}, rng),
                                  random_tensor("scalar", Dtype::f32, {}, rng)};
  model.files["sub/dir/adapter.safetensors"] = {random_tensor("x", Dtype::f16, {333}, rng)};
  model.files["none.safetensors"] = {};
  model.blobs["config.json"] = R"({"model_type":"test"})";
  model.blobs["sub/notes.txt"] = "";
  return model;
}

/// A directory with a repository's history, and versions written by hand.
class Materialize : public ::testing::Test {
 protected:
  /// Writes the plan's version into a directory of its own.  Returns: it, as a base for more.
  Base write(const Plan& plan, const Progress& progress = {}) {
    WriteOptions options;
    options.directory = directory_ / ("written-" + std::to_string(++written_));
    options.spool = directory_.path();
    options.sync = false;
    filesystem::create_directories(options.directory);
    write_version(plan, *repository_, options, {}, progress);
    return {plan.version, plan.layout, options.directory, plan.hashes};
  }

  Plan plan(std::uint64_t version, const std::vector<Base>& bases = {}) {
    return make_plan(history_, history_.get(version, {}), bases, {});
  }

  void expect_version(const Base& base) {
    EXPECT_EQ(read_tree(base.directory), builder_.tree(base.version->number()))
        << "version " << base.version->number();
  }

  /// Nothing was left in the directory but versions that were written.
  void expect_no_spools() {
    for (const auto& entry : filesystem::directory_iterator(directory_.path())) {
      EXPECT_TRUE(entry.is_directory()) << entry.path();
    }
  }

  TempDir directory_;
  std::mt19937_64 rng_ = test::make_rng();
  RepositoryBuilder builder_;
  std::unique_ptr<Repository> repository_ = builder_.open();
  History history_{*repository_, nullptr};
  int written_ = 0;
};

ino_t inode_of(const filesystem::path& path) {
  struct stat attributes {};
  EXPECT_EQ(::stat(path.c_str(), &attributes), 0) << path;
  return attributes.st_ino;
}

void flip_byte(const filesystem::path& path, std::size_t offset) {
  std::string bytes = test::read_text(path);
  bytes.at(offset) = static_cast<char>(~bytes.at(offset));
  filesystem::remove(path);  // 0444, and perhaps a hard link
  test::write_text(path, bytes);
}

bool mentions(const Error& error, std::string_view text) {
  return std::string_view(error.what()).find(text) != std::string_view::npos;
}

// ---- bytes ----

TEST_F(Materialize, WritesASnapshotByteForByte) {
  builder_.add(small_model(rng_).tree());
  const Plan way = plan(1);
  ASSERT_TRUE(way.snapshot);
  EXPECT_FALSE(way.base);
  EXPECT_TRUE(way.steps.empty());
  expect_version(write(way));
  expect_no_spools();
}

TEST_F(Materialize, GivesFilesTheirModeAndTheManifestsTime) {
  builder_.add(small_model(rng_).tree());
  const Base base = write(plan(1));
  for (const auto* path : {"a.safetensors", "config.json"}) {
    struct stat attributes {};
    ASSERT_EQ(::stat((base.directory / path).c_str(), &attributes), 0);
    EXPECT_EQ(attributes.st_mode & 07777, 0444u) << path;
    EXPECT_EQ(attributes.st_mtime, base.version->manifest.time) << path;
  }
}

TEST_F(Materialize, AppliesOneTwoOrEightStepsInOnePassLikeOneByOne) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  for (int i = 0; i < 8; i++) {
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree(), {.uploaders = 2, .chunks_per_pack = 2});
  }
  const Base first = write(plan(1));
  Base last = first;
  for (std::uint64_t version = 2; version <= 9; version++) {
    last = write(plan(version, {last}));
    expect_version(last);
  }
  for (const std::uint64_t version : {2u, 3u, 9u}) {
    const Plan way = plan(version, {first});
    EXPECT_EQ(way.steps.size(), version - 1);
    EXPECT_TRUE(way.base);
    expect_version(write(way));
    const Plan cold = plan(version);
    EXPECT_EQ(cold.steps.size(), version - 1);
    EXPECT_TRUE(cold.snapshot);
    expect_version(write(cold));
  }
  EXPECT_EQ(last.hashes, plan(9, {first}).hashes);
  expect_no_spools();
}

TEST_F(Materialize, BringsBackEveryDtype) {
  Model model;
  for (unsigned i = 0; i <= static_cast<unsigned>(Dtype::u64); i++) {
    const auto dtype = static_cast<Dtype>(i);
    model.files["every.safetensors"].push_back(
        random_tensor("tensor-" + std::string(to_string(dtype)), dtype, {70'000}, rng_));
  }
  builder_.add(model.tree());
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree());
  model.nudge_all(1.0, rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  expect_version(first);
  expect_version(write(plan(2, {first})));
  expect_version(write(plan(3, {first})));
}

TEST_F(Materialize, FollowsTensorsThroughEveryChangeOfShape) {
  Model model = small_model(rng_);
  auto& a = model.files["a.safetensors"];
  builder_.add(model.tree());
  const auto step = [&] { builder_.add(model.tree(), {.chunks_per_pack = 1}); };
  a[1] = random_tensor("bytes", Dtype::u8, {2500, 1000}, rng_);  // grown by a chunk
  step();
  a[1].data.resize(kMany);  // cut inside the first chunk, else unchanged
  a[1].shape = {kMany};
  step();
  a[1].data.resize(3'000'000);  // grown again, by zeros
  a[1].shape = {3'000'000};
  step();
  a[0].shape = {30'000};  // reshaped only
  step();
  a[0] = random_tensor("x", Dtype::f32, {300, 100}, rng_);  // retyped
  step();
  TestTensor moved = a[1];
  a.erase(a.begin() + 1);  // moved to another shard
  model.files["b.safetensors"].push_back(moved);
  step();
  model.files["c.safetensors"] = model.files["b.safetensors"];  // renamed shard
  model.files.erase("b.safetensors");
  step();
  model.files.erase("c.safetensors");  // removed
  step();
  model.files["c.safetensors"] = {moved};  // and back
  step();
  model.metadata["format"] = "pt";  // headers only
  model.blobs["config.json"] = "{}";
  model.blobs.erase("sub/notes.txt");
  step();

  std::vector<Base> bases{write(plan(1))};
  for (std::uint64_t version = 2; version <= builder_.newest(); version++) {
    expect_version(write(plan(version, {bases.front()})));
    bases.push_back(write(plan(version, {bases.back()})));
    expect_version(bases.back());
  }
}

TEST_F(Materialize, JoinsChunksAcrossWindowsAndSegments) {
  Model model;
  // 5 + 36 + 3 MiB: neither windows nor segments end where chunks do.
  model.files["large.safetensors"] = {random_tensor("first", Dtype::u8, {5'000'001}, rng_),
                                      random_tensor("second", Dtype::f32, {9'000'000}, rng_),
                                      random_tensor("third", Dtype::bf16, {1'500'000}, rng_)};
  builder_.add(model.tree());
  model.nudge_all(0.001, rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  expect_version(first);
  expect_version(write(plan(2, {first})));
  expect_version(write(plan(2)));
}

TEST_F(Materialize, WritesOpaqueFiles) {
  Tree tree = small_model(rng_).tree();
  std::string& opaque = tree["weights.gguf"] = std::string((16u << 20) + 5, 'o');
  builder_.add(tree);
  opaque[3'000'000] = 'x';
  opaque += "longer";
  builder_.add(tree);
  const Base first = write(plan(1));
  expect_version(first);
  expect_version(write(plan(2, {first})));
}

TEST_F(Materialize, TellsProgressUpToTheTotals) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree());
  std::mutex mutex;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> phases;
  const Plan way = plan(2);
  write(way, [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard lock(mutex);
    auto& seen = phases[std::string(phase)];
    seen = {std::max(seen.first, done), total};
  });
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases["fetching snapshot"], std::pair(way.version_bytes(), way.version_bytes()));
  EXPECT_EQ(phases["fetching"].first, phases["fetching"].second);
  EXPECT_GT(phases["fetching"].first, 0u);
}

// ---- hard links ----

TEST_F(Materialize, LinksFilesThatNoStepTouched) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  nudge(model.files["b.safetensors"][0], 0.01, rng_);
  builder_.add(model.tree());
  nudge(model.files["b.safetensors"][0], 0.01, rng_);
  model.blobs["config.json"] = "{}";
  builder_.add(model.tree());
  const Base first = write(plan(1));
  const Base third = write(plan(3, {first}));
  expect_version(third);
  const auto linked = [&](const char* path) {
    return inode_of(first.directory / path) == inode_of(third.directory / path);
  };
  EXPECT_TRUE(linked("a.safetensors"));
  EXPECT_TRUE(linked("sub/dir/adapter.safetensors"));
  EXPECT_TRUE(linked("sub/notes.txt"));
  EXPECT_FALSE(linked("b.safetensors"));
  EXPECT_FALSE(linked("config.json"));
}

TEST_F(Materialize, CopiesWhatCannotBeLinked) {
  const filesystem::path elsewhere = "/dev/shm/" + directory_.path().filename().string();
  std::error_code failed;
  filesystem::create_directories(elsewhere, failed);
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat(directory_.path().c_str(), &here), 0);
  if (failed || ::stat(elsewhere.c_str(), &there) != 0 || here.st_dev == there.st_dev) {
    GTEST_SKIP() << "no second file system";
  }
  Model model = small_model(rng_);
  builder_.add(model.tree());
  model.blobs["config.json"] = "{}";
  builder_.add(model.tree());
  Base first = write(plan(1));
  filesystem::copy(first.directory, elsewhere, filesystem::copy_options::recursive);
  first.directory = elsewhere;
  const Base second = write(plan(2, {first}));
  filesystem::remove_all(elsewhere);
  expect_version(second);
}

TEST_F(Materialize, LinksARenamedFile) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  model.files["renamed.safetensors"] = model.files["a.safetensors"];
  model.files.erase("a.safetensors");
  model.files.erase("b.safetensors");
  builder_.add(model.tree());
  const Base first = write(plan(1));
  const Base second = write(plan(2, {first}));
  expect_version(second);
  EXPECT_EQ(inode_of(first.directory / "a.safetensors"),
            inode_of(second.directory / "renamed.safetensors"));
}

TEST_F(Materialize, DoesNotLinkAFileWhoseHeaderChanged) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  model.metadata["step"] = "2";
  builder_.add(model.tree());
  const Base first = write(plan(1));
  const Base second = write(plan(2, {first}));
  expect_version(second);
  EXPECT_NE(inode_of(first.directory / "a.safetensors"),
            inode_of(second.directory / "a.safetensors"));
}

TEST_F(Materialize, DoesNotLinkAFileWhoseTensorsSwappedPlaces) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::u8, {1000}, rng_)};
  model.files["b.safetensors"] = {random_tensor("x", Dtype::u8, {1000}, rng_)};
  builder_.add(model.tree());
  std::swap(model.files["a.safetensors"], model.files["b.safetensors"]);
  builder_.add(model.tree());
  std::swap(model.files["a.safetensors"], model.files["b.safetensors"]);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  expect_version(write(plan(2, {first})));
  expect_version(write(plan(3, {first})));
}

// ---- plans ----

TEST_F(Materialize, TakesTheNearestBase) {
  Model model = small_model(rng_);
  for (int i = 0; i < 4; i++) {
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree());
  }
  const Base first = write(plan(1)), third = write(plan(3));
  const Plan way = plan(4, {first, third});
  ASSERT_TRUE(way.base);
  EXPECT_EQ(way.base->version->number(), 3u);
  EXPECT_EQ(way.steps.size(), 1u);
  EXPECT_LT(way.fetch_bytes, plan(4, {first}).fetch_bytes);
}

TEST_F(Materialize, StartsFromASnapshotWhenThatFetchesLess) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::u8, {10'000}, rng_)};
  builder_.add(model.tree());
  const Base first = write(plan(1));
  for (int i = 0; i < 3; i++) {
    model.files["a.safetensors"] = {random_tensor("x", Dtype::u8, {10'000}, rng_)};
    builder_.add(model.tree(), {.snapshot = i == 1});
  }
  const Plan way = plan(4, {first});
  ASSERT_TRUE(way.snapshot);
  EXPECT_EQ(way.snapshot->version->number(), 3u);
  EXPECT_EQ(way.steps.size(), 1u);
  expect_version(write(way));
}

TEST_F(Materialize, PrefersABaseToASnapshotThatFetchesMore) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  model.nudge_all(0.001, rng_);
  builder_.add(model.tree(), {.snapshot = true});
  EXPECT_TRUE(plan(2, {first}).base);
  EXPECT_TRUE(plan(2).snapshot);
}

TEST_F(Materialize, TakesNoBaseOfAnotherHistory) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  Base other = write(plan(1));
  Version changed = *other.version;
  changed.manifest_sha256[0] ^= std::byte{1};
  other.version = std::make_shared<const Version>(changed);
  EXPECT_TRUE(plan(1, {other}).snapshot);
}

TEST_F(Materialize, TakesAnotherWayRoundAMissingPack) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  model.nudge_all(0.001, rng_);
  builder_.add(model.tree(), {.snapshot = true});
  builder_.bucket()->erase(builder_.key("packs/2/"));
  const Plan way = plan(2, {first});
  EXPECT_TRUE(way.snapshot);
  expect_version(write(way));
}

TEST_F(Materialize, NeedsNoOlderManifestWhereASnapshotWillDo) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree());
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree(), {.snapshot = true});
  builder_.bucket()->erase(keys::manifest(2));
  const Plan way = plan(3, {first});
  EXPECT_TRUE(way.snapshot);
  expect_version(write(way));
}

// D5: they were fetched one after another, each 20 ms where the bucket is 20 ms away.
TEST_F(Materialize, FetchesHeadsAndLayoutsOfAWayManyAtATime) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  for (int step = 2; step <= 13; step++) {
    model.metadata["step"] = std::to_string(100 + step);
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree());
  }
  for (std::uint64_t number = 1; number <= 13; number++) history_.get(number, {});
  const auto first = history_.layout(*history_.get(1, {}), {});
  for (const std::string prefix : {"layouts/", "packs/"}) {
    builder_.bucket()->hang_key(prefix);
    std::optional<Plan> found;
    std::jthread planning([&] { found = plan(13); });
    EXPECT_TRUE(test::eventually([&] { return builder_.bucket()->waiting() == 12; }))
        << builder_.bucket()->waiting() << " of 12 are asked for at a time";
    builder_.bucket()->heal();
    planning.join();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->steps.size(), 12u);
    expect_version(write(*found));
  }
}

TEST_F(Materialize, OfManyDamagedHeadsTheOldestIsNamed) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  for (int step = 2; step <= 20; step++) {
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree());
  }
  for (const char* damaged : {"packs/17/", "packs/4/", "packs/11/"}) {
    builder_.flip(builder_.key(damaged), 20);
  }
  for (int round = 0; round < 10; round++) {
    const Error error = error_of([&] { plan(20); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_TRUE(mentions(error, "packs/4/")) << error.what();
    EXPECT_TRUE(mentions(error, "version 4")) << error.what();
  }
}

TEST_F(Materialize, RefusesABaseWhoseRecordedHashesAreWrong) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  Base base = write(plan(1));
  base.hashes[0] ^= 1;
  EXPECT_THROW(plan(1, {base}), BaseDamaged);
  base.hashes.pop_back();
  EXPECT_THROW(plan(1, {base}), BaseDamaged);
}

// ---- damage in the bucket ----

/// Two versions; the second is wanted from the first.
class DamagedBucket : public Materialize {
 protected:
  void add_two(const BuildOptions& options) {
    builder_.add(model_.tree());
    first_ = write(plan(1));
    model_.nudge_all(0.01, rng_);
    builder_.add(model_.tree(), options);
  }

  /// The Error of planning and writing version 2; nothing may be left but its directory.
  Error error_of_two() {
    const Error error = error_of([&] { write(plan(2, {first_})); });
    expect_no_spools();
    return error;
  }

  void expect_error(ErrorCode code, const std::string& object) {
    const Error error = error_of_two();
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_TRUE(mentions(error, object)) << error.what() << "\nwithout " << object;
  }

  Model model_ = small_model(rng_);
  Base first_;
};

TEST_F(DamagedBucket, AFlippedByteOfAPackNamesThePack) {
  add_two({});
  builder_.flip(builder_.key("packs/2/"), -1);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AFlippedByteOfAPacksHeadNamesThePack) {
  add_two({});
  builder_.flip(builder_.key("packs/2/"), 20);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AMissingPackIsNotFound) {
  add_two({});
  const std::string key = builder_.key("packs/2/");
  builder_.bucket()->erase(key);
  expect_error(ErrorCode::not_found, key);
}

TEST_F(DamagedBucket, APackThatGoesMissingAfterThePlanIsNotFound) {
  add_two({});
  const std::string key = builder_.key("packs/2/");
  const Plan way = plan(2, {first_});
  builder_.bucket()->erase(key);
  const Error error = error_of([&] { write(way); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, ATruncatedPackNamesThePack) {
  add_two({});
  builder_.cut(builder_.key("packs/2/"), 1);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AWrongChunkHashNamesPackTensorAndChunk) {
  add_two({.wrong_hash = std::pair(1u, 1u)});
  const Error error = error_of_two();
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, builder_.key("packs/2/"))) << error.what();
  EXPECT_TRUE(mentions(error, "chunk 1 of tensor 'bytes' in 'a.safetensors'")) << error.what();
}

TEST_F(DamagedBucket, AWrongChunkHashInAnEarlierStepIsFoundThere) {
  add_two({.wrong_hash = std::pair(1u, 0u)});
  for (TestTensor& tensor : model_.files["b.safetensors"]) nudge(tensor, 0.01, rng_);
  builder_.add(model_.tree());
  const Error error = error_of([&] { write(plan(3, {first_})); });
  EXPECT_TRUE(mentions(error, builder_.key("packs/2/"))) << error.what();
}

TEST_F(DamagedBucket, AWrongRootNamesTheVersion) {
  add_two({.edit = [](Manifest& manifest) { manifest.root[0] ^= std::byte{1}; }});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, AWrongRootOnTheWayNamesItsVersion) {
  add_two({.edit = [](Manifest& manifest) { manifest.root[0] ^= std::byte{1}; }});
  model_.nudge_all(0.01, rng_);
  builder_.add(model_.tree());
  const Error error = error_of([&] { plan(3, {first_}); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, keys::manifest(2))) << error.what();
}

TEST_F(DamagedBucket, AChunkInTwoPacksIsRefused) {
  add_two({.doubled = std::pair(0u, 0u)});
  expect_error(ErrorCode::corrupt, "packs/2/");
}

TEST_F(DamagedBucket, AChunkThatMustBeListedAndIsNotIsRefused) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  model_.files["new.safetensors"] = {random_tensor("new", Dtype::u8, {100}, rng_)};
  constexpr std::uint32_t kNew = 5;  // behind the tensors of a and b
  builder_.add(model_.tree(), {.left_out = std::pair(kNew, 0u)});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, AChunkOfAnotherSizeThatIsNotListedIsRefused) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  TestTensor& bytes = model_.files["a.safetensors"][1];
  bytes.data.resize(bytes.data.size() - 1);
  bytes.shape = {bytes.data.size()};
  nudge(model_.files["b.safetensors"][0], 0.01, rng_);
  builder_.add(model_.tree(), {.left_out = std::pair(1u, 1u)});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, ADamagedBlobNamesIt) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  model_.blobs["config.json"] = "{\"other\":1}";
  builder_.add(model_.tree());
  const std::string key = keys::blob(history_.get(2, {})->manifest.blobs.front().sha256);
  builder_.flip(key, -1);
  expect_error(ErrorCode::corrupt, key);
  builder_.bucket()->erase(key);
  expect_error(ErrorCode::not_found, key);
}

TEST_F(DamagedBucket, AFlippedByteOfASnapshotNamesItsFile) {
  builder_.add(model_.tree());
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  builder_.flip(key, -1);
  const Error error = error_of([&] { write(plan(1)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, AMissingFileOfASnapshotIsNotFound) {
  builder_.add(model_.tree());
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  builder_.bucket()->erase(key);
  const Error error = error_of([&] { write(plan(1)); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, AFileThatIsABlobTooIsRefused) {
  builder_.add(model_.tree(),
               {.edit = [](Manifest& manifest) { manifest.blobs[0].path = "a.safetensors"; }});
  EXPECT_EQ(error_of([&] { plan(1); }).code(), ErrorCode::corrupt);
}

TEST_F(DamagedBucket, AFileThatIsADirectoryOfABlobIsRefused) {
  builder_.add(model_.tree(), {.edit = [](Manifest& manifest) {
                 manifest.blobs[0].path = "a.safetensors/config.json";
               }});
  EXPECT_EQ(error_of([&] { plan(1); }).code(), ErrorCode::corrupt);
}

TEST_F(DamagedBucket, StopsWhenTold) {
  add_two({});
  const Plan way = plan(2, {first_});
  std::stop_source stop;
  stop.request_stop();
  WriteOptions options;
  options.directory = directory_ / "stopped";
  options.spool = directory_.path();
  filesystem::create_directories(options.directory);
  Context context;
  context.stop = stop.get_token();
  EXPECT_EQ(error_of([&] { write_version(way, *repository_, options, context, {}); }).code(),
            ErrorCode::cancelled);
  expect_no_spools();
}

// ---- damage on this host ----

class DamagedBase : public DamagedBucket {
 protected:
  void expect_damaged(const std::string& object) {
    try {
      write(plan(2, {first_}));
      FAIL() << "nothing was thrown";
    } catch (const BaseDamaged& damaged) {
      EXPECT_EQ(damaged.version(), 1u);
      EXPECT_TRUE(mentions(damaged, object)) << damaged.what();
    }
  }
};

TEST_F(DamagedBase, ARottenByteNamesFileAndTensor) {
  add_two({});
  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  expect_damaged("a.safetensors: chunk 1 of tensor 'bytes'");
}

TEST_F(DamagedBase, AMissingImageIsDamage) {
  add_two({});
  filesystem::remove(first_.directory / "b.safetensors");
  expect_damaged("b.safetensors");
}

TEST_F(DamagedBase, AShortImageIsDamage) {
  add_two({});
  filesystem::permissions(first_.directory / "a.safetensors", filesystem::perms::owner_all);
  filesystem::resize_file(first_.directory / "a.safetensors", 70'000);
  expect_damaged("a.safetensors");
}

TEST_F(DamagedBase, AMissingBlobIsFetchedInstead) {
  add_two({});
  filesystem::remove(first_.directory / "config.json");
  expect_version(write(plan(2, {first_})));
}

// It has the size that it should have, and was hard-linked into every version after it.
TEST_F(DamagedBase, ADamagedBlobIsFetchedInstead) {
  add_two({});
  flip_byte(first_.directory / "config.json", 0);
  const Base second = write(plan(2, {first_}));
  expect_version(second);
  EXPECT_NE(inode_of(second.directory / "config.json"), inode_of(first_.directory / "config.json"));
}

/// A weights file that no step touches, and that somebody wrote to.
TEST_F(DamagedBase, AnUntouchedFileThatWasWrittenToIsNotLinked) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  nudge(model.files["b.safetensors"][0], 0.01, rng_);
  builder_.add(model.tree());
  first_ = write(plan(1));
  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  expect_damaged("a.safetensors");

  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  const Base second = write(plan(2, {first_}));  // the bytes are right again: made from them
  expect_version(second);
  EXPECT_NE(inode_of(second.directory / "a.safetensors"),
            inode_of(first_.directory / "a.safetensors"));
}

// ---- the coder ----

/// Version 1 written, version 2 to be made from it with a coder that a test meddles with.
class WithACoder : public Materialize {
 protected:
  void SetUp() override {
    Model model = small_model(rng_);
    builder_.add(model.tree());
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree());
    first_ = write(plan(1));
  }

  Error error_of_writing() {
    WriteOptions options;
    options.directory = directory_ / "second";
    options.spool = directory_.path();
    options.sync = false;
    options.coder = coder_;
    filesystem::create_directories(options.directory);
    const Plan way = plan(2, {first_});
    return error_of([&] { write_version(way, *repository_, options, {}, {}); });
  }

  std::shared_ptr<test::MeddlingCoder> coder_ = std::make_shared<test::MeddlingCoder>();
  Base first_;
};

TEST_F(WithACoder, GivesItChunksInBatches) {
  EXPECT_EQ(std::string(error_of_writing().what()), "nothing was thrown");
  EXPECT_EQ(read_tree(directory_ / "second"), builder_.tree(2));
  EXPECT_EQ(coder_->decode_calls, 3u) << "one for each file with changes";
  EXPECT_GT(coder_->decoded, coder_->decode_calls);
}

TEST_F(WithACoder, AWrongByteIsFoundAndNotBlamedOnThePack) {
  coder_->after_decode = [](kernels::DecodeJob& job) {
    job.new_chunk.front() ^= std::byte{1};
    job.hash = kernels::hash_chunk(job.new_chunk);
  };
  const Error error = error_of_writing();
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_NE(std::string(error.what()).find("was built wrongly"), std::string::npos) << error.what();
}

TEST_F(WithACoder, ARefusalOfARightBlockIsNotBlamedOnThePack) {
  coder_->after_decode = [](kernels::DecodeJob& job) { job.is_decoded = false; };
  const Error error = error_of_writing();
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_NE(std::string(error.what()).find("was built wrongly"), std::string::npos) << error.what();
}

// ---- into a store ----

class MaterializeIntoStore : public ::testing::Test {
 protected:
  void add_versions(int count) {
    for (int i = 0; i < count; i++) {
      if (builder_.newest() > 0) model_.nudge_all(0.01, rng_);
      builder_.add(model_.tree());
    }
  }

  void bring(std::uint64_t version) { materialize(*host_.store, host_.history, version, {}, {}); }

  void expect_version(std::uint64_t version) {
    EXPECT_TRUE(host_.store->is_complete(version));
    EXPECT_EQ(read_tree(host_.store->image_directory(version)), builder_.tree(version));
  }

  void expect_nothing_of(std::uint64_t version) {
    EXPECT_FALSE(host_.store->is_complete(version));
    EXPECT_FALSE(filesystem::exists(host_.store->image_directory(version)));
    EXPECT_TRUE(filesystem::is_empty(host_.store->temporary_directory()));
  }

  /// Damages a version's image behind the store's back.
  void rot(std::uint64_t version) {
    const auto path = host_.store->image_directory(version) / "a.safetensors";
    flip_byte(path, filesystem::file_size(path) - 5);
  }

  TempDir directory_;
  std::mt19937_64 rng_ = test::make_rng();
  Model model_ = small_model(rng_);
  RepositoryBuilder builder_;
  Host host_{builder_.bucket(), directory_ / "store", {1u << 30, 0}};
};

TEST_F(MaterializeIntoStore, BringsAVersionInAndDoesItOnlyOnce) {
  add_versions(2);
  bring(1);
  expect_version(1);
  bring(2);
  expect_version(2);
  EXPECT_EQ(host_.store->chunk_hashes(2), base_of(*host_.store, host_.history, 2, {}).hashes);
  const ino_t inode = inode_of(host_.store->image_directory(2) / "a.safetensors");
  builder_.bucket()->fail_key("", ErrorCode::unavailable);
  bring(2);
  EXPECT_EQ(inode_of(host_.store->image_directory(2) / "a.safetensors"), inode);
}

TEST_F(MaterializeIntoStore, LetsGoOfItsBases) {
  add_versions(2);
  bring(1);
  bring(2);
  EXPECT_TRUE(nobody_reads(host_.store->image_directory(1)));
  EXPECT_TRUE(nobody_reads(host_.store->image_directory(2)));
}

TEST_F(MaterializeIntoStore, LeavesNothingAfterAFailureAndWorksOnceItIsMended) {
  add_versions(2);
  bring(1);
  const std::string key = builder_.key("packs/2/");
  const std::string whole = builder_.bucket()->find(key).value();
  builder_.flip(key, -1);
  const Error error = error_of([&] { bring(2); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, key)) << error.what();
  expect_nothing_of(2);
  expect_version(1);
  builder_.bucket()->replace(key, whole);
  bring(2);
  expect_version(2);
}

TEST_F(MaterializeIntoStore, LeavesNothingAfterAFailureWhileItWrites) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", "b.safetensors");
  builder_.flip(key, -1);
  EXPECT_EQ(error_of([&] { bring(1); }).code(), ErrorCode::corrupt);
  expect_nothing_of(1);
}

TEST_F(MaterializeIntoStore, AVersionThatDoesNotExistIsNotFound) {
  add_versions(1);
  EXPECT_EQ(error_of([&] { bring(2); }).code(), ErrorCode::not_found);
}

TEST_F(MaterializeIntoStore, HealsARottenBase) {
  add_versions(3);
  bring(1);
  bring(2);
  rot(2);
  bring(3);
  expect_version(3);
  EXPECT_FALSE(host_.store->is_complete(2));
  expect_version(1);
  bring(2);
  expect_version(2);
}

TEST_F(MaterializeIntoStore, GoesToTheBucketWhenEveryBaseIsRotten) {
  add_versions(3);
  bring(1);
  bring(2);
  rot(1);
  rot(2);
  bring(3);
  expect_version(3);
  EXPECT_EQ(host_.store->complete_versions(), std::vector<std::uint64_t>{3});
}

TEST_F(MaterializeIntoStore, KeepsARottenVersionThatMustStay) {
  add_versions(2);
  bring(1);
  rot(1);
  const auto latest = host_.store->eviction().reserve(1, Eviction::Claim::stays, {});
  bring(2);
  expect_version(2);
  EXPECT_TRUE(host_.store->is_complete(1));
}

TEST_F(MaterializeIntoStore, KeepsARottenVersionThatIsInUse) {
  add_versions(2);
  bring(1);
  rot(1);
  std::vector<std::uint64_t> asked;
  const test::ToldGuard guard(host_.store->eviction(), {.release = [&](std::uint64_t version) {
                                asked.push_back(version);
                                return false;
                              }});
  bring(2);
  expect_version(2);
  EXPECT_EQ(asked, std::vector<std::uint64_t>{1});
  EXPECT_TRUE(host_.store->is_complete(1));
}

TEST_F(MaterializeIntoStore, GoesALongWayInSeveralPasses) {
  model_ = Model();
  model_.files["a.safetensors"] = {random_tensor("x", Dtype::u8, {5000}, rng_)};
  add_versions(static_cast<int>(kStepsPerPass) + 5);
  bring(builder_.newest());
  expect_version(builder_.newest());
  EXPECT_TRUE(host_.store->is_complete(1 + kStepsPerPass));
  EXPECT_EQ(host_.store->complete_versions().size(), 2u);
}

TEST_F(MaterializeIntoStore, RefusesWhatHasNoRoom) {
  add_versions(1);
  Host tight{builder_.bucket(), directory_ / "tight", {1000, 0}};
  const Error error = error_of([&] { materialize(*tight.store, tight.history, 1, {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::no_space) << error.what();
  EXPECT_FALSE(filesystem::exists(tight.store->image_directory(1)));
}

// ---- random histories ----

/// One random change of a model, of the kinds that trainers make, and odd ones.
class Mutator {
 public:
  explicit Mutator(std::mt19937_64& rng) : rng_(rng) {}

  void change(Model& model) {
    for (int i = static_cast<int>(pick(4)); i >= 0; i--) change_once(model);
  }

 private:
  std::size_t pick(std::size_t count) { return rng_() % count; }

  Dtype dtype() {
    constexpr Dtype kSome[] = {Dtype::bf16, Dtype::f16,     Dtype::f32, Dtype::f8_e4m3,
                               Dtype::u8,   Dtype::f8_e5m2, Dtype::i64, Dtype::boolean};
    return kSome[pick(std::size(kSome))];
  }

  TestTensor tensor() {
    constexpr std::uint64_t kSizes[] = {0, 1, 300, 65'536, 65'537, 1'048'576, 1'300'000};
    return random_tensor("t" + std::to_string(pick(5)), dtype(), {kSizes[pick(7)]}, rng_);
  }

  std::string path() {
    const std::string name = "f" + std::to_string(pick(3)) + ".safetensors";
    return pick(3) == 0 ? "sub/" + name : name;
  }

  std::vector<TestTensor>& file(Model& model) {
    if (model.files.empty()) model.files[path()];
    return std::next(model.files.begin(), static_cast<std::ptrdiff_t>(pick(model.files.size())))
        ->second;
  }

  static void put(std::vector<TestTensor>& tensors, TestTensor tensor) {
    std::erase_if(tensors, [&](const TestTensor& other) { return other.name == tensor.name; });
    tensors.push_back(std::move(tensor));
  }

  void change_once(Model& model) {
    std::vector<TestTensor>& tensors = file(model);
    switch (pick(9)) {
      case 0:
        return put(model.files[path()], tensor());
      case 1:
        if (!tensors.empty())
          tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(pick(tensors.size())));
        return;
      case 2:
        if (model.files.size() > 1) model.files.erase(model.files.begin());
        return;
      case 3:
        if (!tensors.empty()) put(model.files[path()], TestTensor(tensors.front()));
        return;
      case 4:
        std::shuffle(tensors.begin(), tensors.end(), rng_);
        return;
      case 5:
        model.blobs["blob" + std::to_string(pick(3)) + ".json"] = std::to_string(pick(4));
        return;
      case 6:
        model.metadata["step"] = std::to_string(pick(3));
        return;
      case 7:
        return resize(tensors);
      default:
        return model.nudge_all(pick(2) == 0 ? 0.01 : 0.0, rng_);
    }
  }

  /// Keeps the bytes that stay.
  void resize(std::vector<TestTensor>& tensors) {
    if (tensors.empty()) return;
    TestTensor& tensor = tensors[pick(tensors.size())];
    const std::uint64_t element = bits_of(tensor.dtype) / 8;
    const std::uint64_t count = pick(1'500'000);
    tensor.shape = {count};
    tensor.data.resize(count * element);
  }

  std::mt19937_64& rng_;
};

TEST_F(Materialize, GivesEveryVersionOfARandomHistoryFromEveryBase) {
  constexpr int kVersions = 12;
  Model model = small_model(rng_);
  Mutator mutator(rng_);
  for (int i = 0; i < kVersions; i++) {
    const BuildOptions options{.snapshot = rng_() % 4 == 0,
                               .delta = true,
                               .uploaders = 1 + static_cast<unsigned>(rng_() % 3),
                               .chunks_per_pack = 1 + rng_() % 5,
                               .all_chunks = rng_() % 4 == 0};
    builder_.add(model.tree(), options);
    mutator.change(model);
  }
  std::vector<Base> bases;
  for (std::uint64_t version = 1; version <= kVersions; version++) {
    expect_version(write(plan(version)));
    if (!bases.empty()) {
      const Base& base = bases[rng_() % bases.size()];
      const ReconstructionPath way{base.version, &base, 0, 0};
      expect_version(write(make_plan_by(way, history_, history_.get(version, {}), {})));
    }
    bases.push_back(write(plan(version, bases)));
    expect_version(bases.back());
  }
}

}  // namespace
}  // namespace weightfs
