#include "store/format/pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cstring>
#include <utility>

#include "store/base/byte_reader.hpp"
#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kFormatName = "weightfs pack";
constexpr std::uint64_t kPackHeaderBytesMax = 64u << 10;  // the JSON header of the safetensors file

/// Minimum size of a range (three varints), and of a chunk (hash, changed count).
constexpr std::uint64_t kRangeBytesMin = 3;
constexpr std::uint64_t kChunkBytesMin = 9;

/// Maximum size of a range (three numbers below 2^32), of a chunk (hash, changed count of at most
/// 2^20), and of a block length.
constexpr std::uint64_t kListedRangeBytesMax = 3 * 5;
constexpr std::uint64_t kListedChunkBytesMax = 8 + 3;
constexpr std::uint64_t kBlockLengthBytes = 3;
static_assert(kernels::kChunkBlocks * kernels::kBlockElements <= 1u << 20);

std::uint64_t piece_count_of(std::uint64_t data_size) {
  return data_size / kPieceBytes + (data_size % kPieceBytes != 0);
}

/// Upper bound for the index of this many chunks of this layout, so that a small zstd frame cannot
/// request much memory.
std::uint64_t index_bytes_max(const Layout& layout, std::uint64_t chunks, std::uint64_t data_size) {
  const std::uint64_t blocks_of_layout =
      layout.element_count() / kernels::kBlockElements + layout.tensors().size();
  const std::uint64_t blocks = std::min(chunks * kernels::kChunkBlocks, blocks_of_layout);
  return kListedRangeBytesMax + chunks * (kListedRangeBytesMax + kListedChunkBytesMax) +
         blocks * kBlockLengthBytes + piece_count_of(data_size) * sizeof(Sha256);
}

/// Peak memory for reading an index of this size: its text, and what is built from it.
std::uint64_t reading_bytes_max(std::uint64_t index_size, std::uint64_t chunks) {
  const std::uint64_t chunks_max =
      std::min(chunks, index_size / (kChunkBytesMin + kBlockLengthBytes));
  return index_size + chunks_max * (sizeof(PackChunk) + kListedRangeBytesMax) +
         index_size / kBlockLengthBytes * sizeof(std::uint32_t);
}

std::uint32_t block_count_of(const LayoutTensor& tensor, std::uint32_t chunk) {
  return static_cast<std::uint32_t>(
      kernels::block_count(tensor.kind, tensor.chunk_size_bytes(chunk)));
}

/// Uncoded size of block `index` of a chunk.
std::uint64_t block_size_bytes(const LayoutTensor& tensor, std::uint32_t chunk,
                               std::uint32_t index) {
  const std::uint64_t full = kernels::block_bytes(tensor.kind);
  return std::min(full, tensor.chunk_size_bytes(chunk) - index * full);
}

/// Sizes of index and data, from the pack's safetensors header.
struct Parts {
  std::string_view index;        // compressed
  std::uint64_t index_size = 0;  // uncompressed
  std::uint64_t data_size = 0;
};

std::uint64_t parse_size(const ByteReader& at, const std::string& text) {
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc{} || end != text.data() + text.size() || std::to_string(size) != text) {
    at.fail("the header's index_size is not a number");
  }
  return size;
}

std::string_view take_header(ByteReader& reader, std::string_view head) {
  const auto length = reader.take_le<std::uint64_t>();
  if (length > kPackHeaderBytesMax) reader.fail("the header is too large");
  reader.take(length);
  return head.substr(0, 8 + static_cast<std::size_t>(length));
}

Parts parse_head(std::string_view head, std::uint64_t pack_size, std::string_view what) {
  ByteReader reader(head, what);
  const std::string_view verbatim = take_header(reader, head);
  const SafetensorsHeader header = parse_safetensors_header(verbatim, what);
  const auto format = header.metadata.find("format");
  const auto index_size = header.metadata.find("index_size");
  if (format == header.metadata.end() || format->second != kFormatName ||
      index_size == header.metadata.end()) {
    reader.fail("not a pack: __metadata__ is not that of a weightfs pack");
  }
  const auto is = [](const SafetensorsTensor& tensor, std::string_view name) {
    return tensor.name == name && tensor.dtype == Dtype::u8 && tensor.shape.size() == 1;
  };
  if (header.tensors.size() != 2 || !is(header.tensors[0], "index") ||
      !is(header.tensors[1], "data")) {
    reader.fail("not a pack: it must hold the U8 tensors index and data, in this order");
  }
  Parts parts;
  parts.index = reader.take(header.tensors[0].end_bytes);
  reader.expect_end();
  parts.index_size = parse_size(reader, index_size->second);
  parts.data_size = header.tensors[1].end_bytes - header.tensors[1].begin_bytes;
  if (pack_size >= kPackBytesMax || pack_size < head.size() ||
      pack_size - head.size() != parts.data_size) {
    reader.fail(
        fmt::format("a pack of {} bytes with a header of {} cannot contain {} bytes of data",
                    pack_size, head.size(), parts.data_size));
  }
  return parts;
}

/// Consecutive chunks of one tensor.
struct Range {
  std::uint32_t tensor = 0, first = 0, count = 0;
  [[nodiscard]] std::uint64_t end() const { return std::uint64_t{first} + count; }
};

Range take_range(ByteReader& reader, const Layout& layout, const Range* before) {
  const std::uint64_t tensor = reader.take_varint();
  const std::uint64_t first = reader.take_varint();
  const std::uint64_t count = reader.take_varint();
  if (tensor >= layout.tensors().size()) {
    reader.fail(fmt::format("tensor {} of {} in the index", tensor, layout.tensors().size()));
  }
  const std::uint64_t limit = layout.tensors()[static_cast<std::size_t>(tensor)].chunk_count;
  if (count == 0 || first >= limit || count > limit - first) {
    reader.fail(fmt::format("{} chunks from chunk {} on, but tensor {} has {}", count, first,
                            tensor, limit));
  }
  const Range range{static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(first),
                    static_cast<std::uint32_t>(count)};
  if (before != nullptr && (range.tensor < before->tensor ||
                            (range.tensor == before->tensor && first <= before->end()))) {
    reader.fail(
        fmt::format("the range of tensor {} from chunk {} on does not ascend", tensor, first));
  }
  return range;
}

std::vector<Range> take_ranges(ByteReader& reader, const Layout& layout, std::uint64_t chunks) {
  const std::uint64_t count = reader.take_varint();
  if (count == 0) reader.fail("the index holds no chunks");
  if (count > chunks) reader.fail(fmt::format("{} ranges of {} chunks", count, chunks));
  reader.expect_room_for(count, kRangeBytesMin);
  std::vector<Range> ranges;
  ranges.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; i++) {
    ranges.push_back(take_range(reader, layout, ranges.empty() ? nullptr : &ranges.back()));
  }
  return ranges;
}

/// Makes the list of chunks; hashes, counts and lengths are filled in later.
std::vector<PackChunk> chunks_of(const ByteReader& reader, const std::vector<Range>& ranges,
                                 const Layout& layout, std::uint64_t chunks_max) {
  std::uint64_t count = 0;
  for (const Range& range : ranges) count += range.count;
  if (count > chunks_max) {
    reader.fail(fmt::format(
        "it has {}, but only {} of the version's {} are in no other pack: some would be in "
        "two packs",
        count_text(count, "chunk"), chunks_max, layout.chunk_count()));
  }
  reader.expect_room_for(count, kChunkBytesMin);
  std::vector<PackChunk> chunks;
  chunks.reserve(static_cast<std::size_t>(count));
  std::uint64_t first_block = 0;
  for (const Range& range : ranges) {
    for (std::uint32_t i = 0; i < range.count; i++) {
      PackChunk& chunk = chunks.emplace_back();
      chunk.tensor = range.tensor;
      chunk.chunk = range.first + i;
      chunk.first_block = first_block;
      chunk.block_count = block_count_of(layout.tensors()[range.tensor], chunk.chunk);
      first_block += chunk.block_count;
    }
  }
  return chunks;
}

std::vector<std::uint32_t> take_lengths(ByteReader& reader, std::uint64_t count) {
  reader.expect_room_for(count, 3);
  const std::array planes{reader.take(count), reader.take(count), reader.take(count)};
  std::vector<std::uint32_t> lengths(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < lengths.size(); i++) {
    for (std::size_t plane = 0; plane < planes.size(); plane++) {
      lengths[i] |= std::uint32_t{static_cast<unsigned char>(planes[plane][i])} << (8 * plane);
    }
  }
  return lengths;
}

/// Sets the chunks' offsets; their lengths must add up to the data.
void place_chunks(const ByteReader& reader, std::vector<PackChunk>& chunks,
                  const std::vector<std::uint32_t>& lengths, const Layout& layout,
                  std::uint64_t data_size) {
  std::uint64_t offset = 0;
  for (PackChunk& chunk : chunks) {
    const LayoutTensor& tensor = layout.tensors()[chunk.tensor];
    chunk.data_offset_bytes = offset;
    for (std::uint32_t i = 0; i < chunk.block_count; i++) {
      const std::uint32_t length = lengths[static_cast<std::size_t>(chunk.first_block) + i];
      if (length > 1 + block_size_bytes(tensor, chunk.chunk, i)) {
        reader.fail(
            fmt::format("block {} of chunk {} of tensor '{}' has {} coded bytes, more than "
                        "plain ones",
                        i, chunk.chunk, escape_name(tensor.name), length));
      }
      chunk.data_size_bytes += length;
    }
    offset += chunk.data_size_bytes;
  }
  if (offset != data_size) {
    reader.fail(fmt::format("the blocks take {} bytes, but the pack has {}", offset, data_size));
  }
}

void take_hashes(ByteReader& reader, std::vector<PackChunk>& chunks, const Layout& layout) {
  for (PackChunk& chunk : chunks) chunk.hash = reader.take_le<std::uint64_t>();
  for (PackChunk& chunk : chunks) {
    const LayoutTensor& tensor = layout.tensors()[chunk.tensor];
    const std::uint64_t changed = reader.take_varint();
    const std::uint64_t elements =
        tensor.chunk_size_bytes(chunk.chunk) / kernels::width_bytes(tensor.kind);
    if (changed > elements) {
      reader.fail(fmt::format("{} of {} elements changed in chunk {} of tensor '{}'", changed,
                              elements, chunk.chunk, escape_name(tensor.name)));
    }
    chunk.changed = static_cast<std::uint32_t>(changed);
  }
}

std::vector<Sha256> take_pieces(ByteReader& reader, std::uint64_t data_size) {
  const std::uint64_t count = piece_count_of(data_size);
  reader.expect_room_for(count, sizeof(Sha256));
  std::vector<Sha256> pieces(static_cast<std::size_t>(count));
  for (Sha256& piece : pieces) {
    const auto bytes = as_bytes(reader.take(piece.size()));
    std::copy(bytes.begin(), bytes.end(), piece.begin());
  }
  return pieces;
}

}  // namespace

PackRoom::PackRoom(const Layout& layout, MemoryBudget& budget)
    : budget_(budget), chunks_left_(layout.chunk_count()) {}

std::uint64_t PackIndex::head_bytes_max(const Layout& layout, std::uint64_t pack_size) {
  const std::uint64_t index = index_bytes_max(layout, layout.chunk_count(), pack_size);
  return sizeof(std::uint64_t) + kPackHeaderBytesMax + compressed_bytes_max(index);
}

std::shared_ptr<const PackIndex> PackIndex::parse(std::string_view head, std::uint64_t pack_size,
                                                  const Layout& layout, std::string_view what) {
  MemoryBudget budget;
  PackRoom room(layout, budget);
  return parse(head, pack_size, layout, what, room);
}

std::shared_ptr<const PackIndex> PackIndex::parse(std::string_view head, std::uint64_t pack_size,
                                                  const Layout& layout, std::string_view what,
                                                  PackRoom& room) {
  const Parts parts = parse_head(head, pack_size, what);
  const std::lock_guard lock(room.mutex_);
  const std::uint64_t chunks_max = room.chunks_left_;
  const std::uint64_t index_max = index_bytes_max(layout, chunks_max, parts.data_size);
  if (parts.index_size > index_max) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format(
            "{}: an index of {} bytes is too large: with {} chunks that are in no other pack, "
            "this layout allows at most {} bytes",
            what, parts.index_size, chunks_max, index_max));
  }
  room.budget_.check(reading_bytes_max(parts.index_size, chunks_max), what);
  const std::string index = decompress(parts.index, parts.index_size, what);
  ByteReader reader(index, what);
  const std::shared_ptr<PackIndex> pack(new PackIndex);
  pack->data_offset_ = head.size();
  pack->data_size_ = parts.data_size;
  pack->chunks_ = chunks_of(reader, take_ranges(reader, layout, chunks_max), layout, chunks_max);
  const PackChunk& last = pack->chunks_.back();
  pack->block_lengths_ = take_lengths(reader, last.first_block + last.block_count);
  place_chunks(reader, pack->chunks_, pack->block_lengths_, layout, parts.data_size);
  take_hashes(reader, pack->chunks_, layout);
  pack->pieces_ = take_pieces(reader, parts.data_size);
  reader.expect_end();
  room.budget_.take(pack->memory_bytes(), what);
  room.chunks_left_ -= pack->chunks_.size();
  return pack;
}

std::uint64_t PackIndex::memory_bytes() const noexcept {
  return std::span(chunks_).size_bytes() + std::span(block_lengths_).size_bytes() +
         std::span(pieces_).size_bytes();
}

std::span<const std::uint32_t> PackIndex::block_lengths(const PackChunk& chunk) const noexcept {
  return std::span(block_lengths_)
      .subspan(static_cast<std::size_t>(chunk.first_block), chunk.block_count);
}

struct PackWriter::State {
  explicit State(const Layout& of) : layout(of) {}

  /// Hashes the data piece by piece.
  void hash_data(std::span<const std::byte> data);
  void end_piece();
  [[nodiscard]] std::string index(std::uint32_t first_tensor) const;

  const Layout& layout;
  std::vector<Range> ranges;
  std::array<std::string, 3> lengths;  // byte 0, 1, 2 of each
  std::string hashes, changed;
  std::string pieces;
  Sha256Stream piece;
  std::uint64_t piece_size = 0;
  std::uint64_t data_size = 0;
};

void PackWriter::State::hash_data(std::span<const std::byte> data) {
  data_size += data.size();
  while (!data.empty()) {
    const auto part = data.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(data.size(), kPieceBytes - piece_size)));
    piece.update(part);
    piece_size += part.size();
    data = data.subspan(part.size());
    if (piece_size == kPieceBytes) end_piece();
  }
}

void PackWriter::State::end_piece() {
  pieces += as_text(piece.finish());
  piece = Sha256Stream();
  piece_size = 0;
}

std::string PackWriter::State::index(std::uint32_t first_tensor) const {
  std::string bytes;
  append_varint(bytes, ranges.size());
  for (const Range& range : ranges) {
    append_varint(bytes, first_tensor + range.tensor);
    append_varint(bytes, range.first);
    append_varint(bytes, range.count);
  }
  return bytes + lengths[0] + lengths[1] + lengths[2] + hashes + changed + pieces;
}

PackWriter::PackWriter(const Layout& layout) : state_(std::make_unique<State>(layout)) {}
PackWriter::~PackWriter() = default;
PackWriter::PackWriter(PackWriter&&) noexcept = default;
PackWriter& PackWriter::operator=(PackWriter&&) noexcept = default;

void PackWriter::add(std::uint32_t tensor, std::uint32_t chunk,
                     std::span<const std::uint32_t> block_lengths, std::uint64_t hash,
                     std::uint32_t changed, std::span<const std::byte> data) {
  State& state = *state_;
  assert(tensor < state.layout.tensors().size());
  assert(chunk < state.layout.tensors()[tensor].chunk_count);
  assert(block_lengths.size() == block_count_of(state.layout.tensors()[tensor], chunk));
  const bool continues = !state.ranges.empty() && state.ranges.back().tensor == tensor &&
                         state.ranges.back().end() == chunk;
  assert(continues || state.ranges.empty() || state.ranges.back().tensor < tensor ||
         (state.ranges.back().tensor == tensor && state.ranges.back().end() < chunk));
  if (continues) {
    state.ranges.back().count++;
  } else {
    state.ranges.push_back({tensor, chunk, 1});
  }
  for (const std::uint32_t length : block_lengths) {
    for (std::size_t plane = 0; plane < state.lengths.size(); plane++) {
      state.lengths[plane].push_back(static_cast<char>((length >> (8 * plane)) & 0xFF));
    }
  }
  append_le(state.hashes, hash);
  append_varint(state.changed, changed);
  state.hash_data(data);
}

std::string PackWriter::finish() {
  assert(!state_->ranges.empty());
  if (state_->piece_size != 0) state_->end_piece();
  return head(0);
}

std::string PackWriter::head(std::uint32_t first_tensor) const {
  const std::string index = state_->index(first_tensor);
  const std::string frame = compress(index);
  const std::uint64_t end = frame.size() + state_->data_size;
  std::string json = fmt::format(R"({{"__metadata__":{{"format":"{}","index_size":"{}"}},)"
                                 R"("index":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},)"
                                 R"("data":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                 kFormatName, index.size(), frame.size(), frame.size(),
                                 state_->data_size, frame.size(), end);
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string head;
  append_le(head, std::uint64_t{json.size()});
  return head + json + frame;
}

std::vector<Sha256> PackWriter::pieces() const {
  std::vector<Sha256> pieces(state_->pieces.size() / sizeof(Sha256));
  if (!pieces.empty()) std::memcpy(pieces.data(), state_->pieces.data(), state_->pieces.size());
  return pieces;
}

}  // namespace weightfs
