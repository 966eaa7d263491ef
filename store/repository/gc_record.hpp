// GcRecord: one record of the log of retired objects.  Only what a record names is ever removed.
//
// Threads: a value.  Format: docs/FORMAT.md, "Retired objects".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/base/version_pair.hpp"
#include "store/repository/version_ranges.hpp"

namespace weightfs {

inline constexpr std::uint64_t kGcRecordBytesMax = 8u << 20;
inline constexpr std::uint64_t kGraceSecondsMax = 10ull * 366 * 24 * 3600;

/// What a new record names at most, so that it stays below kGcRecordBytesMax; more goes into
/// another one.
inline constexpr std::uint64_t kGcRecordKeyBytes = 4u << 20;

/// Skip deltas, and the SHA-256 of their records.
using NeededSkips = std::map<VersionPair, Sha256>;

struct GcRecord {
  std::string repository;
  std::uint64_t number = 0;
  Sha256 previous_sha256{};
  std::uint64_t head = 0;  // the newest version that it was computed from
  std::int64_t time = 0;   // seconds since 1970, by the bucket's clock; informational
  std::uint64_t grace_s = 0;
  VersionRanges deltas, snapshots;   // retired by this record
  std::set<VersionPair> skips;       // likewise
  NeededSkips needs;                 // from this record on
  VersionRanges versions;            // can be built before it, and not after it
  std::vector<std::string> objects;  // keys to be removed, ascending
  std::string nonce;

  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed, not canonical, a key that no record may name, fields that do
  /// not match its own SHA-256), unsupported (newer), naming `what`.
  static GcRecord parse(std::string_view bytes, std::string_view what);
};

/// A key below packs/ or snapshots/ that may be an object of a version.
struct VersionKey {
  enum class Kind { pack, snapshot };
  Kind kind{};
  std::uint64_t version = 0;
  std::string_view name;   // "<nonce>-<k>" of a pack, "<nonce>" of a snapshot
  bool is_hashes = false;  // a snapshot's .hashes
};

/// nullopt: it has none of the forms of docs/FORMAT.md.  Points into `key`.
std::optional<VersionKey> find_version_key(std::string_view key);

}  // namespace weightfs
