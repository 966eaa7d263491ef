// SkipRecord: makes a skip delta exist: the change from a version to a later one over several.
//
//     versions    56   57   58   ...   64
//     deltas       ---> ---> ... ----->          one a version, named by its manifest
//     skip         --------------------->        64 from 56
//
// Skips shorten the way of hosts that are far behind.  They are never needed for correctness: a
// record that is damaged, or whose packs are gone, is as good as none.  The record names both
// manifests, so it holds for one history only; what it leads to must have the root of `to`.
//
// Both versions have one tensor table (store/patches/tensor_table_id.hpp).  Packs are coded as
// those of a delta, against the bytes of `from`, with the layout of `to`.
//
// Threads: a value.  Format: docs/FORMAT.md, "Skip deltas".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/manifest.hpp"

namespace weightfs {

inline constexpr std::uint64_t kSkipRecordBytesMax = 1u << 20;

struct SkipRecord {
  std::string repository;                   // id
  VersionPair versions;                     // from + 2 <= to
  Sha256 from_sha256{}, to_sha256{};        // of their manifests
  DeltaRef delta;                           // packs may be none: nothing changed
  std::string nonce;                        // of the attempt that made it
  std::vector<std::string> features;        // kFeatureXr if a block needs it, else none
  std::string key_id = {}, signature = {};  // reserved, empty

  /// Throws Error: invalid if it is larger than kSkipRecordBytesMax.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed, not canonical, out of bounds, fields that do not match its
  /// own SHA-256), unsupported (newer format, or an unknown required feature), naming `what`.
  static SkipRecord parse(std::string_view bytes, std::string_view what);
};

}  // namespace weightfs
