// Mount status: what a mount of this host says about itself, read from outside.
//
// A daemon that is stopped or stuck never answers, and a reader of its files then waits for ever.
// So the reading is done by a child, which is left behind if it takes too long.
//
// Threads: pure functions of the system's state.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "fs/mount/mount_info.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

inline constexpr std::chrono::seconds kStatusTimeout{5};

/// A file's text, of at most 16 MiB.
/// Throws Error: timed_out; what the errno of open or read means.
std::string read_file_within(const std::filesystem::path& path, std::chrono::milliseconds timeout);

/// The JSON text of MOUNT/.weightfs/status.
/// Throws Error: unavailable (the daemon is gone: says how to mount again), timed_out (it does not
/// answer), corrupt (something else lies there).
std::string read_status(const MountInfo& mount, std::chrono::milliseconds timeout = kStatusTimeout);

/// The weightfs mount at `path`.
/// Throws Error: not_found, saying what is there instead.
MountInfo get_mount(const std::filesystem::path& path);

/// MountInfo::type of a directory that `weightfs sync` made.  Its source is its URL; it has no
/// device.
inline constexpr std::string_view kDirectoryType = "directory";

/// The weightfs mount, or the directory of a sync, at `path`.
/// Throws Error: not_found, saying what is there instead.
MountInfo get_served(const std::filesystem::path& path);

/// Whether a process keeps the directory of a sync up to date.
bool is_synced(const std::filesystem::path& path);

/// What `path` lies in, or is, of these; nullopt if in none.  It need not exist.
std::optional<MountInfo> find_served_around(std::filesystem::path path);

/// A URL or a path as it is; for a path that is a weightfs mount, or the directory of a sync, the
/// URL that it follows.
struct Target {
  std::string url;                    // canonical
  std::filesystem::path mount_point;  // or directory of a sync; empty: the target is neither
  BucketOptions bucket;               // that its daemon was given
  std::uint64_t latest = 0;           // what `latest` is there; 0: none yet, or it is neither
};
Target resolve_target(const std::string& text);

}  // namespace weightfs::fs
