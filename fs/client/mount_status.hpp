// Mount status: a mount's status, read from outside.
//
// A daemon that is stopped or stuck never answers, and a reader of its files waits for ever.  So a
// child does the reading; if it takes too long it is left behind.
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

/// The text of a file of at most 16 MiB.
/// Throws Error: timed_out; the errno of open or read.
std::string read_file_within(const std::filesystem::path& path, std::chrono::milliseconds timeout);

/// The JSON text of MOUNT/.weightfs/status.
/// Throws Error: unavailable (the daemon is gone: says how to mount again), timed_out (it does not
/// answer), corrupt (the file is something else), permission (another user's own mount or directory
/// of a sync: says as whom to run this).
std::string read_status(const MountInfo& mount, std::chrono::milliseconds timeout = kStatusTimeout);

/// The same; root may also look into another user's own mount, in the name of that user, and
/// everybody into a directory.  What is there may say anything that this user likes: show it, and
/// do nothing that it says.
std::string read_status_of_other(const MountInfo& mount,
                                 std::chrono::milliseconds timeout = kStatusTimeout);

/// The weightfs mount at `path`.
/// Throws Error: not_found, saying what is there instead.
MountInfo get_mount(const std::filesystem::path& path);

/// MountInfo::type of a directory made by `weightfs sync`.  Its source is the URL; it has no
/// device.
inline constexpr std::string_view kDirectoryType = "directory";

/// The weightfs mount, or the directory of a sync, at `path`.
/// Throws Error: not_found, saying what is there instead.
MountInfo get_served(const std::filesystem::path& path);

/// Whether a running process keeps a sync's directory up to date.
bool is_synced(const std::filesystem::path& path);

/// The mount or directory of a sync that `path` is, or is in; nullopt if none.  `path` need not
/// exist.
std::optional<MountInfo> find_served_around(std::filesystem::path path);

/// The URL of a target: given as a URL or a path, or followed by the weightfs mount or the
/// directory of a sync at a path.
struct Target {
  std::string url;                    // canonical
  std::filesystem::path mount_point;  // or a sync's directory; empty: neither
  BucketOptions bucket;               // as its daemon was given
  std::uint64_t latest = 0;           // what `latest` shows there; 0: none yet, or neither
  std::string repository = {};        // whose versions are shown there; empty: unknown, or neither
};
Target resolve_target(const std::string& text);

}  // namespace weightfs::fs
