// Options: one parsed command line, by subject.
//
// Options of a lower layer are in a struct of that layer, with their defaults; the command passes
// the struct on as a whole.
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
#include "store/catalog/follow.hpp"
#include "store/format/hub_base.hpp"
#include "store/parts/part_set.hpp"
#include "store/publish/publish_options.hpp"
#include "store/publish/snapshot_choice.hpp"
#include "store/publish/version_wishes.hpp"
#include "store/retention/collect.hpp"

namespace weightfs::fs {

enum class Command {
  init,
  publish,
  mount,
  sync,
  umount,
  wait,
  rebase,
  rollback,
  pin,
  unpin,
  status,
  top,
  fleet,
  log,
  report,
  show,
  diff,
  export_,
  verify,
  doctor,
  du,
  gc,
  skip,
  completion,
  help,
  version,
};

/// What log, diff, export and verify look at.
struct LookFlags {
  std::optional<Follow> from, to;  // numbers, tags or latest
  std::uint64_t limit = 0;         // 0: all
  bool deep = false;
  bool timing = false;
  bool graph = false;
  bool once = false;             // top: one frame
  std::filesystem::path output;  // report, doctor --bundle: the file that is written
  bool check = false;            // status: say whether it is healthy, as monitoring expects
};

/// What `wait` waits for, besides Options::version.
struct WaitFlags {
  std::string tag;                                   // may be empty
  std::optional<Follow> newer_than;                  // version 0: any version is newer
  std::optional<std::chrono::milliseconds> timeout;  // nullopt: no limit
  bool ready = false;
  std::uint64_t replicas = 0;  // readers of the repository, instead of this host; 0: this host
  std::uint64_t max_lag = 0;   // with `replicas`: versions before the one that will do
};

/// What du, gc and mount --gc are told.
struct GcFlags {
  KeepPolicy keep;
  bool tags_given = false;  // `keep.tags` are the user's
  std::chrono::seconds grace = CollectOptions{}.grace;
  bool deletes = false;
  bool in_background = false;  // a mount's
  std::chrono::seconds interval = BackgroundGcOptions{}.interval;
};

/// What skip is told.
struct SkipFlags {
  std::uint64_t newest = 0;  // versions to which skips are made; 0: all
  bool dry_run = false;
};

/// One parsed command line.  Fields of other commands keep their defaults.
struct Options {
  Command command = Command::help;
  std::string text;                   // for help and version, and after a usage error
  std::vector<std::string> warnings;  // about the environment
  std::string error;                  // a usage error; empty: none
  bool json = false;
  bool quiet = false;                          // no progress
  std::vector<std::filesystem::path> configs;  // files that were read
  /// What argv and the environment have set, as flags, without the common ones.  Settings from a
  /// configuration file are left out, since it will be read again.
  std::vector<std::string> flags;
  std::string kernels;  // WEIGHTFS_KERNELS, the name of a variant; empty: the fastest

  std::string target;               // URL or mount point, as given
  std::filesystem::path directory;  // publish, export (--from: a file), sync, help --man;
                                    // MOUNTPOINT of mount
  std::optional<Follow> version;    // a number, a tag or latest

  /// Complete for mount and sync, except for the URL; the others use the bucket, the store and the
  /// GPU.
  HostOptions host;
  bool bucket_flagged = false;  // some of host.bucket was given on the command line
  bool gpu_flagged = false, snapshots_flagged = false;  // likewise --gpu, --snapshot-every
  MountOptions mount;                                   // without the mount point
  SyncServiceOptions sync;                              // without the directory
  VersionWishes publish;
  SnapshotPolicy snapshots;                         // publish
  std::optional<HubBase> base;                      // publish
  PartChoice part;                                  // publish, mount
  std::chrono::milliseconds part_wait = kPartWait;  // publish, mount
  bool dry_run = false;  // publish, rollback: say what would be published
  LookFlags look;
  WaitFlags wait;
  GcFlags gc;
  SkipFlags skip;
  bool lazy = false;   // umount
  bool again = false;  // mount: as the record of the dead mount says

  /// mount: called by mount(8) (fs/cli/mount_helper.hpp).
  struct Helper {
    bool is_fake = false, is_verbose = false;
  };
  std::optional<Helper> helper;
  std::string session;  // unpin
};

}  // namespace weightfs::fs
