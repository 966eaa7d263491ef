// Manifest: the small record that makes a version exist.  Writing it is the commit.
//
// It is canonical JSON: keys sorted, no spaces, so its bytes follow from its fields and its SHA-256
// names it.  It carries a SHA-256 of its own fields, so that damage to it is detected; manifests of
// releases before 0.6.0 do not.  Format: docs/FORMAT.md, "Manifests".
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/format/hub_base.hpp"
#include "store/format/object_refs.hpp"

namespace weightfs {

inline constexpr std::uint64_t kManifestBytesMax = 1u << 20;

/// Limit of the object with a snapshot's hashes: 8 bytes per chunk and 32 per piece, each of which
/// has at least 1 MiB, and room for the last ones.
inline constexpr std::uint64_t kHashesBytesMax = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kVersionMax = (std::uint64_t{1} << 36) - 1;  // fits an inode number

/// Feature of a version whose packs hold blocks of mode XR or XS.  Format: docs/FORMAT.md,
/// "Features".
inline constexpr std::string_view kFeatureXr = "xr";

/// Feature of a version whose manifest carries its own SHA-256.  Format: docs/FORMAT.md, "A
/// manifest's own hash".
inline constexpr std::string_view kFeatureManifestSha256 = "manifest-sha256";

/// Feature of a version whose snapshot's files lie on the Hub.  Format: docs/FORMAT.md, "Snapshots
/// on the Hub".
inline constexpr std::string_view kFeatureHubBase = "hub-base";

struct SnapshotRef {
  std::string nonce;
  ObjectRef hashes;  // the object of chunk and piece hashes
  /// Where its files lie; nullopt: in the bucket.  Only with kFeatureHubBase.
  std::optional<HubBase> base = {};
};

struct Manifest {
  std::string repository;     // id
  std::uint64_t version = 0;  // 1, 2, 3, ...
  std::uint64_t parent = 0;   // version - 1; 0 for version 1
  Sha256 parent_sha256{};     // of the parent's manifest; zeros for version 1
  std::int64_t time = 0;      // seconds since 1970; mtime of every file
  std::string tag;            // may be empty
  std::map<std::string, std::string> meta;
  ObjectRef layout;
  std::vector<BlobRef> blobs;           // by path
  Sha256 root{};                        // SHA-256 over all chunk hashes, 8 bytes little-endian each
  std::optional<DeltaRef> delta;        // from the parent
  std::optional<SnapshotRef> snapshot;  // at least one of the two
  /// The newest version before it that has a snapshot; 0: none does; nullopt: not known, as in
  /// versions of releases that did not write it.
  std::optional<std::uint64_t> snapshot_before = {};
  std::string nonce;  // of this publish: settles a lost reply
  /// The features that a reader must know, ascending.
  std::vector<std::string> features{std::string(kFeatureManifestSha256)};
  std::string key_id;     // reserved, empty: docs/FORMAT.md, "Signatures"
  std::string signature;  // reserved, empty

  /// Whether it carries its own SHA-256; if so, parse() has checked it.
  [[nodiscard]] bool carries_hash() const;

  [[nodiscard]] bool has_feature(std::string_view feature) const;
  /// Adds one to `features`, unless it is there.
  void add_feature(std::string_view feature);

  /// Adds its own SHA-256 if `features` has kFeatureManifestSha256.
  /// Throws Error: invalid if a text is not UTF-8, or it all is larger than kManifestBytesMax.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed, not canonical, out of bounds, hostile names, fields that do
  /// not match its own SHA-256), unsupported (newer format, or an unknown required feature), naming
  /// `what`.
  static Manifest parse(std::string_view bytes, std::string_view what);
};

/// SHA-256 over chunk hashes, as Manifest::root.
Sha256 root_of(std::span<const std::uint64_t> chunk_hashes);

}  // namespace weightfs
