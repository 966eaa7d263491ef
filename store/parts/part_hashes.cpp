#include "store/parts/part_hashes.hpp"

#include <algorithm>
#include <vector>

#include "store/base/byte_reader.hpp"
#include "store/base/bytes.hpp"
#include "store/format/pack.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kPartHashesMagic = "WFHASHES";

}  // namespace

std::string serialize_part_hashes(const SnapshotHashes& hashes, bool with_pieces) {
  std::string bytes(kPartHashesMagic);
  for (const std::uint64_t hash : hashes.chunks) append_le(bytes, hash);
  if (!with_pieces) return bytes;
  for (const std::vector<Sha256>& pieces : hashes.pieces) {
    for (const Sha256& piece : pieces) bytes += as_text(piece);
  }
  return bytes;
}

std::uint64_t part_hashes_size(const Layout& layout, bool with_pieces) noexcept {
  std::uint64_t size = kPartHashesMagic.size() + sizeof(std::uint64_t) * layout.chunk_count();
  if (!with_pieces) return size;
  for (const LayoutFile& file : layout.files()) {
    size += sizeof(Sha256) * piece_count(file.size_bytes);
  }
  return size;
}

SnapshotHashes parse_part_hashes(std::string_view bytes, const Layout& layout, bool with_pieces,
                                 std::string_view what) {
  ByteReader reader(bytes, what);
  if (bytes.size() != part_hashes_size(layout, with_pieces) ||
      reader.take(kPartHashesMagic.size()) != kPartHashesMagic) {
    reader.fail("these are not the hashes of the part's layout");
  }
  SnapshotHashes hashes;
  hashes.chunks.resize(layout.chunk_count());
  for (std::uint64_t& hash : hashes.chunks) hash = reader.take_le<std::uint64_t>();
  if (!with_pieces) return hashes;
  for (const LayoutFile& file : layout.files()) {
    std::vector<Sha256>& pieces = hashes.pieces.emplace_back(piece_count(file.size_bytes));
    for (Sha256& piece : pieces) {
      const auto taken = as_bytes(reader.take(piece.size()));
      std::ranges::copy(taken, piece.begin());
    }
  }
  reader.expect_end();
  return hashes;
}

}  // namespace weightfs
