#include "store/base/byte_reader.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using namespace std::string_view_literals;

TEST(ByteReader, TakesIntegersAndBytesInOrder) {
  ByteReader reader("\x01\x02\x03\x04xyz"sv, "bytes");
  EXPECT_EQ(reader.take_le<std::uint8_t>(), 1U);
  EXPECT_EQ(reader.take_le<std::uint16_t>(), 0x0302U);
  EXPECT_EQ(reader.take_varint(), 4U);
  EXPECT_EQ(reader.take(2), "xy");
  EXPECT_EQ(reader.remaining(), 1U);
  EXPECT_THROW(reader.expect_end(), Error);
  EXPECT_THROW(reader.take(2), Error);
  EXPECT_THROW(reader.take(UINT64_MAX), Error);
  EXPECT_EQ(reader.take(1), "z");
  reader.expect_end();
}

TEST(ByteReader, RefusesToMakeRoomForWhatCannotFollow) {
  const ByteReader reader("123456"sv, "bytes");
  reader.expect_room_for(3, 2);
  EXPECT_THROW(reader.expect_room_for(4, 2), Error);
  EXPECT_THROW(reader.expect_room_for(UINT64_MAX, 2), Error);
  reader.expect_room_for(0, UINT64_MAX);
}

TEST(ByteReader, ReadsTheVarintsThatAreWritten) {
  auto rng = test::make_rng();
  for (unsigned bits = 0; bits <= 64; bits++) {
    const std::uint64_t value = bits == 0 ? 0 : rng() >> (64 - bits);
    std::string bytes;
    append_varint(bytes, value);
    ByteReader reader(bytes, "varint");
    EXPECT_EQ(reader.take_varint(), value);
    reader.expect_end();
    ByteReader cut(std::string_view(bytes).substr(0, bytes.size() - 1), "varint");
    EXPECT_THROW(cut.take_varint(), Error);
  }
}

TEST(ByteReader, RefusesVarintsThatAreNotShortestOrTooLarge) {
  EXPECT_THROW(ByteReader("\x80\x00"sv, "x").take_varint(), Error);
  EXPECT_THROW(ByteReader("\xff\xff\x00"sv, "x").take_varint(), Error);
  EXPECT_THROW(ByteReader("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"sv, "x").take_varint(), Error);
  EXPECT_THROW(ByteReader("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00"sv, "x").take_varint(),
               Error);
  EXPECT_EQ(ByteReader("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"sv, "x").take_varint(),
            UINT64_MAX);
}

TEST(ByteReader, NamesWhatItReads) {
  try {
    ByteReader("", "layouts/abc").take(1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_EQ(std::string(error.what()),
              "layouts/abc: truncated: expected 1 bytes at byte 0, 0 are left");
  }
}

}  // namespace
}  // namespace weightfs
