// Options: one parsed command line, by subject.
//
// What lives below the command line has its struct, and its defaults, where it lives: a command
// passes it on as a whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/daemon/daemon.hpp"
#include "fs/directory/sync_service.hpp"
#include "fs/runtime/host_options.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

enum class Command {
  init,
  publish,
  mount,
  sync,
  umount,
  wait,
  rebase,
  pin,
  unpin,
  status,
  log,
  show,
  diff,
  export_,
  verify,
  doctor,
  help,
  version,
};

/// What a publish says of its version.
struct PublishFlags {
  std::string tag;  // may be empty
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;
  bool snapshot = false;
  bool rebase = false;
};

/// What is looked at: of log, diff, export and verify.
struct LookFlags {
  std::optional<Follow> from, to;  // numbers, tags or latest
  std::uint64_t limit = 0;         // 0: all
  bool deep = false;
};

/// What `wait` waits for, beside Options::version.
struct WaitFlags {
  std::string tag;                                   // may be empty
  std::optional<Follow> newer_than;                  // version 0: any is newer
  std::optional<std::chrono::milliseconds> timeout;  // nullopt: for ever
  bool ready = false;
};

/// One parsed command line.  Fields that the command does not have keep their defaults.
struct Options {
  Command command = Command::help;
  std::string text;                   // of help and version, and what to print after a usage error
  std::vector<std::string> warnings;  // of the environment
  std::string error;                  // what is wrong with the usage; empty: nothing
  bool json = false;
  bool quiet = false;  // no progress
  /// What argv and the environment have set, as flags again, but for the common ones: a
  /// configuration file will say again what it says.
  std::vector<std::string> flags;
  std::string kernels;  // WEIGHTFS_KERNELS, the name of a variant; empty: the fastest

  std::string target;               // URL or mount point, as given
  std::filesystem::path directory;  // publish, export (--from: a file), sync; MOUNTPOINT of mount
  std::optional<Follow> version;    // a number, a tag or latest

  /// Whole of mount and sync, but for the URL; the others take the bucket, the store and the GPU.
  HostOptions host;
  bool bucket_flagged = false;  // some of host.bucket stands on the command line
  MountOptions mount;           // without the mount point
  SyncServiceOptions sync;      // without the directory
  PublishFlags publish;
  LookFlags look;
  WaitFlags wait;
  bool lazy = false;    // umount
  std::string session;  // unpin
};

}  // namespace weightfs::fs
