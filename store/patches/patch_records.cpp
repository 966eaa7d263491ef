#include "store/patches/patch_records.hpp"

#include <algorithm>

#include "store/base/byte_reader.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

constexpr std::uint8_t kRecordForm = 1;
constexpr std::uint8_t kPartState = 0, kCompleteState = 1;

void append_sha256(std::string& to, const Sha256& hash) { to += as_text(hash); }

Sha256 take_sha256(ByteReader& reader) {
  Sha256 hash;
  const auto bytes = as_bytes(reader.take(hash.size()));
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

SpanRecord read_span_record(std::string_view key, std::string_view value) {
  ByteReader name(key, "a span's key"), reader(value, "a span's record");
  SpanRecord record;
  SpanEnds& ends = record.info.ends;
  if (name.take(kSpanPrefix.size()) != kSpanPrefix) name.fail("another prefix");
  const auto level = name.take_le<std::uint8_t>();
  if (level > static_cast<std::uint8_t>(PatchLevel::cumulative)) name.fail("an unknown level");
  ends.level = static_cast<PatchLevel>(level);
  ends.last.version = load_be(name.take(8));
  name.expect_end();

  if (reader.take_le<std::uint8_t>() != kRecordForm) reader.fail("another form");
  const auto state = reader.take_le<std::uint8_t>();
  if (state > kCompleteState) reader.fail("an unknown state");
  ends.first.version = reader.take_le<std::uint64_t>();
  if (ends.first.version >= ends.last.version) reader.fail("it does not lead forwards");
  ends.first.manifest = take_sha256(reader);
  ends.last.manifest = take_sha256(reader);
  ends.table = take_sha256(reader);
  record.info.chunk_count = reader.take_le<std::uint64_t>();
  record.info.size_bytes = reader.take_le<std::uint64_t>();
  const auto tensor = reader.take_le<std::uint32_t>();
  const auto chunk = reader.take_le<std::uint32_t>();
  if (state == kPartState) record.next = ChunkPlace{tensor, chunk};
  reader.expect_end();
  return record;
}

}  // namespace

std::string span_key(PatchLevel level, std::uint64_t last_version) {
  std::string key(1, static_cast<char>(level));
  append_be64(key, last_version);
  return key;
}

std::string patch_key(const PatchSpan& span, ChunkPlace place) {
  std::string key = span_key(span.level, span.last);
  append_be32(key, place.tensor);
  append_be32(key, place.chunk);
  return key;
}

std::string key_after(std::string_view prefix) {
  std::string key(prefix);
  while (key.ends_with('\xFF')) key.pop_back();
  if (!key.empty()) ++key.back();
  return key;
}

std::optional<ChunkPlace> place_of_key(std::string_view key, const PatchSpan& span) {
  if (key.size() != kSpanKeyBytes + 8) return std::nullopt;
  if (key.substr(0, kSpanKeyBytes) != span_key(span.level, span.last)) return std::nullopt;
  return ChunkPlace{static_cast<std::uint32_t>(load_be(key.substr(kSpanKeyBytes, 4))),
                    static_cast<std::uint32_t>(load_be(key.substr(kSpanKeyBytes + 4)))};
}

std::string span_record_key(const PatchSpan& span) {
  return std::string(kSpanPrefix) + span_key(span.level, span.last);
}

std::string encode_span_record(const SpanRecord& record) {
  const SpanEnds& ends = record.info.ends;
  std::string value;
  append_le(value, kRecordForm);
  append_le(value, record.next ? kPartState : kCompleteState);
  append_le(value, ends.first.version);
  append_sha256(value, ends.first.manifest);
  append_sha256(value, ends.last.manifest);
  append_sha256(value, ends.table);
  append_le(value, record.info.chunk_count);
  append_le(value, record.info.size_bytes);
  const ChunkPlace next = record.next.value_or(ChunkPlace{});
  append_le(value, next.tensor);
  append_le(value, next.chunk);
  return value;
}

std::optional<SpanRecord> decode_span_record(std::string_view key, std::string_view value) {
  try {
    return read_span_record(key, value);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace weightfs
