// PatchRecords: keys of patches, and keys and values of the records of spans.
//
// Format: docs/FORMAT.md, "Patches of a store".
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/patches/patch_span.hpp"

namespace weightfs {

inline constexpr std::string_view kSpanPrefix = "spans/";  // of the keys of records

/// The start of the keys of all patches of a span: level and last version.
inline constexpr std::size_t kSpanKeyBytes = 9;
std::string span_key(PatchLevel level, std::uint64_t last_version);
std::string patch_key(const PatchSpan& span, ChunkPlace place);

/// The first key above all those that start with `prefix`; empty if there is none.
std::string key_after(std::string_view prefix);

/// The place in a key of the span; nullopt if it is not one.
std::optional<ChunkPlace> place_of_key(std::string_view key, const PatchSpan& span);

/// What a record says.
struct SpanRecord {
  SpanInfo info;
  std::optional<ChunkPlace> next;  // a part: places below have their patches

  bool operator==(const SpanRecord&) const = default;
};

std::string span_record_key(const PatchSpan& span);
std::string encode_span_record(const SpanRecord& record);

/// `key`: with kSpanPrefix.  nullopt if key or value are malformed or of another release.
std::optional<SpanRecord> decode_span_record(std::string_view key, std::string_view value);

}  // namespace weightfs
