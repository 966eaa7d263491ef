// Materialize: the bytes of a version, hard links, plans, the coder, random histories.
#include "store/materialize/materialize.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "kernels/dispatch/hash.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::BuildOptions;
using test::error_of;
using test::inode_of;
using test::kMany;
using test::Materialize;
using test::mentions;
using test::Model;
using test::nudge;
using test::random_tensor;
using test::read_tree;
using test::small_model;
using test::TestTensor;
using test::Tree;

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
  // 5 + 36 + 3 MiB: neither windows nor segments end at chunk boundaries.
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

// Regression (D5): these were fetched one after another, each taking 20 ms if the bucket is 20 ms
// away.
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

TEST_F(Materialize, WhatNeedsNoPackIsWrittenWhilePacksAreFetched) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  const Base first = write(plan(1));
  nudge(model.files["a.safetensors"][0], 0.01, rng_);
  model.metadata["step"] = "2";  // in every header, so that no file can be linked
  builder_.add(model.tree());
  const Plan way = plan(2, {first});
  builder_.bucket()->hang_key("packs/");
  WriteOptions options;
  options.directory = directory_ / "second";
  options.spool = directory_.path();
  options.threads = 2;
  options.sync = false;
  filesystem::create_directories(options.directory);
  const auto is_sealed = [&](const char* path) {
    struct stat attributes {};
    return ::stat((options.directory / path).c_str(), &attributes) == 0 &&
           (attributes.st_mode & 07777) == 0444;
  };
  {
    std::jthread writing([&] { write_version(way, *repository_, options, {}, {}); });
    EXPECT_TRUE(test::eventually([&] { return is_sealed("b.safetensors"); }));
    EXPECT_FALSE(is_sealed("a.safetensors"));
    builder_.bucket()->heal();
  }
  EXPECT_EQ(read_tree(options.directory), builder_.tree(2));
}

// ---- the coder ----

/// Version 1 is written, version 2 is built from it with a modified coder.
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
    options.threads = threads_;
    filesystem::create_directories(options.directory);
    const Plan way = plan(2, {first_});
    return error_of([&] { write_version(way, *repository_, options, {}, {}); });
  }

  std::shared_ptr<test::MeddlingCoder> coder_ = std::make_shared<test::MeddlingCoder>();
  unsigned threads_ = 0;
  Base first_;
};

TEST_F(WithACoder, GivesItChunksInBatches) {
  EXPECT_EQ(std::string(error_of_writing().what()), "nothing was thrown");
  EXPECT_EQ(read_tree(directory_ / "second"), builder_.tree(2));
  EXPECT_EQ(coder_->decode_calls, 3u) << "one for each file with changes";
  EXPECT_GT(coder_->decoded, coder_->decode_calls);
}

TEST_F(WithACoder, GivesItABatchAsSoonAsItIsWorthwhile) {
  coder_->batch_bytes = 1;
  EXPECT_EQ(std::string(error_of_writing().what()), "nothing was thrown");
  EXPECT_EQ(read_tree(directory_ / "second"), builder_.tree(2));
  EXPECT_EQ(coder_->decode_calls, coder_->decoded);
}

TEST_F(WithACoder, ChunksAreDecodedInTheMemoryTheyAreReadInto) {
  std::atomic<std::size_t> in_place = 0;
  coder_->after_decode = [&](kernels::DecodeJob& job) {
    in_place += job.old_chunk.data() == job.new_chunk.data();
  };
  EXPECT_EQ(std::string(error_of_writing().what()), "nothing was thrown");
  EXPECT_GT(in_place, 0u);
  EXPECT_EQ(in_place, coder_->decoded);
}

/// A GPU whose results are wrong no longer stops a host: what it spoiled is built again.
TEST_F(WithACoder, AWrongCoderIsReplacedByTheCpu) {
  threads_ = 1;  // else all may be decoded before it is distrusted
  for (const bool refuses : {true, false}) {
    coder_ = std::make_shared<test::MeddlingCoder>();
    coder_->after_decode = [&](kernels::DecodeJob& job) {
      job.by_gpu = coder_->distrusted == 0;
      if (!job.by_gpu) return;
      job.is_decoded = !refuses;
      job.new_chunk.front() ^= std::byte{1};
      job.hash = kernels::hash_chunk(job.new_chunk);
    };
    EXPECT_EQ(std::string(error_of_writing().what()), "nothing was thrown");
    EXPECT_EQ(read_tree(directory_ / "second"), builder_.tree(2));
    EXPECT_GT(coder_->distrusted, 0u);
    EXPECT_LT(coder_->distrusted, coder_->decoded);
    filesystem::remove_all(directory_ / "second");
  }
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

// ---- random histories ----

/// A random change of a model, of the kinds that trainers make, or an odd one.
class Mutator {
 public:
  explicit Mutator(test::Random& rng) : rng_(rng) {}

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

  /// Keeps the bytes that remain.
  void resize(std::vector<TestTensor>& tensors) {
    if (tensors.empty()) return;
    TestTensor& tensor = tensors[pick(tensors.size())];
    const std::uint64_t element = bits_of(tensor.dtype) / 8;
    const std::uint64_t count = pick(1'500'000);
    tensor.shape = {count};
    tensor.data.resize(count * element);
  }

  test::Random& rng_;
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
      const auto wanted = history_.get(version, {});
      expect_version(write(make_plan_by(path_of_deltas(base, *wanted), history_, wanted, {})));
    }
    bases.push_back(write(plan(version, bases)));
    expect_version(bases.back());
  }
}

}  // namespace
}  // namespace weightfs
