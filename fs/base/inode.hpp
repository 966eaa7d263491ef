// Inode numbers: 4 bits kind, 36 bits version, 24 bits file.  They follow from the tree alone: they
// are the same after a restart and on every host, and nothing has to be remembered.
//
// The bytes behind a number never change.  Exceptions are symlinks and the files of .weightfs,
// which are never cached, and files that trainers write (kind `staging`), whose numbers are never
// reused.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "store/base/delta_id.hpp"
#include "store/staging/staging.hpp"

namespace weightfs::fs {

using Inode = std::uint64_t;

enum class InodeKind : std::uint8_t {
  fixed = 0,    // `file`: see Fixed
  version = 1,  // a directory or file of a version; `file`: its CatalogEntry number
  tag = 2,      // the symlink of the tag of `version`
  staging = 3,  // what trainers write; the other 60 bits are a StagingId
  delta = 4,    // a change that leads to `version`, as a file; `file`: see make_delta_inode()
  delta_with_old = 5,  // likewise, with the old values
};

/// The fixed part of the tree.  FUSE requires 1 for the root.
enum class Fixed : std::uint32_t {
  root = 1,
  latest = 2,
  versions = 3,
  tags = 4,
  control = 5,
  status = 6,
  staging = 7,  // 7 to 9 exist only on a writer's mount
  publish = 8,
  last_error = 9,  // .weightfs/last_error
  deltas = 10,
  advice = 11,  // .weightfs/advice
  health = 12   // .weightfs/health
};

struct InodeParts {
  InodeKind kind{};
  std::uint64_t version = 0;
  std::uint32_t file = 0;
};

inline constexpr unsigned kFileBits = 24;
inline constexpr unsigned kVersionBits = 36;
inline constexpr std::uint32_t kEntriesMax = (1u << kFileBits) - 1;

constexpr Inode make_inode(InodeParts parts) noexcept {
  return static_cast<Inode>(parts.kind) << (kFileBits + kVersionBits) | parts.version << kFileBits |
         parts.file;
}
constexpr Inode make_inode(Fixed fixed) noexcept { return static_cast<Inode>(fixed); }

/// A file whose text is generated on open.
constexpr bool is_text(Inode inode) noexcept {
  return inode == make_inode(Fixed::status) || inode == make_inode(Fixed::last_error) ||
         inode == make_inode(Fixed::advice) || inode == make_inode(Fixed::health);
}

constexpr InodeParts parts_of(Inode inode) noexcept {
  return {static_cast<InodeKind>(inode >> (kFileBits + kVersionBits)),
          inode >> kFileBits & ((std::uint64_t{1} << kVersionBits) - 1),
          static_cast<std::uint32_t>(inode & kEntriesMax)};
}

/// Deltas of versions that are farther apart have no inode number.
inline constexpr std::uint64_t kDeltaDistanceMax = (std::uint64_t{1} << (kFileBits - 1)) - 1;

/// `file` is 0 for the change from the version before, else the distance from the one to the other,
/// modulo 2^24.
///
/// Requires: two versions, at most kDeltaDistanceMax apart.
constexpr Inode make_delta_inode(const DeltaId& id) noexcept {
  const VersionPair versions = id.versions;
  const auto distance = static_cast<std::uint32_t>(versions.to - versions.from) & kEntriesMax;
  return make_inode({id.with_old ? InodeKind::delta_with_old : InodeKind::delta, versions.to,
                     versions.is_step() ? 0 : distance});
}

/// Returns: nullopt if it is no delta's.
constexpr std::optional<DeltaId> find_delta_id(Inode inode) noexcept {
  const InodeParts parts = parts_of(inode);
  const bool with_old = parts.kind == InodeKind::delta_with_old;
  if (parts.kind != InodeKind::delta && !with_old) return std::nullopt;
  const std::uint64_t distance = parts.file;
  if (distance == 0) return DeltaId{step_to(parts.version), with_old};
  if (distance == 1) return std::nullopt;  // a step has one number
  if (distance <= kDeltaDistanceMax) {
    return DeltaId{{parts.version - distance, parts.version}, with_old};
  }
  return DeltaId{{parts.version + (kEntriesMax + std::uint64_t{1} - distance), parts.version},
                 with_old};
}

constexpr Inode make_staging_inode(StagingId id) noexcept {
  if (id == kStagingRoot) return make_inode(Fixed::staging);
  if (id == kPublishRoot) return make_inode(Fixed::publish);
  return static_cast<Inode>(InodeKind::staging) << (kFileBits + kVersionBits) | id;
}

/// Returns: nullopt if the inode is in neither staging nor publish.
constexpr std::optional<StagingId> find_staging_id(Inode inode) noexcept {
  if (inode == make_inode(Fixed::staging)) return kStagingRoot;
  if (inode == make_inode(Fixed::publish)) return kPublishRoot;
  if (parts_of(inode).kind != InodeKind::staging) return std::nullopt;
  return inode & ((std::uint64_t{1} << (kFileBits + kVersionBits)) - 1);
}

}  // namespace weightfs::fs
