#include "store/publish/publish.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <set>
#include <thread>

#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "store/inspect/verify.hpp"
#include "tests/support/fake_s3.hpp"
#include "tests/support/hosts.hpp"

extern char** environ;

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

const std::vector<std::string> kPoints{"scanned", "parent", "diffed",        "pack",
                                       "blobs",   "layout", "before-commit", "committed"};

std::uint64_t bytes_in(const MemoryBucket& bucket) {
  std::uint64_t bytes = 0;
  for (const auto& [key, object] : bucket.objects()) bytes += object.size();
  return bytes;
}

std::vector<std::string> keys_below(const MemoryBucket& bucket, std::string_view prefix) {
  std::vector<std::string> keys;
  for (const auto& [key, object] : bucket.objects()) {
    if (key.starts_with(prefix)) keys.push_back(key);
  }
  return keys;
}

/// Changes one byte of a file that may be read-only.
void rot(const stdfs::path& path, std::uint64_t offset_bytes) {
  stdfs::permissions(path, stdfs::perms::owner_write, stdfs::perm_options::add);
  const File file = File::open(path, O_RDWR);
  std::array<std::byte, 1> byte{};
  ASSERT_TRUE(read_at(file.fd(), offset_bytes, byte, path));
  byte[0] ^= std::byte{0x40};
  write_at(file.fd(), offset_bytes, byte, path);
}

/// A repository in memory, one publisher, and as many readers as are asked for.
class PublishTest : public testing::Test {
 protected:
  Host& publisher() {
    if (!publisher_) publisher_ = std::make_unique<Host>(bucket_, dir_ / "publisher");
    return *publisher_;
  }

  /// A host that has nothing yet.
  Host fresh_host() { return {bucket_, dir_ / ("host-" + std::to_string(hosts_++))}; }

  std::map<std::string, std::string> read_on_a_fresh_host(std::uint64_t version) {
    Host host = fresh_host();
    return host.read_version(version);
  }

  stdfs::path checkpoint(unsigned version, std::size_t elements = 200'000) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    write_checkpoint(directory, version, elements);
    return directory;
  }

  /// A checkpoint of one's own making.
  stdfs::path directory_of(const std::map<std::string, std::string>& files) {
    const stdfs::path directory = dir_ / ("files-" + std::to_string(directories_++));
    for (const auto& [path, bytes] : files) write_text(directory / path, bytes);
    return directory;
  }

  PublishOptions options_of(const stdfs::path& directory) {
    PublishOptions options;
    options.directory = directory;
    return options;
  }

  Manifest manifest_of(std::uint64_t version) {
    return Manifest::parse(bucket_->find(keys::manifest(version)).value(), "manifest");
  }

  void expect_sound() {
    Host host = fresh_host();
    const VerifyReport report =
        verify_repository(host.history, host.store->temporary_directory(), {}, {});
    for (const Problem& problem : report.problems) {
      ADD_FAILURE() << problem.object << ": " << problem.message;
    }
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();

 private:
  std::unique_ptr<Host> publisher_;
  int hosts_ = 0, directories_ = 0;
};

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
  options.tag = "step-1";
  options.meta = {{"step", "1"}, {"note", "größer\n"}};
  publisher().publish(options);
  publisher().publish(checkpoint(2));
  const Manifest first = manifest_of(1), second = manifest_of(2);
  EXPECT_EQ(first.tag, "step-1");
  EXPECT_EQ(first.meta, options.meta);
  EXPECT_GT(first.time, 1'700'000'000);
  EXPECT_EQ(first.parent_sha256, Sha256{});
  EXPECT_EQ(second.parent, 1u);
  EXPECT_EQ(second.parent_sha256,
            sha256(as_bytes(std::string_view(bucket_->find(keys::manifest(1)).value()))));
  EXPECT_NE(first.nonce, second.nonce);
}

TEST_F(PublishTest, RefusesATagThatIsNoNameAndMetaThatIsNoText) {
  PublishOptions options = options_of(checkpoint(1));
  options.tag = "a/b";
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  options.tag = "";
  options.meta = {{"note", "\xff\xfe"}};
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  options.meta = {{"\xff", "note"}};
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
  EXPECT_EQ(bucket_->objects().size(), 1u);  // the record
}

TEST_F(PublishTest, WritesTheFullBytesTooWhenAskedForASnapshot) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.snapshot = true;
  const PublishResult result = publisher().publish(options);
  EXPECT_TRUE(result.snapshot);
  EXPECT_GT(result.changed_elements, 0u);
  const Manifest manifest = manifest_of(2);
  EXPECT_TRUE(manifest.delta && manifest.snapshot);
  expect_sound();

  // Either of the two is enough.
  for (const std::string& key : keys_below(*bucket_, "packs/")) bucket_->erase(key);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
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
  options.include = {"*.gguf"};
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

TestTensor tensor_of(std::string name, Dtype dtype, std::size_t elements, std::uint64_t salt) {
  std::mt19937_64 rng(salt);
  Bytes data(elements * bits_of(dtype) / 8);
  for (std::byte& byte : data) byte = static_cast<std::byte>(rng());
  return {std::move(name), dtype, {elements}, std::move(data)};
}

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

/// Random files of random tensors, some as they were, some changed, moved or new.
TEST_F(PublishTest, HandlesRandomHistories) {
  std::mt19937_64 rng = make_rng();
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

// ---- races ----

TEST_F(PublishTest, LosesToAPublisherThatWasFasterAndWorksTheNextTime) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(3));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(3)));

  options.at = {};
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(PublishTest, LosesTheFirstVersionTooToAFasterPublisher) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(2));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(read_on_a_fresh_host(1), read_tree(checkpoint(2)));
}

TEST_F(PublishTest, GivesOneNumberToOneOfManyPublishersAtOnce) {
  constexpr int kPublishers = 6;
  publisher().publish(checkpoint(1));
  std::vector<std::unique_ptr<Host>> hosts;
  for (int i = 0; i < kPublishers; i++) {
    hosts.push_back(std::make_unique<Host>(bucket_, dir_ / ("racer-" + std::to_string(i))));
  }
  const auto directory = checkpoint(2);
  std::atomic<int> won{0}, lost{0};
  {
    std::vector<std::jthread> threads;
    for (auto& host : hosts) {
      threads.emplace_back([&won, &lost, &directory, racer = host.get()] {
        try {
          racer->publish(directory);
          won++;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
          lost++;
        }
      });
    }
  }
  EXPECT_GE(won, 1);
  EXPECT_EQ(won + lost, kPublishers);
  Host reader = fresh_host();
  EXPECT_EQ(reader.history.refresh(0, {}), static_cast<std::uint64_t>(1 + won));
  expect_sound();
}

TEST_F(PublishTest, TakesALostReplyToTheCommitForWhatItWas) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") bucket_->lose_reply("versions/");
  };
  EXPECT_EQ(publisher().publish(options).version, 2u);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

/// Calls `rival` each time a publish is about to commit, `times` times.
std::function<void(std::string_view)> outrun(unsigned times, std::function<void()> rival) {
  return [left = times, rival = std::move(rival)](std::string_view point) mutable {
    if (point != "before-commit" || left == 0) return;
    left--;
    rival();
  };
}

TEST_F(PublishTest, CodesAgainOnTopOfTheWinnerWithRebase) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  unsigned rival = 3;
  std::vector<std::uint64_t> committing;
  PublishOptions options = options_of(checkpoint(2));
  options.rebase = true;
  options.committing = [&](std::uint64_t version) { committing.push_back(version); };
  options.at = outrun(2, [&] { other.publish(checkpoint(rival++)); });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 4u);
  EXPECT_EQ(result.parent, 3u);
  EXPECT_EQ(committing, (std::vector<std::uint64_t>{2, 3, 4}));
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(3)));
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(4)));
  EXPECT_EQ(read_on_a_fresh_host(4), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(PublishTest, RebasesAFirstVersionThatCameSecond) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.rebase = true;
  options.at = outrun(1, [&] { other.publish(checkpoint(2)); });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_FALSE(result.snapshot);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(1)));
  expect_sound();
}

TEST_F(PublishTest, GivesUpARebaseThatAlwaysLoses) {
  publisher().publish(checkpoint(1, 2'000));
  Host other = fresh_host();
  unsigned tries = 0;
  PublishOptions options = options_of(checkpoint(2, 2'000));
  options.rebase = true;
  options.committing = [&](std::uint64_t) { tries++; };
  options.at = outrun(100, [&] { other.publish(checkpoint(3, 2'000)); });
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_EQ(tries, kRebaseTries);
  EXPECT_NE(std::string(error.what()).find("10 tries"), std::string::npos) << error.what();
  EXPECT_EQ(publisher().history.refresh(0, {}), 1 + kRebaseTries);
}

TEST_F(PublishTest, StopsOnRequestBetweenTheTriesOfARebase) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  std::stop_source source;
  PublishOptions options = options_of(checkpoint(2));
  options.rebase = true;
  options.at = outrun(1, [&] {
    other.publish(checkpoint(3));
    source.request_stop();
  });
  const Context context{source.get_token(), Clock::time_point::max()};
  EXPECT_EQ(error_of([&] { publisher().publish(options, context); }).code(), ErrorCode::cancelled);
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
}

// ---- fences and hand-overs ----

TEST_F(PublishTest, RefusesAFenceThatDoesNotHoldBeforeAnythingIsRead) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  const std::size_t objects = bucket_->objects().size();
  PublishOptions options = options_of(dir_ / "there is no such directory");
  options.fence_parent = 1;
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_NE(std::string(error.what()).find("newest version is 2"), std::string::npos)
      << error.what();
  EXPECT_NE(std::string(error.what()).find("version 1"), std::string::npos) << error.what();
  EXPECT_EQ(bucket_->objects().size(), objects);
}

TEST_F(PublishTest, PublishesBehindAFenceThatHolds) {
  PublishOptions options = options_of(checkpoint(1));
  options.fence_parent = 0;
  EXPECT_EQ(publisher().publish(options).version, 1u);
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  options.fence_parent = 1;
  EXPECT_EQ(publisher().publish(options).version, 2u);
}

TEST_F(PublishTest, TakesTheNewestVersionInsteadOfTheFenceWithRebase) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  PublishOptions options = options_of(checkpoint(3));
  options.fence_parent = 1;
  options.rebase = true;
  EXPECT_EQ(publisher().publish(options).parent, 2u);
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(3)));
}

TEST_F(PublishTest, CommitsNothingIfTheHookThatIsAskedRefuses) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.lock_images = true;
  options.committing = [](std::uint64_t) {
    throw Error(ErrorCode::cancelled, "it was taken back");
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::cancelled);
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  EXPECT_TRUE(publisher().store->lock_images(Context{}.within(std::chrono::seconds(60))));
}

TEST_F(PublishTest, HandsOutTheLockOfTheImagesThatItTookBeforeTheCommit) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  const auto is_locked = [&] {
    return error_of([&] {
             static_cast<void>(publisher().store->lock_images(Context{}.within({})));
           }).code() == ErrorCode::timed_out;
  };
  unsigned locked = 0;
  PublishOptions options = options_of(checkpoint(2));
  options.lock_images = true;
  options.rebase = true;  // the parent is brought in again, which needs the lock
  options.committing = [&](std::uint64_t) { locked += is_locked() ? 1 : 0; };
  options.at = outrun(1, [&] { other.publish(checkpoint(3)); });
  PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(locked, 2u);
  EXPECT_TRUE(result.images_lock);
  EXPECT_TRUE(is_locked());
  result.images_lock.unlock();
  EXPECT_FALSE(is_locked());
}

constexpr std::string_view kNonce = "00112233445566778899aabbccddeeff";

TEST_F(PublishTest, CarriesTheNonceThatItWasGivenSoThatItIsFoundAgain) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  publisher().publish(options);
  publisher().publish(checkpoint(3));
  Host other = fresh_host();
  EXPECT_EQ(find_nonce(other.history, 0, kNonce, {}), 2u);
  EXPECT_EQ(find_nonce(other.history, 1, kNonce, {}), 2u);
  EXPECT_EQ(find_nonce(other.history, 2, kNonce, {}), std::nullopt);
  EXPECT_EQ(find_nonce(other.history, 0, std::string(32, '0'), {}), std::nullopt);
  options.nonce = "short";
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
}

TEST_F(PublishTest, SaysThatTheOutcomeOfACommitIsUnknownWhereTheBucketFallsSilent) {
  publisher().publish(checkpoint(1));
  for (const bool is_written : {false, true}) {
    PublishOptions options = options_of(checkpoint(2));
    options.nonce = kNonce;
    options.lock_images = true;
    options.committing = [&](std::uint64_t) {
      if (is_written) bucket_->lose_reply("versions/");
      if (is_written) bucket_->fail_call(2, ErrorCode::unavailable);  // the reading back
      if (!is_written) bucket_->fail_key("versions/", ErrorCode::unavailable);
    };
    try {
      publisher().publish(options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommitUnknown& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_EQ(error.version(), 2u);
    }
    bucket_->heal();
    EXPECT_EQ(find_nonce(publisher().history, 1, kNonce, {}).has_value(), is_written);
  }
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

TEST_F(PublishTest, KnowsThatACommitFailedWhereTheBucketSaysSo) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.committing = [&](std::uint64_t) { bucket_->fail_call(1, ErrorCode::permission); };
  try {
    publisher().publish(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommitUnknown& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::permission);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

TEST_F(PublishTest, TakesAnEarlierTryOfItsOwnThatWasCommittedForItself) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.tag = "later";
  options.at = outrun(1, [&] {
    Host earlier = fresh_host();
    PublishOptions same = options_of(checkpoint(2));
    same.nonce = kNonce;
    same.tag = "earlier";
    earlier.publish(same);
  });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_EQ(publisher().history.get(2, {})->manifest.tag, "earlier");
  EXPECT_EQ(publisher().store->find_manifest(2), bucket_->find(keys::manifest(2)));
  EXPECT_EQ(publisher().publish(checkpoint(3)).version, 3u);
  expect_sound();
}

// So that a bucket can go on with an upload that a crash broke off.
TEST_F(PublishTest, UploadsUnderTheSameNamesAgainAfterItFailed) {
  const auto uploads = [&] {
    auto objects = bucket_->objects();
    std::erase_if(objects, [](const auto& object) {
      return !object.first.starts_with("packs/") && !object.first.starts_with("snapshots/");
    });
    return objects;
  };
  const auto publish_in_vain = [&](Host& host, const stdfs::path& directory) {
    PublishOptions options = options_of(directory);
    options.keeps_uploads = true;
    options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
    EXPECT_THROW(host.publish(options), Error);
    return uploads();
  };
  for (const unsigned version : {1u, 2u}) {
    const auto first = publish_in_vain(publisher(), checkpoint(version));
    EXPECT_EQ(publish_in_vain(publisher(), checkpoint(version)), first);
    publisher().publish(checkpoint(version));
    EXPECT_EQ(uploads(), first);
  }
  expect_sound();
}

// Two publishers of one checkpoint at a time: one could replace what the other has committed, by
// bytes that were written to while it read them.
TEST_F(PublishTest, TwoStoresNeverUploadUnderTheSameName) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.keeps_uploads = true;
  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_THROW(publisher().publish(options), Error);
  const std::size_t count = keys_below(*bucket_, "snapshots/1/").size();
  EXPECT_THROW(other.publish(options), Error);
  EXPECT_EQ(keys_below(*bucket_, "snapshots/1/").size(), 2 * count);
}

TEST_F(PublishTest, OtherBytesHaveOtherNames) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.keeps_uploads = true;
  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_THROW(publisher().publish(options), Error);
  options.directory = checkpoint(3);
  EXPECT_THROW(publisher().publish(options), Error);
  EXPECT_EQ(keys_below(*bucket_, "packs/2/").size(), 2u);
}

// ---- what was uploaded in vain ----

/// Objects that a publish that ended with an Error may have left.
class UploadedInVain : public PublishTest {
 protected:
  std::vector<std::string> left() {
    std::vector<std::string> keys = keys_below(*bucket_, "packs/2/");
    for (std::string& key : keys_below(*bucket_, "snapshots/2/")) keys.push_back(std::move(key));
    return keys;
  }

  /// Of version 2, with a delta and a snapshot.
  PublishOptions second() {
    PublishOptions options = options_of(checkpoint(2));
    options.snapshot = true;
    return options;
  }
};

TEST_F(UploadedInVain, IsRemovedWhenItIsStopped) {
  publisher().publish(checkpoint(1));
  for (const std::string when : {"pack", "blobs", "layout"}) {
    std::stop_source source;
    PublishOptions options = second();
    options.at = [&](std::string_view point) {
      if (point != when) return;
      EXPECT_GE(left().size(), 4u);
      source.request_stop();
    };
    const Context context{source.get_token(), Clock::time_point::max()};
    EXPECT_EQ(error_of([&] { publisher().publish(options, context); }).code(),
              ErrorCode::cancelled);
    EXPECT_EQ(left(), std::vector<std::string>{}) << when;
  }
  EXPECT_EQ(publisher().publish(second()).version, 2u);
  expect_sound();
}

TEST_F(UploadedInVain, IsRemovedWhenAnotherWriterWasFaster) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  PublishOptions options = second();
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(3));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(left().size(), 1u) << "the winner's pack";
  expect_sound();
}

// The manifest may arrive long after the publisher gave up, and so after the next one did.
TEST_F(UploadedInVain, StaysWhereAManifestMayYetArriveThatNamesIt) {
  publisher().publish(checkpoint(1));
  PublishOptions options = second();
  options.committing = [&](std::uint64_t) {
    bucket_->fail_key("versions/", ErrorCode::unavailable);
  };
  EXPECT_THROW(publisher().publish(options), CommitUnknown);
  bucket_->heal();
  const std::vector<std::string> uploaded = left();
  EXPECT_GE(uploaded.size(), 4u);

  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(left(), uploaded) << "the same bytes again, from the same store: under other names";
}

// ---- a checkpoint that is written to ----

class WrittenTo : public PublishTest, public testing::WithParamInterface<const char*> {};

TEST_P(WrittenTo, ACheckpointIsRefusedWhenItChangesMeanwhile) {
  publisher().publish(checkpoint(1));
  const auto directory = checkpoint(2);
  const std::string file = GetParam();
  for (const std::string when : {"scanned", "diffed", "layout"}) {
    PublishOptions options = options_of(directory);
    options.at = [&](std::string_view point) {
      if (point == when) write_text(directory / file, read_text(directory / file) + " ");
    };
    const Error error = error_of([&] { publisher().publish(options); });
    EXPECT_EQ(error.code(), ErrorCode::busy) << when << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
    write_checkpoint(directory, 2);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  EXPECT_EQ(publisher().publish(directory).version, 2u);
}

INSTANTIATE_TEST_SUITE_P(Publish, WrittenTo,
                         testing::Values("model-00001-of-00002.safetensors", "config.json"),
                         [](const auto& param) { return param.index == 0 ? "Shard" : "Blob"; });

TEST_F(PublishTest, RefusesACheckpointWhoseFileIsRemovedMeanwhile) {
  const auto directory = checkpoint(1);
  for (const std::string file : {"config.json", "model-00001-of-00002.safetensors"}) {
    PublishOptions options = options_of(directory);
    options.at = [&](std::string_view point) {
      if (point == "scanned") stdfs::remove(directory / file);
    };
    EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
    write_checkpoint(directory, 1);
  }
}

TEST_F(PublishTest, RefusesACheckpointWhoseFileBecomesAFifoMeanwhile) {
  const auto directory = checkpoint(1);
  PublishOptions options = options_of(directory);
  options.at = [&](std::string_view point) {
    if (point != "scanned") return;
    stdfs::remove(directory / "config.json");
    ASSERT_EQ(::mkfifo((directory / "config.json").c_str(), 0644), 0);
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
}

TEST_F(PublishTest, RefusesACheckpointThatSomebodyCanWriteTo) {
  const auto directory = checkpoint(1);
  for (const std::string name : {"model-00001-of-00002.safetensors", "config.json"}) {
    File writer = File::open(directory / name, O_RDWR);
    const Error opened = error_of([&] { publisher().publish(directory); });
    EXPECT_EQ(opened.code(), ErrorCode::busy) << opened.what();
    EXPECT_NE(std::string(opened.what()).find(name), std::string::npos) << opened.what();

    void* const bytes = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED, writer.fd(), 0);
    ASSERT_NE(bytes, MAP_FAILED);
    writer = File();
    const Error mapped = error_of([&] { publisher().publish(directory); });
    EXPECT_EQ(mapped.code(), ErrorCode::busy) << mapped.what();
    ASSERT_EQ(::munmap(bytes, 1), 0);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
  const File reader = File::open(directory / "config.json", O_RDONLY);
  EXPECT_EQ(publisher().publish(directory).version, 1u) << "readers do not matter";
}

// A writer who comes while the checkpoint is read and stays.
TEST_F(PublishTest, RefusesACheckpointThatSomebodyCanWriteToInTheEnd) {
  const auto directory = checkpoint(1);
  File writer;
  PublishOptions options = options_of(directory);
  options.at = [&](std::string_view point) {
    if (point == "layout") writer = File::open(directory / "config.json", O_RDWR);
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
}

/// Stores through a shared mapping that move no time: so on a tmpfs, and on any file system where
/// the page is dirty already.  Each is over before anybody is asked who can write.
class StoredUnseen : public PublishTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    std::string path = "/dev/shm/weightfs-test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) GTEST_SKIP() << "no tmpfs at /dev/shm";
    shm_ = path;
    for (const unsigned version : {1u, 2u})
      write_checkpoint(shm_ / std::to_string(version), version);
    const File file = File::open(shard(1), O_RDONLY);
    const FileStamp before = stamp_of(file.fd());
    store(shard(1), 100'000);
    if (stamp_of(file.fd()) != before) GTEST_SKIP() << "the times of /dev/shm move";
  }
  void TearDown() override {
    if (!shm_.empty()) stdfs::remove_all(shm_);
  }

  [[nodiscard]] stdfs::path shard(unsigned version) const {
    return shm_ / std::to_string(version) / "model-00001-of-00002.safetensors";
  }

  static void store(const stdfs::path& path, std::size_t offset) {
    const File file = File::open(path, O_RDWR);
    const auto size = stdfs::file_size(path);
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    static_cast<char*>(mapped)[offset] ^= 1;
    ::munmap(mapped, size);
  }

  /// A host of its own in front of one of the three kinds of bucket.
  std::unique_ptr<Host> host() {
    const std::string kind = GetParam();
    bool created = false;
    if (kind == "directory") {
      return std::make_unique<Host>(Repository::init((dir_ / "bucket").string(), created, {}),
                                    dir_ / "store");
    }
    auto bucket = kind == "s3" ? s3_.open("run") : std::make_unique<BucketView>(bucket_);
    if (kind == "s3") bucket->put(keys::kRecord, TextSource(*bucket_->find(keys::kRecord)), {});
    return std::make_unique<Host>(Repository::open(std::move(bucket), {}), dir_ / "store");
  }

  /// Refused with busy, or a version that verifies.
  static bool is_refused(Host& host, const PublishOptions& options, const Progress& progress = {}) {
    const std::uint64_t newest = host.repository->newest_version(0, {});
    try {
      host.publish(options, {}, progress);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
      EXPECT_EQ(host.repository->newest_version(0, {}), newest);
      return true;
    }
    const VerifyReport report =
        verify_repository(host.history, host.store->temporary_directory(), {}, {});
    for (const Problem& problem : report.problems) ADD_FAILURE() << problem.message;
    return false;
  }

  stdfs::path shm_;
  FakeS3 s3_;
};

TEST_P(StoredUnseen, NothingIsUploadedThatWasNotHashed) {
  const auto at = host();
  PublishOptions options = options_of(shm_ / "1");
  for (const std::string when : {"scanned", "diffed", "pack", "layout"}) {
    options.at = [&](std::string_view point) {
      if (point == when) store(shard(1), 200'000);
    };
    EXPECT_EQ(is_refused(*at, options), when == "diffed") << when;
    options.snapshot = true;  // later versions have a delta too
  }
}

TEST_P(StoredUnseen, WhatWasCodedIsWhatIsInTheSnapshot) {
  const auto at = host();
  at->publish(shm_ / "1");
  PublishOptions options = options_of(shm_ / "2");
  options.snapshot = true;
  std::atomic<bool> is_done = false;
  const Progress progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    if (phase == "coding" && done == total && !is_done.exchange(true)) store(shard(2), 200'000);
  };
  EXPECT_TRUE(is_refused(*at, options, progress));
  EXPECT_FALSE(is_refused(*at, options));
}

TEST_P(StoredUnseen, TheHeaderOfASnapshotIsTheOneThatWasScanned) {
  const auto at = host();
  PublishOptions options = options_of(shm_ / "1");
  options.at = [&](std::string_view point) {
    if (point == "scanned") store(shard(1), 20);
  };
  EXPECT_TRUE(is_refused(*at, options));
}

INSTANTIATE_TEST_SUITE_P(Publish, StoredUnseen, testing::Values("memory", "directory", "s3"),
                         [](const auto& param) { return std::string(param.param); });

// ---- a parent that is damaged ----

TEST_F(PublishTest, MakesARottenParentAgainFromTheBucket) {
  publisher().publish(checkpoint(1));
  int brought = 0;
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point != "parent" || brought++ > 0) return;
    rot(publisher().store->image_directory(1) / "model-00001-of-00002.safetensors", 100'001);
  };
  EXPECT_EQ(publisher().publish(options).version, 2u);
  EXPECT_EQ(brought, 2);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

TEST_F(PublishTest, MakesAParentAgainWhoseFileIsGoneOrTooShort) {
  publisher().publish(checkpoint(1));
  for (unsigned version = 2; version <= 3; version++) {
    int brought = 0;
    PublishOptions options = options_of(checkpoint(version));
    options.at = [&](std::string_view point) {
      if (point != "parent" || brought++ > 0) return;
      const auto file =
          publisher().store->image_directory(version - 1) / "model-00002-of-00002.safetensors";
      version == 2 ? void(stdfs::remove(file)) : stdfs::resize_file(file, 1'000);
    };
    EXPECT_EQ(publisher().publish(options).version, version);
    EXPECT_EQ(brought, 2);
  }
  expect_sound();
}

TEST_F(PublishTest, GivesUpOnAParentThatRotsAgainAndNamesTheFile) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point != "parent") return;
    rot(publisher().store->image_directory(1) / "model-00001-of-00002.safetensors", 100'001);
  };
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find("model-00001-of-00002.safetensors"), std::string::npos)
      << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));

  options.at = {};
  EXPECT_EQ(publisher().publish(options).version, 2u);
}

TEST_F(PublishTest, NamesTheObjectOfAParentThatTheBucketCannotGive) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  const std::string key = keys_below(*bucket_, "packs/2/").at(0);
  const std::string pack = bucket_->find(key).value();
  std::string flipped = pack;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);

  Host other = fresh_host();
  bucket_->replace(key, flipped);
  const Error corrupt = error_of([&] { other.publish(checkpoint(3)); });
  EXPECT_EQ(corrupt.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(corrupt.what()).find(key), std::string::npos) << corrupt.what();
  bucket_->erase(key);
  const Error missing = error_of([&] { other.publish(checkpoint(3)); });
  EXPECT_NE(std::string(missing.what()).find(key), std::string::npos) << missing.what();

  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  bucket_->replace(key, pack);
  EXPECT_EQ(other.publish(checkpoint(3)).version, 3u);
}

// The way out of a version that is damaged in the bucket, which is all that a host that lacks it
// can get: it must not need what is damaged.
TEST_F(PublishTest, ASnapshotNeedsNoneOfTheParentsBytes) {
  publisher().publish(checkpoint(1));
  Host behind = fresh_host();
  EXPECT_EQ(behind.read_version(1), read_tree(checkpoint(1)));
  publisher().publish(checkpoint(2));
  const std::string key = keys_below(*bucket_, "packs/2/").at(0);
  std::string flipped = bucket_->find(key).value();
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  bucket_->replace(key, flipped);

  PublishOptions options = options_of(checkpoint(3));
  options.snapshot = true;
  const PublishResult damaged = fresh_host().publish(options);
  EXPECT_EQ(damaged.version, 3u);
  EXPECT_TRUE(damaged.snapshot);
  EXPECT_FALSE(damaged.delta);
  EXPECT_EQ(damaged.changed_elements, 0u);
  EXPECT_EQ(behind.read_version(3), read_tree(checkpoint(3)));

  bucket_->erase(key);
  for (const std::string& snapshot : keys_below(*bucket_, "snapshots/3/")) bucket_->erase(snapshot);
  options.directory = checkpoint(4);
  EXPECT_EQ(fresh_host().publish(options).version, 4u) << "of two versions that are gone";
  EXPECT_TRUE(fresh_host().publish(checkpoint(5)).delta);
  EXPECT_EQ(behind.read_version(5), read_tree(checkpoint(5)));
}

TEST_F(PublishTest, RefusesToBuildOnAParentThatTheBucketHasLost) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  publisher().publish(checkpoint(3));
  bucket_->erase(keys::manifest(3));
  const Error error = error_of([&] { publisher().publish(checkpoint(4)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(4)));
}

// ---- a gap in the history ----

// A publisher that had seen nothing took the missing number for the next one: a fork, which nobody
// could read, and which the right manifest, when it came back, could not mend.
TEST_F(PublishTest, WritesNoVersionIntoAGap) {
  for (unsigned version = 1; version <= 6; version++) publisher().publish(checkpoint(version));
  const std::string lost = bucket_->find(keys::manifest(4)).value();
  bucket_->erase(keys::manifest(4));
  const auto before = bucket_->objects();
  for (const bool rebase : {false, true}) {
    PublishOptions options = options_of(checkpoint(7));
    options.rebase = rebase;
    Host newcomer = fresh_host();
    const Error error = error_of([&] { newcomer.publish(options); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    EXPECT_NE(std::string(error.what()).find(keys::manifest(4)), std::string::npos) << error.what();
  }
  EXPECT_EQ(bucket_->objects(), before);

  bucket_->replace(keys::manifest(4), lost);
  Host newcomer = fresh_host();
  EXPECT_EQ(newcomer.publish(checkpoint(7)).version, 7u);
  EXPECT_EQ(read_on_a_fresh_host(4), read_tree(checkpoint(4)));
  expect_sound();
}

// The same for one whose history is long in memory: it looks at each publish, not only at its
// first.
TEST_F(PublishTest, WritesNoVersionIntoAGapThatCameLater) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  for (unsigned version = 2; version <= 4; version++) other.publish(checkpoint(version));
  bucket_->erase(keys::manifest(2));
  const Error error = error_of([&] { publisher().publish(checkpoint(5)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  EXPECT_NE(std::string(error.what()).find(keys::manifest(2)), std::string::npos) << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

// ---- failures of the bucket and the disk ----

class BucketFails : public PublishTest,
                    public testing::WithParamInterface<std::pair<const char*, ErrorCode>> {};

TEST_P(BucketFails, WithoutAVersionAndTheNextPublishWorks) {
  const auto& [prefix, code] = GetParam();
  publisher().publish(checkpoint(1));
  bucket_->fail_key(prefix, code);
  PublishOptions options = options_of(checkpoint(2));
  options.snapshot = true;
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), code);
  EXPECT_GT(bucket_->failures(), 0u);
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  bucket_->heal();
  EXPECT_EQ(publisher().publish(options).version, 2u);
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Publish, BucketFails,
                         testing::Values(std::pair("packs/2/", ErrorCode::no_space),
                                         std::pair("packs/2/", ErrorCode::permission),
                                         std::pair("snapshots/2/", ErrorCode::no_space),
                                         std::pair("blobs/", ErrorCode::unavailable),
                                         std::pair("versions/00000000000000000002",
                                                   ErrorCode::permission)),
                         [](const auto& param) { return "Case" + std::to_string(param.index); });

TEST_F(PublishTest, StopsOnRequestAtEveryPoint) {
  publisher().publish(checkpoint(1));
  for (const std::string& wanted : kPoints) {
    if (wanted == "before-commit" || wanted == "committed") break;
    std::stop_source source;
    PublishOptions options = options_of(checkpoint(2));
    options.at = [&](std::string_view point) {
      if (point == wanted) source.request_stop();
    };
    const Context context{source.get_token(), Clock::time_point::max()};
    const Error error = error_of([&] { publisher().publish(options, context); });
    EXPECT_EQ(error.code(), ErrorCode::cancelled) << wanted << ": " << error.what();
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

TEST_F(PublishTest, ReachesItsPointsInOrderAndTellsItsPhases) {
  publisher().publish(checkpoint(1));
  std::vector<std::string> points;
  PublishOptions options = options_of(checkpoint(2));
  options.snapshot = true;
  options.at = [&](std::string_view point) { points.emplace_back(point); };
  std::mutex mutex;
  std::set<std::string> phases;
  publisher().publish(options, {},
                      [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
                        const std::lock_guard lock(mutex);
                        phases.emplace(phase);
                        EXPECT_LE(done, total) << phase;
                      });
  EXPECT_EQ(points, kPoints);
  EXPECT_EQ(phases, (std::set<std::string>{"reading parent", "coding", "hashing", "uploading"}));
  EXPECT_TRUE(stdfs::is_empty(publisher().store->temporary_directory()));
}

/// A file system of its own, so that it can be full.
class SmallDisk {
 public:
  explicit SmallDisk(stdfs::path path) : path_(std::move(path)) {
    stdfs::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=192m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

  /// Leaves no more than this free.
  void fill(std::uint64_t rest_bytes) {
    const File file = File::open(path_ / "ballast", O_RDWR | O_CREAT);
    const std::uint64_t size = space_of(path_).free_bytes - rest_bytes;
    ASSERT_EQ(::fallocate(file.fd(), 0, 0, static_cast<off_t>(size)), 0);
  }
  void empty() { stdfs::remove(path_ / "ballast"); }

 private:
  stdfs::path path_;
  bool mounted_ = false;
};

TEST_F(PublishTest, NamesTheStoreWhoseDiskIsFullAndPublishesOnceThereIsRoom) {
  SmallDisk disk(dir_ / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  Host host(bucket_, dir_ / "disk/store");
  const auto first = tensor_of("a", Dtype::u8, 4'000'000, 1);
  const auto second = tensor_of("a", Dtype::u8, 4'000'000, 2);
  host.publish(directory_of({{"m.safetensors", make_safetensors({first})}}));
  PublishOptions options =
      options_of(directory_of({{"m.safetensors", make_safetensors({second})}}));
  options.at = [&](std::string_view point) {
    if (point == "parent") disk.fill(1'000'000);
  };
  const Error error = error_of([&] { host.publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::no_space) << error.what();
  EXPECT_NE(std::string(error.what()).find(host.store->path()), std::string::npos) << error.what();
  EXPECT_TRUE(stdfs::is_empty(host.store->temporary_directory()));
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  disk.empty();
  options.at = {};
  EXPECT_EQ(host.publish(options).version, 2u);
  expect_sound();
}

// ---- killed ----

class Killed : public testing::TestWithParam<std::string> {
 protected:
  Killed() {
    bool created = false;
    Repository::init(url_, created, {});
    write_checkpoint(dir_ / "1", 1, 50'000);
    write_checkpoint(dir_ / "2", 2, 50'000);
  }

  /// Runs a publisher that dies at `point`.  Returns: what waitpid() said.
  int run(const stdfs::path& directory, const std::string& point) {
    const std::string store = dir_ / "store", what = directory;
    std::vector<const char*> arguments{
        WEIGHTFS_KILL_PUBLISHER, url_.c_str(), store.c_str(), what.c_str(), point.c_str(), nullptr};
    pid_t pid = 0;
    EXPECT_EQ(::posix_spawn(&pid, arguments[0], nullptr, nullptr,
                            const_cast<char**>(arguments.data()), environ),
              0);
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  TempDir dir_;
  const std::string url_ = "file://" + (dir_ / "bucket").string();
};

/// Whatever was there when it died: the history is whole, and the next publish takes its number.
TEST_P(Killed, LeavesAWholeRepositoryAndTheNextPublishWorks) {
  std::uint64_t version = 0;
  for (const char* directory : {"1", "2"}) {
    const bool has_parent = version > 0;
    const int status = run(dir_ / directory, GetParam());
    if (GetParam() == "parent" && !has_parent) {
      ASSERT_EQ(status, 0);  // a first version has none
      version++;
      continue;
    }
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    if (GetParam() == "committed") version++;

    Host host(Repository::open(url_, {}), dir_ / "store");
    EXPECT_EQ(host.history.refresh(0, {}), version);
    const PublishResult result = host.publish(dir_ / directory);
    EXPECT_EQ(result.version, ++version);
    EXPECT_EQ(host.read_version(version), read_tree(dir_ / directory));
  }
  Host reader(Repository::open(url_, {}), dir_ / "reader");
  const auto report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  EXPECT_EQ(report.versions, version);
  for (const Problem& problem : report.problems) {
    ADD_FAILURE() << problem.object << ": " << problem.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Publish, Killed, testing::ValuesIn(kPoints), [](const auto& param) {
  std::string name = param.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace weightfs::test
