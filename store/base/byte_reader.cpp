#include "store/base/byte_reader.hpp"

#include <fmt/format.h>

#include "store/base/error.hpp"

namespace weightfs {

std::string_view ByteReader::take(std::uint64_t size_bytes) {
  if (size_bytes > remaining()) {
    fail(fmt::format("truncated: expected {} bytes at byte {}, {} are left", size_bytes, offset_,
                     remaining()));
  }
  const std::string_view taken = bytes_.substr(offset_, static_cast<std::size_t>(size_bytes));
  offset_ += taken.size();
  return taken;
}

std::uint64_t ByteReader::take_varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint64_t>(take_le<std::uint8_t>());
    if (shift == 63 && byte > 1) break;
    if (shift > 0 && byte == 0) fail(fmt::format("the number before byte {} is padded", offset_));
    value |= (byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail(fmt::format("the number before byte {} does not fit 64 bits", offset_));
}

void ByteReader::expect_room_for(std::uint64_t count, std::uint64_t size_bytes) const {
  if (count <= remaining() / size_bytes) return;
  fail(fmt::format("truncated: {} times {} bytes expected at byte {}, {} are left", count,
                   size_bytes, offset_, remaining()));
}

void ByteReader::expect_end() const {
  if (remaining() != 0) fail(fmt::format("{} bytes after the end", remaining()));
}

void ByteReader::fail(const std::string& message) const {
  throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what_, message));
}

void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(0x80 | (value & 0x7F)));
  to.push_back(static_cast<char>(value));
}

}  // namespace weightfs
