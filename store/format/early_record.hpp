// EarlyRecord: which packs the next version will probably have.  A writer's mount publishes it
// while a trainer still saves; a reader may begin with these packs before the manifest exists.
//
// It is a hint: nothing in it is believed.  What is made by it is used only if the manifest leads
// to the same bytes by the same packs.
//
// Threads: a value.  Format: docs/FORMAT.md, "Early records".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/format/object_refs.hpp"

namespace weightfs {

inline constexpr std::uint64_t kEarlyRecordBytesMax = 4u << 20;

/// Smaller files are not coded early.
inline constexpr std::uint64_t kEarlyBytesMin = 1u << 20;

struct EarlyRecord {
  /// A file that is coded and uploaded, or its beginning while the rest is not.  It has the
  /// tensors of the parent's file of this path.
  struct File {
    std::string path;  // in the checkpoint
    DeltaRef delta;    // its packs have chunks of this file alone; none: nothing changed in it
    /// The packs have what changed in so many first bytes of the parent's file, which end where a
    /// chunk ends; nullopt: in all of it.
    std::optional<std::uint64_t> coded_bytes = {};

    bool operator==(const File&) const = default;
  };

  std::string repository;     // id
  std::uint64_t version = 0;  // that comes next
  Sha256 parent_sha256{};     // of the manifest of version - 1
  std::vector<File> files;    // ascending by path; at least one
  std::vector<std::string> features = {};

  /// Throws Error: invalid if it would be larger than kEarlyRecordBytesMax.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed, not canonical, out of bounds, hostile names, fields that do
  /// not match its own SHA-256), unsupported (newer format, or an unknown required feature), naming
  /// `what`.
  static EarlyRecord parse(std::string_view bytes, std::string_view what);

  bool operator==(const EarlyRecord&) const = default;
};

}  // namespace weightfs
