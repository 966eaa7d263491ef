// Mount record: what is left to know of a mount when its daemon does not say it any more: the
// command that makes it again, and the socket at which it listened.
//
// One JSON file for each mount point, beside the control sockets (fs/control/server.hpp):
//
//     /run/weightfs/<16 hex digits of the SHA-256 of the mount point>.mount
//
// 0600: what somebody gave a hook on the command line is nobody else's.  It goes with the mount;
// what a killed daemon left is replaced by the next mount, or removed with the socket by `umount`.
//
// Threads: pure functions of the system's state; a MountRecordFile belongs to its owner.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

struct MountRecord {
  std::filesystem::path mount_point;  // canonical
  int pid = 0;
  std::string command;            // a line for a shell
  std::filesystem::path control;  // the socket; empty: there is none
};

/// nullopt if there is none, or it is not this user's to read.
std::optional<MountRecord> find_mount_record(const std::filesystem::path& mount_point);

/// Removes the record of a mount that is no more, and the socket if nobody listens there.
void remove_mount_record(const std::filesystem::path& mount_point) noexcept;

/// The record of a living mount.
class MountRecordFile {
 public:
  /// Writes it, and removes what other daemons left that were killed.  Where it cannot be written
  /// the log says so; the mount goes on without.
  explicit MountRecordFile(MountRecord record) noexcept;
  ~MountRecordFile();  // removes it, if it is still this one
  MountRecordFile(const MountRecordFile&) = delete;
  MountRecordFile& operator=(const MountRecordFile&) = delete;

 private:
  MountRecord record_;
};

/// The command that makes a mount again: the one that made it, else what is known of it.
std::string mount_again_command(const MountInfo& mount);

/// The same for `sync`, whose command lies in DIR/.weightfs/command, 0600, also when it has ended.
/// A command that cannot be written is a warning in the log.
std::string sync_again_command(const MountInfo& directory);
void write_sync_command(const std::filesystem::path& directory,
                        const std::string& command) noexcept;

/// "weightfs mount URL DIRECTORY FLAG...", whatever the current directory is then.
std::string command_again(const std::string& name, const std::string& url,
                          const std::filesystem::path& directory,
                          const std::vector<std::string>& flags);

/// Words as a line for a shell, quoted where that is needed.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace weightfs::fs
