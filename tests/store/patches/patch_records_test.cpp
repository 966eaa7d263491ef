#include "store/patches/patch_records.hpp"

#include <gtest/gtest.h>

#include "tests/store/patches/patch_fixture.hpp"

namespace weightfs {
namespace {

using test::ends_of;

TEST(PatchRecords, KeysSortBySpanAndPlace) {
  std::string last;
  for (const PatchLevel level : {PatchLevel::one, PatchLevel::cumulative}) {
    for (const std::uint64_t version : {1ull, 255ull, 256ull, 1ull << 35}) {
      for (const ChunkPlace place :
           {ChunkPlace{0, 0}, ChunkPlace{0, 256}, ChunkPlace{1u << 31, 1}}) {
        const PatchSpan span{level, 0, version};
        const std::string key = patch_key(span, place);
        EXPECT_LT(last, key);
        EXPECT_EQ(place_of_key(key, span), place);
        EXPECT_EQ(place_of_key(key, {level, 0, version + 1}), std::nullopt);
        EXPECT_LT(key, key_after(span_key(level, version)));
        last = key;
      }
    }
  }
  EXPECT_EQ(key_after("a\xFF\xFF"), "b");
  EXPECT_EQ(key_after("\xFF"), "");
}

TEST(PatchRecords, ARecordIsReadAsItWasWritten) {
  SpanRecord record{{ends_of(PatchLevel::sixty_four, 64, 128), 12, 345}, std::nullopt};
  const std::string key = span_record_key(record.info.span());
  EXPECT_EQ(decode_span_record(key, encode_span_record(record)), record);
  record.next = ChunkPlace{4, 5};
  EXPECT_EQ(decode_span_record(key, encode_span_record(record)), record);
  EXPECT_EQ(decode_span_record(key + "x", encode_span_record(record)), std::nullopt);
  EXPECT_EQ(decode_span_record("spans/\x09" + key.substr(7), encode_span_record(record)),
            std::nullopt);
  record.info.ends.first.version = 128;
  EXPECT_EQ(decode_span_record(key, encode_span_record(record)), std::nullopt);
}

}  // namespace
}  // namespace weightfs
