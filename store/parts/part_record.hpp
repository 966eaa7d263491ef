// PartRecord: what one host has published of a version that several make together.  It is written
// when all that it names is in the bucket, and fixes what the part has.
//
// Threads: a value.  Format: docs/FORMAT.md, "Parts".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/format/object_refs.hpp"

namespace weightfs {

inline constexpr std::uint64_t kPartRecordBytesMax = 1u << 20;

struct PartRecord {
  std::string repository;  // id
  std::string set;         // PartSet::id
  std::uint64_t version = 0;
  unsigned part = 0, parts = 0;
  Sha256 parent_sha256{};  // of the parent's manifest; zeros for version 1
  std::string tag;
  std::map<std::string, std::string> meta;
  ObjectRef layout, hashes;       // of its own files
  std::vector<BlobRef> blobs;     // by path
  std::optional<DeltaRef> delta;  // its own packs
  bool snapshot = false;          // at least one of the two
  std::vector<std::string> features = {};

  /// What a claim says: the SHA-256 of what the part has.
  [[nodiscard]] Sha256 content() const;

  /// Throws Error: invalid if a text is not UTF-8, or it all is larger than kPartRecordBytesMax.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed, not canonical, out of bounds, hostile names, fields that do
  /// not match its own SHA-256), unsupported (newer format, or an unknown required feature), naming
  /// `what`.
  static PartRecord parse(std::string_view bytes, std::string_view what);
};

}  // namespace weightfs
