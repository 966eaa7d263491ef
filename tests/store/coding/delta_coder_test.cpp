#include "store/coding/delta_coder.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/dispatch/hash.hpp"
#include "store/base/error.hpp"
#include "store/format/chunk_batches.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::size_t kChunkBytes = kernels::chunk_bytes(kernels::Kind::u8);

TestTensor opaque_tensor(const std::string& name, std::size_t size, unsigned seed) {
  Random rng(seed);
  TestTensor tensor{name, Dtype::u8, {size}, Bytes(size)};
  for (std::byte& byte : tensor.data) byte = static_cast<std::byte>(rng());
  return tensor;
}

/// A scanned directory with everything derived from it.
struct Scanned {
  explicit Scanned(const stdfs::path& directory)
      : checkpoint(scan_checkpoint(directory, {})),
        layout(Layout::from_checkpoint(checkpoint)),
        reader(checkpoint, *layout) {}

  Checkpoint checkpoint;
  std::shared_ptr<const Layout> layout;
  CheckpointReader reader;
};

class DeltaCoderTest : public testing::Test {
 protected:
  stdfs::path write(const std::string& name, const std::vector<TestTensor>& tensors) {
    write_text(dir_ / name / "m.safetensors", make_safetensors(tensors));
    return dir_ / name;
  }

  /// The directory as the images of version 1.
  Base base_of_directory(const stdfs::path& directory) {
    const Scanned scanned(directory);
    auto version = std::make_shared<Version>();
    version->manifest.version = 1;
    return {version, scanned.layout, directory,
            hash_checkpoint(scanned.reader, {}, 0, {}, {}).chunks};
  }

  CodedDelta code(const Scanned& scanned, const Base& base, std::uint64_t pack_bytes) {
    CodeOptions options;
    options.spool = dir_.path();
    options.pack_bytes = pack_bytes;
    return code_delta(scanned.reader, base, options, {}, {});
  }

  /// The index of a coded pack, as a reader parses it.
  static std::shared_ptr<const PackIndex> index_of(const SpooledPack& pack, const Layout& layout) {
    const std::string head = pack.writer.head(0);
    return PackIndex::parse(head, head.size() + pack.data_size_bytes, layout, "pack");
  }

  TempDir dir_;
};

TEST_F(DeltaCoderTest, BeginsANewPackWhenOneIsLargeEnough) {
  const std::vector<TestTensor> before{opaque_tensor("a", 5 * kChunkBytes + 7, 1),
                                       opaque_tensor("b", 2 * kChunkBytes, 2)};
  const std::vector<TestTensor> after{opaque_tensor("a", 5 * kChunkBytes + 7, 3),
                                      opaque_tensor("b", 2 * kChunkBytes, 4)};
  const Base base = base_of_directory(write("before", before));
  const Scanned scanned(write("after", after));
  const CodedDelta delta = code(scanned, base, 2 * kChunkBytes);
  ASSERT_EQ(delta.packs.size(), 4u);  // 2 + 2 + 2 whole chunks and the 7 bytes, 2 of b
  std::uint64_t next = 0;
  for (const auto& coded : delta.packs) {
    const SpooledPack& pack = *coded;
    const auto index = index_of(pack, *scanned.layout);
    for (const PackChunk& chunk : index->chunks()) {
      const LayoutTensor& tensor = scanned.layout->tensors()[chunk.tensor];
      EXPECT_EQ(tensor.first_chunk + chunk.chunk, next);
      EXPECT_EQ(chunk.hash, delta.hashes[next]);
      next++;
    }
  }
  EXPECT_EQ(next, scanned.layout->chunk_count());
}

/// Batches are of 8 MiB: a piece is of one or more.
TEST_F(DeltaCoderTest, ClosesAPackWhenSoManyBytesWereCoded) {
  constexpr std::size_t kElements = 10'000'000;  // 20 MB: three batches
  std::vector<TestTensor> tensors{{"a", Dtype::bf16, {kElements}, Bytes(2 * kElements)}};
  const Base base = base_of_directory(write("before", tensors));
  Bytes& data = tensors.front().data;
  for (std::size_t i = 0; i < data.size(); i += 100'000) data[i] = std::byte{1};
  const Scanned scanned(write("after", tensors));
  std::vector<CodedSoFar> told;
  std::vector<std::shared_ptr<const SpooledPack>> closed;
  CodeOptions options;
  options.spool = dir_.path();
  options.piece_bytes = 1;
  options.closed = [&](auto pack, const CodedSoFar& so_far) {
    closed.push_back(std::move(pack));
    told.push_back(so_far);
  };
  const CodedDelta delta = code_delta(scanned.reader, base, options, {}, {});
  EXPECT_EQ(closed, delta.packs);
  ASSERT_EQ(told.size(), 3u);
  const LayoutTensor& tensor = scanned.layout->tensors().front();
  std::uint64_t chunks = 0;
  for (std::size_t i = 0; i < told.size(); i++) {
    const auto index = index_of(*closed[i], *scanned.layout);
    ASSERT_FALSE(index->chunks().empty());
    EXPECT_GE(told[i].last.value().chunk, index->chunks().back().chunk);
    EXPECT_TRUE(i == 0 || index->chunks().front().chunk > told[i - 1].last.value().chunk);
    chunks += index->chunks().size();
  }
  EXPECT_EQ(told.back().last.value().chunk, tensor.chunk_count - 1);
  EXPECT_EQ(told.back().changed_elements, delta.changed_elements);
  EXPECT_LT(told.front().changed_elements, delta.changed_elements);
  EXPECT_GT(chunks, 0u);
}

TEST_F(DeltaCoderTest, LeavesOutChunksThatDidNotChange) {
  std::vector<TestTensor> tensors{opaque_tensor("a", 3 * kChunkBytes, 1)};
  const Base base = base_of_directory(write("before", tensors));
  tensors[0].data[kChunkBytes + 5] ^= std::byte{1};
  const Scanned scanned(write("after", tensors));
  const CodedDelta delta = code(scanned, base, kPackDataBytesTarget);
  ASSERT_EQ(delta.packs.size(), 1u);
  EXPECT_EQ(delta.changed_elements, 1u);
  const auto index = index_of(*delta.packs[0], *scanned.layout);
  ASSERT_EQ(index->chunks().size(), 1u);
  EXPECT_EQ(index->chunks()[0].chunk, 1u);
  EXPECT_EQ(index->chunks()[0].changed, 1u);
  for (std::uint32_t chunk = 0; chunk < 3; chunk++) {
    const auto bytes = std::span(tensors[0].data).subspan(chunk * kChunkBytes, kChunkBytes);
    EXPECT_EQ(delta.hashes[chunk], kernels::hash_chunk(bytes));
  }
}

TEST_F(DeltaCoderTest, ListsUnchangedChunksThatTheParentDoesNotHaveInThisSize) {
  TestTensor tensor{"a", Dtype::u8, {kChunkBytes + 10}, Bytes(kChunkBytes + 10)};
  const Base base = base_of_directory(write("before", {tensor}));
  tensor.data.resize(2 * kChunkBytes + 10);  // zeros after zeros
  tensor.shape = {tensor.data.size()};
  const TestTensor fresh{"b", Dtype::u8, {10}, Bytes(10)};
  const Scanned scanned(write("after", {tensor, fresh}));
  const CodedDelta delta = code(scanned, base, kPackDataBytesTarget);
  EXPECT_EQ(delta.changed_elements, 0u);
  ASSERT_EQ(delta.packs.size(), 1u);
  EXPECT_EQ(delta.packs[0]->data_size_bytes, 0u);
  const auto index = index_of(*delta.packs[0], *scanned.layout);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> chunks;
  for (const PackChunk& chunk : index->chunks()) chunks.emplace_back(chunk.tensor, chunk.chunk);
  EXPECT_EQ(chunks, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {0, 2}, {1, 0}}));
}

TEST_F(DeltaCoderTest, NotesNothingWithACoderThatWritesNoLogs) {
  std::vector<TestTensor> tensors{opaque_tensor("a", 2 * kChunkBytes, 1)};
  const Base base = base_of_directory(write("before", tensors));
  tensors[0].data[5] ^= std::byte{1};
  const Scanned scanned(write("after", tensors));
  for (const bool has_logs : {false, true}) {
    const auto coder = std::make_shared<MeddlingCoder>();
    coder->has_logs = has_logs;
    FreshChunks fresh(1u << 20);
    CodeOptions options;
    options.spool = dir_.path();
    options.coder = coder;
    options.fresh = &fresh;
    code_delta(scanned.reader, base, options, {}, {});
    EXPECT_EQ(fresh.is_wanted(), has_logs);
    std::vector<FreshChunk> chunks;
    fresh.take(0, chunks);
    EXPECT_EQ(chunks.size(), has_logs ? 1u : 0u);
  }
}

/// Beyond its memory nothing more is noted, and the packs are the same.
TEST_F(DeltaCoderTest, GivesUpNotesThatAreTooLarge) {
  const Base base = base_of_directory(write("before", {opaque_tensor("a", 9 * kChunkBytes, 1)}));
  const Scanned scanned(write("after", {opaque_tensor("a", 9 * kChunkBytes, 2)}));
  const CodedDelta plain = code(scanned, base, kPackDataBytesTarget);
  FreshChunks fresh(3 * kChunkBytes);
  CodeOptions options;
  options.spool = dir_.path();
  options.fresh = &fresh;
  const CodedDelta delta = code_delta(scanned.reader, base, options, {}, {});
  EXPECT_FALSE(fresh.is_wanted());
  EXPECT_EQ(fresh.size_bytes(), 0u);
  EXPECT_EQ(delta.hashes, plain.hashes);
  EXPECT_EQ(delta.packs[0]->data_size_bytes, plain.packs[0]->data_size_bytes);
}

TEST_F(DeltaCoderTest, GivesTheSamePacksWithAnyNumberOfThreads) {
  std::vector<TestTensor> before, after;
  for (unsigned i = 0; i < 40; i++) {
    before.push_back(opaque_tensor("t" + std::to_string(i), 900'001, i));
    after.push_back(opaque_tensor("t" + std::to_string(i), 900'001, i % 3 == 0 ? i : i + 100));
  }
  const Base base = base_of_directory(write("before", before));
  const Scanned scanned(write("after", after));
  std::vector<std::string> heads;
  for (const unsigned threads : {1u, 2u, 7u}) {
    CodeOptions options;
    options.spool = dir_.path();
    options.threads = threads;
    const CodedDelta delta = code_delta(scanned.reader, base, options, {}, {});
    ASSERT_EQ(delta.packs.size(), 1u);
    heads.push_back(delta.packs[0]->writer.head(0));
  }
  EXPECT_EQ(heads[0], heads[1]);
  EXPECT_EQ(heads[0], heads[2]);
}

TEST_F(DeltaCoderTest, NamesTheDamagedImageAndTensorOfTheParent) {
  const auto directory = write("before", {opaque_tensor("model.norm", 1000, 1)});
  const Base base = base_of_directory(directory);
  std::string bytes = read_text(directory / "m.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(directory / "m.safetensors", bytes);
  const Scanned scanned(write("after", {opaque_tensor("model.norm", 1000, 2)}));
  try {
    code(scanned, base, kPackDataBytesTarget);
    FAIL() << "nothing was thrown";
  } catch (const BaseDamaged& damaged) {
    EXPECT_EQ(damaged.version(), 1u);
    const std::string message = damaged.what();
    EXPECT_NE(message.find(directory / "m.safetensors"), std::string::npos) << message;
    EXPECT_NE(message.find("model.norm"), std::string::npos) << message;
  }
}

TEST_F(DeltaCoderTest, GivesTheCoderAllChunksOfABatchAtOnce) {
  std::vector<TestTensor> before, after;
  for (unsigned i = 0; i < 100; i++) {
    before.push_back(opaque_tensor("t" + std::to_string(i), 1000 + i, i));
    after.push_back(opaque_tensor("t" + std::to_string(i), 1000 + i, i + 1000));
  }
  const Base base = base_of_directory(write("before", before));
  const Scanned scanned(write("after", after));
  const auto coder = std::make_shared<MeddlingCoder>();
  CodeOptions options;
  options.spool = dir_.path();
  options.coder = coder;
  code_delta(scanned.reader, base, options, {}, {});
  EXPECT_EQ(coder->encoded, 100u);
  EXPECT_EQ(coder->encode_calls, 1u);
}

TEST_F(DeltaCoderTest, RefusesWhatTheCoderCouldNotVerify) {
  const Base base = base_of_directory(write("before", {opaque_tensor("model.norm", 1000, 1)}));
  const Scanned scanned(write("after", {opaque_tensor("model.norm", 1000, 2)}));
  const auto coder = std::make_shared<MeddlingCoder>();
  coder->after_encode = [](kernels::EncodeJob& job) { job.is_verified = false; };
  CodeOptions options;
  options.spool = dir_.path();
  options.coder = coder;
  const Error error = error_of([&] { code_delta(scanned.reader, base, options, {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  for (const char* word : {"model.norm", "meddling", "nothing was published"}) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST_F(DeltaCoderTest, NeedsTheFeatureXrOnlyForBlocksOfItsModes) {
  auto rng = make_rng();
  TestTensor weights{"w", Dtype::bf16, {20'000}, random_bf16(20'000, rng)};
  const Base base = base_of_directory(write("before", {weights}));
  EXPECT_FALSE(code(Scanned(write("same", {weights})), base, kPackDataBytesTarget).needs_xr);
  TestTensor nudged = weights;
  nudged.data = nudged_bf16(weights.data, 0.9, rng);  // too dense for EF
  EXPECT_TRUE(code(Scanned(write("nudged", {nudged})), base, kPackDataBytesTarget).needs_xr);
  TestTensor other = weights;
  for (std::byte& byte : other.data) byte = static_cast<std::byte>(rng());
  EXPECT_FALSE(code(Scanned(write("other", {other})), base, kPackDataBytesTarget).needs_xr)
      << "raw";
}

/// Few changes, all with one of two exponents, are coded as XS.
TEST_F(DeltaCoderTest, NeedsTheFeatureXrForShortBlocksToo) {
  TestTensor weights{"w", Dtype::bf16, {20'000}, Bytes(40'000)};
  for (std::size_t i = 0; i < 20'000; ++i) {  // 0x3800 and 0x3C00: exponents 112 and 120
    weights.data[2 * i + 1] = i % 2 == 0 ? std::byte{0x38} : std::byte{0x3C};
  }
  TestTensor nudged = weights;
  auto rng = make_rng();
  for (int i = 0; i < 300; ++i) nudged.data[4 * (rng() % 10'000)] = std::byte{1};
  const Base base = base_of_directory(write("before", {weights}));
  const CodedDelta delta = code(Scanned(write("after", {nudged})), base, kPackDataBytesTarget);
  ASSERT_EQ(delta.packs.size(), 1U);
  Bytes mode(1);
  ASSERT_TRUE(read_at(delta.packs[0]->data.fd(), 0, mode, "spool"));
  EXPECT_EQ(mode[0], static_cast<std::byte>(kernels::Mode::xs));
  EXPECT_TRUE(delta.needs_xr);
}

TEST_F(DeltaCoderTest, NamesTheSpoolThatCannotBeWritten) {
  const Base base = base_of_directory(write("before", {opaque_tensor("a", 1000, 1)}));
  const Scanned scanned(write("after", {opaque_tensor("a", 1000, 2)}));
  CodeOptions options;
  options.spool = dir_ / "absent";
  const Error error = error_of([&] { code_delta(scanned.reader, base, options, {}, {}); });
  EXPECT_NE(std::string(error.what()).find(options.spool), std::string::npos) << error.what();
}

TEST(ChunkBatches, HoldEveryChunkOnceInOrder) {
  TempDir dir;
  std::vector<TestTensor> tensors{opaque_tensor("large", 9 * kChunkBytes + 1, 1),
                                  {"empty", Dtype::u8, {0}, {}}};
  for (unsigned i = 0; i < 20; i++)
    tensors.push_back(opaque_tensor("t" + std::to_string(i), 100, i));
  write_text(dir / "m.safetensors", make_safetensors(tensors));
  const Scanned scanned(dir.path());
  for (const std::uint64_t target : {std::uint64_t{1}, std::uint64_t{3} << 20, ~std::uint64_t{0}}) {
    std::uint64_t next = 0;
    for (const ChunkBatch& batch : chunk_batches(*scanned.layout, target)) {
      EXPECT_EQ(batch.first_chunk, next);
      ASSERT_FALSE(batch.places.empty());
      std::uint64_t bytes = 0;
      for (const ChunkPlace& place : batch.places) {
        EXPECT_LT(bytes, target);
        const LayoutTensor& tensor = scanned.layout->tensors()[place.tensor];
        EXPECT_EQ(tensor.first_chunk + place.chunk, next++);
        bytes += tensor.chunk_size_bytes(place.chunk);
      }
      EXPECT_EQ(batch.size_bytes, bytes);
    }
    EXPECT_EQ(next, scanned.layout->chunk_count());
  }
}

}  // namespace
}  // namespace weightfs::test
