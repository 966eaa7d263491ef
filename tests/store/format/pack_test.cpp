#include "store/format/pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/base/byte_reader.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

/// Tensor 0: 2 chunks of 16 and 7 blocks; 1: 1 chunk of 1 block; 2: empty; 3: 3 chunks of 16
/// blocks.
std::string golden_pack(std::string_view name) {
  return test::read_text(std::filesystem::path(WEIGHTFS_TEST_DATA) / "format-1" / name);
}
const Layout& layout() {
  static const auto kept = Layout::parse(golden_pack("layout.bin"), "layout");
  return *kept;
}

struct AddedChunk {
  std::uint32_t tensor = 0, chunk = 0;
  std::vector<std::uint32_t> lengths;
  std::uint64_t hash = 0;
  std::uint32_t changed = 0;
};

std::uint64_t size_of(const AddedChunk& chunk) {
  std::uint64_t size = 0;
  for (const std::uint32_t length : chunk.lengths) size += length;
  return size;
}

std::string pattern(std::uint64_t size) {
  std::string data;
  for (std::uint64_t i = 0; i < size; i++) {
    data.push_back(static_cast<char>((7 * i + i / 251) & 0xFF));
  }
  return data;
}

struct Pack {
  std::string head, data;
};

Pack pack_of(const std::vector<AddedChunk>& chunks) {
  std::uint64_t size = 0;
  for (const AddedChunk& chunk : chunks) size += size_of(chunk);
  Pack pack{"", pattern(size)};
  PackWriter writer(layout());
  std::size_t offset = 0;
  for (const AddedChunk& chunk : chunks) {
    const auto part = as_bytes(pack.data).subspan(offset, size_of(chunk));
    writer.add(chunk.tensor, chunk.chunk, chunk.lengths, chunk.hash, chunk.changed, part);
    offset += part.size();
  }
  pack.head = writer.finish();
  return pack;
}

std::vector<AddedChunk> some_chunks() {
  return {{0, 1, {0, 131073, 3, 0, 0, 9, 0}, 0x0123456789abcdef, 65600},
          {1, 0, {41}, 1, 10},
          {3, 1, std::vector<std::uint32_t>(16), 2, 0},
          {3, 2, {65537, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, UINT64_MAX, 65536}};
}

/// The index of a pack of some_chunks(), uncompressed.
std::string index_of(const std::string& head) {
  constexpr std::uint64_t kSize = (1 + 9) + 3 * 40 + 4 * 8 + (3 + 1 + 1 + 3) + 32;
  ByteReader reader(head, "head");
  reader.take(reader.take_le<std::uint64_t>());
  return decompress(reader.take(reader.remaining()), kSize, "head");
}

void expect_holds(const PackIndex& index, const std::vector<AddedChunk>& chunks,
                  const std::string& data) {
  ASSERT_EQ(index.chunks().size(), chunks.size());
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < chunks.size(); i++) {
    const PackChunk& chunk = index.chunks()[i];
    EXPECT_EQ(chunk.tensor, chunks[i].tensor);
    EXPECT_EQ(chunk.chunk, chunks[i].chunk);
    EXPECT_EQ(chunk.hash, chunks[i].hash);
    EXPECT_EQ(chunk.changed, chunks[i].changed);
    EXPECT_EQ(chunk.data_offset_bytes, offset);
    EXPECT_EQ(chunk.data_size_bytes, size_of(chunks[i]));
    const auto lengths = index.block_lengths(chunk);
    EXPECT_TRUE(std::equal(lengths.begin(), lengths.end(), chunks[i].lengths.begin(),
                           chunks[i].lengths.end()));
    offset += chunk.data_size_bytes;
  }
  EXPECT_EQ(index.data_size_bytes(), data.size());
  ASSERT_EQ(index.pieces().size(), (data.size() + kPieceBytes - 1) / kPieceBytes);
  for (std::size_t i = 0; i < index.pieces().size(); i++) {
    EXPECT_EQ(index.pieces()[i],
              sha256(as_bytes(std::string_view(data).substr(i * kPieceBytes, kPieceBytes))));
  }
}

void expect_pack_refused(const std::string& head, std::uint64_t pack_size,
                         const std::string& reason) {
  try {
    PackIndex::parse(head, pack_size, layout(), "packs/2/x-0.safetensors");
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("packs/2/x-0.safetensors")) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

/// A header with any index, as an attacker could make it.
std::string head_around(const std::string& index, std::uint64_t data_size,
                        const std::string& index_size,
                        const std::string& format = "weightfs pack") {
  const std::string frame = compress(index);
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const std::string json = R"({"__metadata__":{"format":")" + format + R"(","index_size":")" +
                           index_size + R"("},"index":{"dtype":"U8","shape":[)" +
                           number(frame.size()) + R"(],"data_offsets":[0,)" + number(frame.size()) +
                           R"(]},"data":{"dtype":"U8","shape":[)" + number(data_size) +
                           R"(],"data_offsets":[)" + number(frame.size()) + "," +
                           number(frame.size() + data_size) + "]}}";
  std::string head;
  append_le(head, std::uint64_t{json.size()});
  return head + json + frame;
}

void expect_index_refused(const std::string& index, std::uint64_t data_size,
                          const std::string& reason) {
  const std::string head = head_around(index, data_size, std::to_string(index.size()));
  expect_pack_refused(head, head.size() + data_size, reason);
}

std::string ranges(const std::vector<std::uint64_t>& numbers) {
  std::string bytes;
  append_varint(bytes, numbers.size() / 3);
  for (const std::uint64_t number : numbers) append_varint(bytes, number);
  return bytes;
}

/// The bytes after the ranges for `chunks` chunks with `blocks` unchanged blocks.
std::string unchanged(std::size_t chunks, std::size_t blocks) {
  return std::string(3 * blocks + 8 * chunks + chunks, '\0');
}

TEST(Pack, ComesBackAsItWasWritten) {
  const Pack pack = pack_of(some_chunks());
  const auto index =
      PackIndex::parse(pack.head, pack.head.size() + pack.data.size(), layout(), "pack");
  EXPECT_EQ(index->data_offset_bytes(), pack.head.size());
  expect_holds(*index, some_chunks(), pack.data);
}

TEST(Pack, IsALegalSafetensorsFile) {
  const Pack pack = pack_of(some_chunks());
  const auto length = static_cast<std::size_t>(load_le<std::uint64_t>(as_bytes(pack.head).data()));
  const SafetensorsHeader header =
      parse_safetensors_header(std::string_view(pack.head).substr(0, 8 + length), "pack");
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "index");
  EXPECT_EQ(header.tensors[1].name, "data");
  EXPECT_EQ(8 + length + header.data_size_bytes, pack.head.size() + pack.data.size());
  EXPECT_EQ(header.metadata.at("format"), "weightfs pack");
}

TEST(Pack, MayHoldNoData) {
  const std::vector<AddedChunk> chunks = {{1, 0, {0}, 7, 0}};
  const Pack pack = pack_of(chunks);
  const auto index = PackIndex::parse(pack.head, pack.head.size(), layout(), "pack");
  expect_holds(*index, chunks, "");
}

TEST(Pack, HashesEachPieceOfItsData) {
  // Chunks that do not end at piece boundaries, and data of exactly one piece and of one byte more.
  const std::vector<std::uint32_t> raw(16, 65536);
  std::vector<AddedChunk> chunks = {{3, 0, raw, 1, 1}};
  ASSERT_EQ(size_of(chunks[0]), kPieceBytes);
  for (const std::uint32_t more : {0U, 1U, 65537U}) {
    chunks.resize(1);
    chunks.push_back({3, 1, std::vector<std::uint32_t>(16), 2, 2});
    chunks[1].lengths[5] = more;
    chunks.push_back({3, 2, raw, 3, 3});
    const Pack pack = pack_of(chunks);
    const auto index =
        PackIndex::parse(pack.head, pack.head.size() + pack.data.size(), layout(), "pack");
    expect_holds(*index, chunks, pack.data);
  }
}

TEST(Pack, ComesBackForRandomChunks) {
  auto rng = test::make_rng();
  for (int round = 0; round < 50; round++) {
    std::vector<AddedChunk> chunks;
    for (std::uint32_t tensor = 0; tensor < layout().tensors().size(); tensor++) {
      const LayoutTensor& of = layout().tensors()[tensor];
      for (std::uint32_t chunk = 0; chunk < of.chunk_count; chunk++) {
        if (rng() % 2 == 0) continue;
        AddedChunk added{tensor, chunk, {}, rng(), static_cast<std::uint32_t>(rng() % 10)};
        added.lengths.resize(kernels::block_count(of.kind, of.chunk_size_bytes(chunk)));
        for (std::uint32_t& length : added.lengths) length = static_cast<std::uint32_t>(rng() % 40);
        chunks.push_back(added);
      }
    }
    if (chunks.empty()) continue;
    const Pack pack = pack_of(chunks);
    const auto index =
        PackIndex::parse(pack.head, pack.head.size() + pack.data.size(), layout(), "pack");
    expect_holds(*index, chunks, pack.data);
  }
}

TEST(Pack, RefusesHeadsCutAnywhere) {
  const Pack pack = pack_of(some_chunks());
  const std::uint64_t size = pack.head.size() + pack.data.size();
  for (std::size_t cut = 0; cut < pack.head.size(); cut++) {
    EXPECT_THROW(PackIndex::parse(std::string_view(pack.head).substr(0, cut), size, layout(), "x"),
                 Error);
  }
  expect_pack_refused(pack.head + "x", size, "1 bytes after the end");
}

TEST(Pack, RefusesASizeThatIsNotItsOwn) {
  const Pack pack = pack_of(some_chunks());
  const std::uint64_t size = pack.head.size() + pack.data.size();
  for (const std::uint64_t wrong :
       {size - 1, size + 1, std::uint64_t{0}, pack.head.size() - 1, kPackBytesMax, UINT64_MAX}) {
    expect_pack_refused(pack.head, wrong, "cannot contain");
  }
}

TEST(Pack, RefusesSafetensorsThatAreNoPacks) {
  const std::string index = ranges({1, 0, 1}) + unchanged(1, 1);
  expect_pack_refused(head_around(index, 0, "1", "pt"), 1000, "not a pack: __metadata__");
  for (const char* size : {"", "-1", "1x", "01", "18446744073709551616", " 1"}) {
    expect_pack_refused(head_around(index, 0, size), 1000, "index_size is not a number");
  }
  Bytes four(4);
  const std::map<std::string, std::string> metadata = {{"format", "weightfs pack"},
                                                       {"index_size", "4"}};
  const auto with = [&](const std::vector<test::TestTensor>& tensors) {
    return test::make_safetensors(tensors, metadata);
  };
  for (const std::string& head :
       {with({}), with({{"index", Dtype::u8, {4}, four}}),
        with({{"data", Dtype::u8, {4}, four}, {"index", Dtype::u8, {4}, four}}),
        with({{"index", Dtype::i8, {4}, four}, {"data", Dtype::u8, {4}, four}}),
        with({{"index", Dtype::u8, {2, 2}, four}, {"data", Dtype::u8, {4}, four}})}) {
    expect_pack_refused(head, 1000, "it must hold the U8 tensors index and data");
  }
}

TEST(Pack, RefusesAnIndexThatIsNotAsLargeAsItSays) {
  const std::string index = ranges({1, 0, 1}) + unchanged(1, 1);
  expect_pack_refused(head_around(index, 0, std::to_string(index.size() + 1)),
                      head_around(index, 0, std::to_string(index.size() + 1)).size(), "");
  const std::string bomb = head_around(std::string(8u << 20, '\0'), 0, std::to_string(8u << 20));
  expect_pack_refused(bomb, bomb.size(), "is too large");
}

// No chunk is in two packs: each pack leaves less for the next one, and for its index.
TEST(Pack, RefusesMoreChunksThanOtherPacksLeaveBeforeItInflatesThem) {
  const Pack pack = pack_of(some_chunks());  // 4 of the 6 of the layout
  const std::uint64_t size = pack.head.size() + pack.data.size();
  MemoryBudget budget;
  PackRoom room(layout(), budget);
  EXPECT_EQ(PackIndex::parse(pack.head, size, layout(), "packs/2/x-0", room)->chunks().size(), 4U);
  std::string message;
  EXPECT_EQ(test::code_of([&] { PackIndex::parse(pack.head, size, layout(), "packs/2/x-1", room); },
                          &message),
            ErrorCode::corrupt);
  EXPECT_NE(message.find("packs/2/x-1: "), std::string::npos) << message;
  EXPECT_NE(message.find("with 2 chunks that are in no other pack"), std::string::npos) << message;
}

TEST(Pack, TakesWhatItHoldsOfTheMemoryOfItsVersion) {
  const Pack pack = pack_of(some_chunks());
  const std::uint64_t size = pack.head.size() + pack.data.size();
  MemoryBudget small(100, "a small host");
  PackRoom room(layout(), small);
  std::string message;
  EXPECT_EQ(
      test::code_of([&] { PackIndex::parse(pack.head, size, layout(), "pack", room); }, &message),
      ErrorCode::unsupported);
  EXPECT_NE(message.find("a small host"), std::string::npos) << message;

  constexpr std::uint64_t kHost = 4096;
  MemoryBudget budget(kHost, "a host");
  PackRoom first(layout(), budget);
  const auto index = PackIndex::parse(pack.head, size, layout(), "pack", first);
  EXPECT_GE(index->chunks().size_bytes(), 200U);
  EXPECT_EQ(test::code_of([&] { budget.check(kHost - 200, "more"); }), ErrorCode::unsupported);
}

TEST(Pack, RefusesAHeaderThatNoPackHas) {
  const std::string index = ranges({1, 0, 1}) + unchanged(1, 1);
  const std::string head =
      head_around(index, 0, std::to_string(index.size()), std::string(64u << 10, 'x'));
  expect_pack_refused(head, head.size(), "the header is too large");
}

TEST(Pack, RefusesHostileIndexes) {
  expect_index_refused("", 0, "truncated");
  expect_index_refused(ranges({}), 0, "holds no chunks");
  expect_index_refused(std::string("\x80\x00", 2), 0, "padded");
  std::string many;
  append_varint(many, UINT64_MAX);
  expect_index_refused(many, 0, "18446744073709551615 ranges");
  expect_index_refused(ranges({4, 0, 1}) + unchanged(1, 1), 0, "tensor 4 of 4");
  expect_index_refused(ranges({UINT64_MAX, 0, 1}) + unchanged(1, 1), 0, "tensor 184467");
  expect_index_refused(ranges({2, 0, 1}) + unchanged(1, 1), 0, "tensor 2 has 0");
  expect_index_refused(ranges({1, 0, 0}) + unchanged(1, 1), 0, "0 chunks from chunk 0 on");
  expect_index_refused(ranges({1, 1, 1}) + unchanged(1, 1), 0, "tensor 1 has 1");
  expect_index_refused(ranges({3, 2, 2}) + unchanged(2, 32), 0, "tensor 3 has 3");
  expect_index_refused(ranges({3, 2, UINT64_MAX}) + unchanged(2, 32), 0, "tensor 3 has 3");
  expect_index_refused(ranges({3, 0, 1, 3, 0, 1}) + unchanged(2, 32), 0, "does not ascend");
  expect_index_refused(ranges({3, 0, 1, 3, 1, 1}) + unchanged(2, 32), 0, "does not ascend");
  expect_index_refused(ranges({3, 0, 2, 3, 1, 2}) + unchanged(4, 64), 0, "does not ascend");
  expect_index_refused(ranges({3, 0, 1, 1, 0, 1}) + unchanged(2, 17), 0, "does not ascend");
  expect_index_refused(ranges({1, 0, 1}) + unchanged(1, 1) + "x", 0, "1 bytes after the end");
  expect_index_refused(ranges({1, 0, 1}) + unchanged(1, 1), 1, "the blocks take 0 bytes");
}

TEST(Pack, RefusesBlocksThatAreLongerThanPlainOnes) {
  const Sha256 piece{};
  const std::string tail = std::string(8, '\0') + '\0' + std::string(as_text(piece));
  // Tensor 1 has 10 elements of F32: 40 plain bytes and the mode.
  const std::string good = ranges({1, 0, 1}) + std::string("\x29\0\0", 3) + tail;
  const std::string head = head_around(good, 41, std::to_string(good.size()));
  EXPECT_EQ(PackIndex::parse(head, head.size() + 41, layout(), "pack")->data_size_bytes(), 41U);
  expect_index_refused(ranges({1, 0, 1}) + std::string("\x2a\0\0", 3) + tail, 42,
                       "block 0 of chunk 0 of tensor 'norm.weight' has 42 coded bytes");
  const std::string changed = std::string(8, '\0') + '\x0b' + std::string(as_text(piece));
  expect_index_refused(ranges({1, 0, 1}) + std::string("\x29\0\0", 3) + changed, 41,
                       "11 of 10 elements changed");
}

TEST(Pack, RefusesIndexesCutAnywhere) {
  const Pack pack = pack_of(some_chunks());
  const std::string index = index_of(pack.head);
  for (std::size_t cut = 0; cut < index.size(); cut++) {
    expect_index_refused(index.substr(0, cut), pack.data.size(), "");
  }
}

TEST(Pack, NeverCrashesOnFlippedBits) {
  auto rng = test::make_rng();
  const Pack pack = pack_of(some_chunks());
  const std::string good = index_of(pack.head);
  for (int round = 0; round < 5000; round++) {
    std::string index = good, head = pack.head;
    index[rng() % index.size()] ^= static_cast<char>(1 << rng() % 8);
    head[rng() % head.size()] ^= static_cast<char>(1 << rng() % 8);
    const std::string around = head_around(index, pack.data.size(), std::to_string(index.size()));
    for (const std::string& bad : {around, head}) {
      try {
        const auto parsed = PackIndex::parse(bad, bad.size() + pack.data.size(), layout(), "pack");
        for (const PackChunk& chunk : parsed->chunks()) {
          EXPECT_LE(chunk.data_offset_bytes + chunk.data_size_bytes, pack.data.size());
          EXPECT_EQ(parsed->block_lengths(chunk).size(), chunk.block_count);
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt);
      }
    }
  }
}

TEST(Pack, ReadsFormat1AsItWasWritten) {
  const std::string head = golden_pack("pack_head.bin");
  const Pack pack = pack_of(some_chunks());
  const auto index =
      PackIndex::parse(head, head.size() + pack.data.size(), layout(), "golden_pack");
  expect_holds(*index, some_chunks(), pack.data);
  // Another zstd version may make another frame; the content must be the same.
  EXPECT_EQ(index_of(pack.head), index_of(head));
}

}  // namespace
}  // namespace weightfs
