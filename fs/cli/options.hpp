// Options: one parsed command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/daemon/daemon.hpp"
#include "store/s3/bucket_options.hpp"

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

  std::string target;                // URL or mount point, as given
  std::filesystem::path directory;   // publish, export (--from: a file), sync; MOUNTPOINT of mount
  std::filesystem::path store;       // publish, mount, sync; empty: the default place
  std::optional<int> gpu;            // whatever makes versions; nullopt: only the CPU
  std::optional<Follow> version;     // show, export, wait, pin, unpin; a number, a tag or latest
  std::optional<Follow> from, to;    // diff, export; the same
  std::string tag;                   // publish, wait
  std::optional<Follow> newer_than;  // wait; version 0: any is newer
  std::optional<std::chrono::milliseconds> timeout;  // wait; nullopt: for ever
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;  // publish, mount --writer
  bool snapshot = false;
  bool deep = false;                  // verify
  bool rebase = false;                // publish, mount --writer
  std::uint32_t staging_mode = 0755;  // mount --writer
  bool lazy = false;                  // umount
  std::uint64_t limit = 0;            // log; 0: all

  StoreLimits limits;  // this and poll, follow: mount, sync
  Serve serve = Serve::automatic;
  std::chrono::milliseconds poll{1000};
  std::chrono::milliseconds pin_grace{60000};
  std::chrono::milliseconds read_timeout{60000};
  bool ready = false;   // wait
  std::string session;  // unpin
  Follow follow = {};
  Ownership ownership;
  bool foreground = false;
  bool nonempty = false;  // mount
  bool once = false;      // sync
  bool writer = false;
  std::vector<HookOptions> hooks;  // mount, sync
  Warm warm = Warm::automatic;     // the same
  std::vector<std::string> only;   // mount

  BucketOptions bucket;         // every command that takes a URL
  bool bucket_flagged = false;  // some of it stands on the command line
};

}  // namespace weightfs::fs
