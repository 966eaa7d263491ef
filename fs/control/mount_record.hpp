// Mount record: what has to be known about a mount when its daemon no longer answers: the command
// that mounts it again, and the path of its socket.
//
// One JSON file for each mount point, beside the control sockets (fs/control/server.hpp):
//
//     /run/weightfs/<16 hex digits of the SHA-256 of the mount point>.mount
//
// Its mode is 0600: hook options on the command line may be secret.  Of the environment it has what
// decides how a mount is made, and of what is secret there (keys, tokens) only the names.  It is
// removed with the mount.
// The record of a killed daemon is replaced by the next mount, or removed by `umount` together with
// the socket.
//
// Threads: pure functions of the system's state; a MountRecordFile belongs to its owner.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

struct MountRecord {
  std::filesystem::path mount_point;  // canonical
  int pid = 0;
  std::string command;            // a shell command line
  std::filesystem::path control;  // the socket; empty: none
  /// The same command without "weightfs", as words.  Empty: an older release has written it.
  std::vector<std::string> words = {};
  std::map<std::string, std::string> environment = {};
  std::vector<std::string> secrets = {};  // names of variables that were set and are not kept
};

/// Puts into a record what this process has of the environment that decides about a mount.
void record_environment(MountRecord& record);

/// Makes this process's environment that of the record: what decides about a mount is set, or unset
/// if it was not set then.  Secrets stay as they are if they were set then.
/// Requires: the process has one thread.
/// Throws Error: invalid, naming the secrets that were set then and are not now.
void restore_environment(const MountRecord& record);

/// Returns: nullopt if there is none, or this user may not read it.
std::optional<MountRecord> find_mount_record(const std::filesystem::path& mount_point);

/// Removes the record of a mount that is gone, and the socket if nothing listens there.
void remove_mount_record(const std::filesystem::path& mount_point) noexcept;

/// The record of a live mount.
class MountRecordFile {
 public:
  /// Writes the record, and removes records that killed daemons left.  If it cannot be written,
  /// that is logged and the mount goes on without.
  explicit MountRecordFile(MountRecord record) noexcept;
  ~MountRecordFile();  // removes it, if it is still this one
  MountRecordFile(const MountRecordFile&) = delete;
  MountRecordFile& operator=(const MountRecordFile&) = delete;

 private:
  MountRecord record_;
};

/// The command that mounts again: `weightfs mount --again`, where there is a record for it; else
/// one made from what is known.
std::string mount_again_command(const MountInfo& mount);

/// The same for `sync`, whose command is in DIR/.weightfs/command, mode 0600, even after it has
/// ended.  If the command cannot be written, a warning is logged.
std::string sync_again_command(const MountInfo& directory);
void write_sync_command(const std::filesystem::path& directory,
                        const std::string& command) noexcept;

/// {"mount", URL, DIRECTORY, FLAG...}, independent of the current directory.
std::vector<std::string> words_again(const std::string& name, const std::string& url,
                                     const std::filesystem::path& directory,
                                     const std::vector<std::string>& flags);

/// The same as a shell command line, with "weightfs".
std::string command_again(const std::vector<std::string>& words);

/// Words as a shell command line, quoted where necessary.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace weightfs::fs
