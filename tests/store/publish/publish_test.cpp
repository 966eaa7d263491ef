// Publish: what versions are made of a checkpoint, and what is kept for the next one.
#include "store/publish/publish.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "store/base/error.hpp"
#include "store/local/manual_pins.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

// ---- versions ----

TEST_F(PublishTest, MakesTheFirstVersionASnapshotOfTheFilesVerbatim) {
  const auto directory = checkpoint(1);
  const PublishResult result = publisher().publish(directory);
  EXPECT_EQ(result.version, 1u);
  EXPECT_EQ(result.parent, 0u);
  EXPECT_TRUE(result.snapshot);
  EXPECT_EQ(result.changed_elements, 0u);
  EXPECT_EQ(result.elements, 200'064u);

  const auto files = read_tree(directory);
  const Manifest manifest = manifest_of(1);
  ASSERT_TRUE(manifest.snapshot);
  EXPECT_FALSE(manifest.delta);
  for (const std::string shard :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    EXPECT_EQ(bucket_->find(keys::snapshot_file(1, manifest.snapshot->nonce, shard)),
              files.at(shard));
  }
  std::uint64_t bytes = 0;
  for (const auto& [path, content] : files) bytes += content.size();
  EXPECT_EQ(result.version_bytes, bytes);
  EXPECT_EQ(read_on_a_fresh_host(1), files);
}

TEST_F(PublishTest, MakesLaterVersionsSmallDeltasThatComeBackByteForByte) {
  publisher().publish(checkpoint(1));
  for (unsigned version = 2; version <= 5; version++) {
    const PublishResult result = publisher().publish(checkpoint(version));
    EXPECT_EQ(result.version, version);
    EXPECT_EQ(result.parent, version - 1);
    EXPECT_FALSE(result.snapshot);
    EXPECT_GT(result.changed_elements, 1'000u);
    EXPECT_LT(result.changed_elements, 4'000u);
    EXPECT_LT(result.uploaded_bytes, result.version_bytes / 20);
    EXPECT_TRUE(keys_below(*bucket_, "snapshots/" + std::to_string(version)).empty());
  }
  Host reader = fresh_host();
  for (unsigned version = 5; version >= 1; version--) {
    EXPECT_EQ(reader.read_version(version), read_tree(checkpoint(version))) << version;
  }
  expect_sound();
}

TEST_F(PublishTest, SaysHowManyBytesItAddedToTheBucket) {
  for (unsigned version = 1; version <= 3; version++) {
    const std::uint64_t before = bytes_in(*bucket_);
    const PublishResult result = publisher().publish(checkpoint(version));
    const auto added = static_cast<double>(bytes_in(*bucket_) - before);
    EXPECT_NEAR(static_cast<double>(result.uploaded_bytes), added, 64 + added / 100) << version;
  }
}

TEST_F(PublishTest, MakesAVersionOfACheckpointThatDidNotChange) {
  const auto directory = checkpoint(1);
  publisher().publish(directory, "first");
  const std::size_t objects = bucket_->objects().size();
  const PublishResult result = publisher().publish(directory, "second");
  EXPECT_EQ(result.version, 2u);
  EXPECT_EQ(result.changed_elements, 0u);
  EXPECT_EQ(bucket_->objects().size(), objects + 1);  // the manifest
  EXPECT_TRUE(manifest_of(2).delta.value().packs.empty());
  EXPECT_EQ(manifest_of(2).tag, "second");
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(directory));
}

TEST_F(PublishTest, RecordsTagMetaTimeAndTheParentsHash) {
  PublishOptions options = options_of(checkpoint(1));
  options.wishes.tag = "step-1";
  options.wishes.meta = {{"step", "1"}, {"note", "größer\n"}};
  publisher().publish(options);
  publisher().publish(checkpoint(2));
  const Manifest first = manifest_of(1), second = manifest_of(2);
  EXPECT_EQ(first.tag, "step-1");
  EXPECT_EQ(first.meta, options.wishes.meta);
  EXPECT_GT(first.time, 1'700'000'000);
  EXPECT_EQ(first.parent_sha256, Sha256{});
  EXPECT_EQ(second.parent, 1u);
  EXPECT_EQ(second.parent_sha256,
            sha256(as_bytes(std::string_view(bucket_->find(keys::manifest(1)).value()))));
  EXPECT_NE(first.nonce, second.nonce);
}

TEST_F(PublishTest, RefusesATagThatIsNoNameAndMetaThatIsNoText) {
  PublishOptions options = options_of(checkpoint(1));
  options.wishes.tag = "a/b";
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  options.wishes.tag = "";
  options.wishes.meta = {{"note", "\xff\xfe"}};
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  options.wishes.meta = {{"\xff", "note"}};
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  EXPECT_EQ(bucket_->objects().size(), 1u);  // the repository's record
}

TEST_F(PublishTest, WritesTheFullBytesTooWhenAskedForASnapshot) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.wishes.snapshot = true;
  const PublishResult result = publisher().publish(options);
  EXPECT_TRUE(result.snapshot);
  EXPECT_GT(result.changed_elements, 0u);
  const Manifest manifest = manifest_of(2);
  EXPECT_TRUE(manifest.delta && manifest.snapshot);
  expect_sound();

  // Either of the two suffices.
  for (const std::string& key : keys_below(*bucket_, "packs/")) bucket_->erase(key);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

// 70,000 tensors are in the layout, which versions share.
TEST_F(PublishTest, ManifestsAreAsLargeForManyTensorsAsForOne) {
  std::vector<std::size_t> sizes;
  for (const std::size_t count : {1u, 3000u}) {
    const auto bucket = test::make_memory_repository();
    Host host(bucket, dir_ / ("tensors-" + std::to_string(count)));
    for (int version = 1; version <= 2; version++) {
      std::vector<test::TestTensor> tensors;
      for (std::size_t i = 0; i < count; i++) {
        tensors.push_back(
            {"t" + std::to_string(i), Dtype::u8, {8}, Bytes(8, static_cast<std::byte>(version))});
      }
      host.publish(directory_of({{"m.safetensors", test::make_safetensors(tensors)}}));
    }
    sizes.push_back(bucket->find(keys::manifest(2))->size());
  }
  EXPECT_LE(sizes[1], sizes[0] + 16) << "but for the digits of sizes";
}

TEST_F(PublishTest, ManifestsNameTheSnapshotBeforeThem) {
  for (unsigned version = 1; version <= 5; version++) {
    PublishOptions options = options_of(checkpoint(version));
    options.wishes.snapshot = version == 3;
    publisher().publish(options);
  }
  const std::vector<std::uint64_t> expected{0, 1, 1, 3, 3};
  for (std::uint64_t version = 1; version <= 5; version++) {
    EXPECT_EQ(manifest_of(version).snapshot_before, expected[version - 1]) << version;
  }
}

// A run that an older release began: the publisher looks for it once.
TEST_F(PublishTest, TheSnapshotBeforeIsFoundBehindManifestsThatDoNotNameIt) {
  for (unsigned version = 1; version <= 3; version++) publisher().publish(checkpoint(version));
  Sha256 parent{};
  for (std::uint64_t version = 1; version <= 3; version++) {
    Manifest manifest = manifest_of(version);
    manifest.snapshot_before.reset();
    manifest.parent_sha256 = parent;
    const std::string bytes = manifest.serialize();
    parent = sha256(as_bytes(bytes));
    bucket_->replace(keys::manifest(version), bytes);
  }
  Host host = fresh_host();
  host.publish(checkpoint(4));
  host.publish(checkpoint(5));
  EXPECT_EQ(manifest_of(4).snapshot_before, 1u);
  EXPECT_EQ(manifest_of(5).snapshot_before, 1u);
}

TEST_F(PublishTest, LeavesOutWhatIsNotPublishedAndSaysSo) {
  const auto directory = checkpoint(1);
  write_text(directory / "optimizer.pt", "pickle");
  EXPECT_EQ(publisher().publish(directory).unpublished, std::vector<std::string>{"optimizer.pt"});
  EXPECT_FALSE(read_on_a_fresh_host(1).contains("optimizer.pt"));
}

TEST_F(PublishTest, DeltasALargeFileOfUnknownStructure) {
  std::string large(kBlobBytesMax + 100'001, 'x');
  const auto directory = checkpoint(1);
  write_text(directory / "sub/weights.gguf", large);
  PublishOptions options = options_of(directory);
  options.wishes.include = {"*.gguf"};
  publisher().publish(options);
  large[5] = 'y';
  large.back() = 'z';
  write_text(directory / "sub/weights.gguf", large);
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.changed_elements, 2u);
  EXPECT_LT(result.uploaded_bytes, 20'000u);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(directory));
}

TEST_F(PublishTest, NumbersOnFromWhatAnotherPublisherLeft) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  EXPECT_EQ(other.publish(checkpoint(2)).version, 2u);
  EXPECT_EQ(publisher().publish(checkpoint(3)).version, 3u);
  EXPECT_EQ(other.publish(checkpoint(4)).version, 4u);
  EXPECT_EQ(read_on_a_fresh_host(4), read_tree(checkpoint(4)));
}

// ---- changes of tensors ----

struct WeightChange {
  std::string name;
  std::map<std::string, std::vector<TestTensor>> before, after;
  std::uint64_t uploaded_bytes_max;  // of the second version
};

std::vector<WeightChange> changes() {
  constexpr std::size_t kChunk = kernels::kBlockElements * kernels::kChunkBlocks;
  const auto a = tensor_of("a", Dtype::bf16, 300'000, 1);
  const auto b = tensor_of("b", Dtype::f32, 1'000, 2);
  const auto large = tensor_of("large", Dtype::f8_e4m3, 2 * kChunk + 12'345, 3);
  TestTensor longer = large, shorter = large, square = a;
  longer.data.insert(longer.data.end(), kChunk, std::byte{7});
  longer.shape = {longer.data.size()};
  shorter.data.resize(kChunk / 2);
  shorter.shape = {shorter.data.size()};
  square.shape = {300, 1000};
  const TestTensor empty{"empty", Dtype::f32, {0, 4}, {}};
  const TestTensor zeros{"zeros", Dtype::bf16, {5}, Bytes(10)};
  const TestTensor scalar{"scalar", Dtype::f64, {}, Bytes(8)};
  constexpr std::uint64_t kSmall = 8'000;  // headers and manifest
  return {
      {"ANewTensor", {{"m.safetensors", {a}}}, {{"m.safetensors", {a, b}}}, kSmall},
      {"ATensorLess", {{"m.safetensors", {a, b}}}, {{"m.safetensors", {b}}}, kSmall},
      {"AnotherOrder", {{"m.safetensors", {a, b}}}, {{"m.safetensors", {b, a}}}, kSmall},
      {"AnotherShape", {{"m.safetensors", {a}}}, {{"m.safetensors", {square}}}, kSmall},
      {"ALongerTensor", {{"m.safetensors", {large}}}, {{"m.safetensors", {longer}}}, 1'200'000},
      {"AShorterTensor", {{"m.safetensors", {large}}}, {{"m.safetensors", {shorter}}}, kSmall},
      {"AnotherDtype",
       {{"m.safetensors", {a}}},
       {{"m.safetensors", {tensor_of("a", Dtype::f32, 300'000, 4)}}},
       1'300'000},
      {"ATensorInAnotherShard",
       {{"m-1.safetensors", {a}}, {"m-2.safetensors", {b}}},
       {{"m-1.safetensors", {b}}, {"m-2.safetensors", {a}}},
       kSmall},
      {"ARenamedShard", {{"m.safetensors", {a}}}, {{"n.safetensors", {a}}}, kSmall},
      {"OneShardSplitInTwo",
       {{"m.safetensors", {a, large}}},
       {{"m-1.safetensors", {large}}, {"m-2.safetensors", {a}}},
       kSmall},
      {"AShardInANewDirectory",
       {{"m.safetensors", {a}}},
       {{"m.safetensors", {a}}, {"adapter/m.safetensors", {a}}},
       700'000},
      {"ANewTensorOfZeros", {{"m.safetensors", {a}}}, {{"m.safetensors", {a, zeros}}}, kSmall},
      {"AnEmptyTensor", {{"m.safetensors", {a}}}, {{"m.safetensors", {a, empty}}}, kSmall},
      {"AScalar", {{"m.safetensors", {a}}}, {{"m.safetensors", {scalar, a}}}, kSmall},
      {"OnlyAnEmptyTensor", {{"m.safetensors", {a}}}, {{"m.safetensors", {empty}}}, kSmall},
  };
}

class TensorChange : public PublishTest, public testing::WithParamInterface<WeightChange> {
 protected:
  stdfs::path write(const std::map<std::string, std::vector<TestTensor>>& files) {
    std::map<std::string, std::string> bytes;
    for (const auto& [path, tensors] : files) bytes[path] = make_safetensors(tensors);
    return directory_of(bytes);
  }
};

TEST_P(TensorChange, ComesBackByteForByteThereAndBack) {
  const auto before = write(GetParam().before), after = write(GetParam().after);
  publisher().publish(before);
  const PublishResult result = publisher().publish(after);
  EXPECT_LT(result.uploaded_bytes, GetParam().uploaded_bytes_max);
  publisher().publish(before);
  Host reader = fresh_host();
  EXPECT_EQ(reader.read_version(2), read_tree(after));
  EXPECT_EQ(reader.read_version(3), read_tree(before));
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(before));
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Publish, TensorChange, testing::ValuesIn(changes()),
                         [](const auto& param) { return param.param.name; });

TEST_F(PublishTest, KeepsHeadersMetadataAndPaddingAsTheyWere) {
  const auto tensor = tensor_of("a", Dtype::bf16, 1'000, 1);
  publisher().publish(directory_of({{"m.safetensors", make_safetensors({tensor})}}));
  std::string padded = make_safetensors({tensor}, {{"step", "2"}});
  const auto header_size = load_le<std::uint64_t>(as_bytes(padded).data());
  padded.insert(8 + header_size, std::string(64, ' '));
  std::string length;
  append_le(length, header_size + 64);
  padded.replace(0, 8, length);
  const auto directory = directory_of({{"m.safetensors", padded}});
  EXPECT_EQ(publisher().publish(directory).changed_elements, 0u);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(directory));
}

TEST_F(PublishTest, HandlesEveryDtype) {
  std::vector<TestTensor> first, second;
  for (auto dtype = Dtype::boolean; dtype <= Dtype::u64;
       dtype = static_cast<Dtype>(static_cast<int>(dtype) + 1)) {
    const std::string name(to_string(dtype));
    first.push_back(tensor_of(name, dtype, 4'000, 1));
    second.push_back(first.back());
    for (std::size_t i = 0; i < second.back().data.size(); i += 97) {
      second.back().data[i] ^= std::byte{1};
    }
  }
  publisher().publish(directory_of({{"m.safetensors", make_safetensors(first)}}));
  const auto directory = directory_of({{"m.safetensors", make_safetensors(second)}});
  publisher().publish(directory);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(directory));
}

/// Random files of random tensors: unchanged, changed, moved or new.
TEST_F(PublishTest, HandlesRandomHistories) {
  Random rng = make_rng();
  std::map<std::string, TestTensor> pool;
  for (int version = 1; version <= 8; version++) {
    for (int i = 0; i < 6; i++) {
      const std::string name(1, static_cast<char>('a' + rng() % 10));
      const auto kind = rng() % 4;
      if (kind == 0) pool.erase(name);
      if (kind == 1 || pool.empty())
        pool[name] = tensor_of(name, Dtype::f16, rng() % 90'000, rng());
      if (kind >= 2 && pool.contains(name) && !pool[name].data.empty()) {
        pool[name].data[rng() % pool[name].data.size()] ^= std::byte{1};
      }
    }
    std::array<std::vector<TestTensor>, 3> shards;
    for (const auto& [name, tensor] : pool) shards[rng() % 3].push_back(tensor);
    const auto directory = directory_of({{"config.json", std::to_string(version)},
                                         {"0.safetensors", make_safetensors(shards[0])},
                                         {"1.safetensors", make_safetensors(shards[1])},
                                         {"sub/2.safetensors", make_safetensors(shards[2])}});
    publisher().publish(directory);
    ASSERT_EQ(read_on_a_fresh_host(static_cast<std::uint64_t>(version)), read_tree(directory))
        << "version " << version;
  }
  expect_sound();
}

/// It became `latest`, without a tensor.
TEST_F(PublishTest, AVersionWithoutWeightsDoesNotFollowOneThatHasSome) {
  const auto pickles = directory_of({{"config.json", "{}"},
                                     {"pytorch_model.bin", "weights"},
                                     {"tokenizer.json", std::string(kBlobBytesMax + 1, ' ')},
                                     {"x.py", "code"}});
  publisher().publish(pickles);  // there are none to lose
  publisher().publish(checkpoint(1));
  const Error error = error_of([&] { publisher().publish(pickles); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_NE(std::string(error.what()).find("version 2 has some; left out were pytorch_model.bin"),
            std::string::npos)
      << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  PublishOptions options = options_of(pickles);
  options.wishes.include = {"*.bin"};
  EXPECT_EQ(publisher().publish(options).version, 3u);
}

// ---- what is kept for the next one ----

class Kept : public PublishTest {
 protected:
  /// Publishes, and returns whether a version was decoded for it.
  bool publishes_by_decoding(const stdfs::path& directory, std::function<void()> at_the_end = {}) {
    PublishOptions options = options_of(directory);
    options.keeps_images = true;
    options.at = [&](std::string_view point) {
      if (point == "committed" && at_the_end) at_the_end();
    };
    std::atomic<bool> is_decoded{false};
    publisher().publish(options, {}, [&](std::string_view phase, std::uint64_t, std::uint64_t) {
      if (phase == "reading parent") is_decoded = true;
    });
    return is_decoded;
  }
  std::vector<std::uint64_t> here() { return publisher().store->images().complete_versions(); }
};

TEST_F(Kept, TheLastVersionIsThereForTheNextWhichDecodesNothing) {
  using Versions = std::vector<std::uint64_t>;
  for (unsigned version = 1; version <= 3; version++) {
    const auto directory = checkpoint(version);
    EXPECT_FALSE(publishes_by_decoding(directory)) << version;
    EXPECT_EQ(here(), Versions{version}) << "only the newest";
    EXPECT_EQ(read_tree(publisher().store->images().image_directory(version)),
              read_tree(directory));
    EXPECT_TRUE(unsealed_files(publisher().store->images().image_directory(version)).empty());
  }
  expect_sound();
}

TEST_F(Kept, AnOlderVersionStaysIfItIsPinnedByHand) {
  publishes_by_decoding(checkpoint(1));
  ManualPins(publisher().store->db()).add(1, 1'790'000'000);
  publishes_by_decoding(checkpoint(2));
  publishes_by_decoding(checkpoint(3));
  EXPECT_EQ(here(), (std::vector<std::uint64_t>{1, 3}));
}

/// It was copied or cloned: no name of the source leads to the image.
TEST_F(Kept, ASourceThatIsWrittenToLaterChangesNothing) {
  const auto directory = checkpoint(1);
  const auto published = read_tree(directory);
  publishes_by_decoding(directory);
  for (const auto& [path, bytes] : published) rot(directory / path, bytes.size() / 2);
  EXPECT_EQ(read_tree(publisher().store->images().image_directory(1)), published);
  EXPECT_FALSE(publishes_by_decoding(checkpoint(2)));
  EXPECT_EQ(read_on_a_fresh_host(1), published);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(Kept, ASourceThatIsWrittenToJustAfterTheCommitIsNotKept) {
  for (const std::string name : {"model-00001-of-00002.safetensors", "config.json"}) {
    const auto directory = checkpoint(1);
    const auto published = read_tree(directory);
    const std::uint64_t version = publisher().store->manifests().newest().version + 1;
    publishes_by_decoding(directory, [&] { rot(directory / name, published.at(name).size() / 2); });
    EXPECT_EQ(here(), std::vector<std::uint64_t>{}) << name;
    EXPECT_EQ(read_on_a_fresh_host(version), published) << name;
    EXPECT_TRUE(publishes_by_decoding(checkpoint(2)));
    EXPECT_EQ(read_on_a_fresh_host(version + 1), read_tree(checkpoint(2)));
  }
  expect_sound();
}

/// The encoder compares the old bytes with their hashes.
TEST_F(Kept, ADamagedImageIsFetchedFromTheBucketInstead) {
  const auto first = read_tree(checkpoint(1));
  publishes_by_decoding(checkpoint(1));
  const std::string name = "model-00001-of-00002.safetensors";
  rot(publisher().store->images().image_directory(1) / name, first.at(name).size() / 2);
  EXPECT_TRUE(publishes_by_decoding(checkpoint(2)));
  EXPECT_EQ(read_on_a_fresh_host(1), first);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
  EXPECT_EQ(here(), std::vector<std::uint64_t>{2});
  expect_sound();
}

TEST_F(Kept, IsNothingOfWhichThereIsNoRoomForAndThePublishSucceeds) {
  SmallDisk disk(dir_ / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  Host host(bucket_, dir_ / "disk/store");
  PublishOptions options = options_of(directory_of(
      {{"m.safetensors", make_safetensors({tensor_of("a", Dtype::u8, 4'000'000, 1)})}}));
  options.keeps_images = true;
  options.at = [&](std::string_view point) {
    if (point == "committed") disk.fill(1'000'000);
  };
  EXPECT_EQ(host.publish(options).version, 1u);
  EXPECT_EQ(host.store->images().complete_versions(), std::vector<std::uint64_t>{});
  disk.empty();
  EXPECT_EQ(host.read_version(1), read_tree(options.directory));
}

}  // namespace
}  // namespace weightfs::test
