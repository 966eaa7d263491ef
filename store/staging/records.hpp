// Records of staging: how inodes and names are encoded in the families `inodes` and `names`.
//
// Format: store/database/column_families.hpp.  Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "store/staging/types.hpp"

namespace weightfs {

/// The recorded attributes of an inode.
struct StagingRecord {
  mode_t mode = 0;  // including the type
  uid_t uid = 0;
  gid_t gid = 0;
  timespec atime{}, mtime{}, ctime{};  // of directories and symlinks
  std::string target;                  // of symlinks
  bool is_lost = false;                // of a file: some of its bytes may not be on the disk
};

std::string inode_key(StagingId id);
std::string encode(const StagingRecord& record);
/// nullopt if it is not a result of encode().
std::optional<StagingRecord> decode_inode(std::string_view value);

std::string name_key(StagingId directory, std::string_view name);
struct StagingNameRecord {
  StagingId directory = 0;
  std::string name;
  StagingId id = 0;
};
std::optional<StagingNameRecord> decode_name(std::string_view key, std::string_view value);

/// Whether this may be the name of an entry: 1 to kNameBytesMax bytes, without '/' and NUL, and not
/// "." or "..".
bool is_entry_name(std::string_view name) noexcept;

}  // namespace weightfs
