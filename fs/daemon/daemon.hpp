// Daemon: everything behind one mount: store, history, sync, tree, session, status, and for a
// writer's mount staging and the publish queue.
//
// Threads: run_daemon blocks the caller; its threads end before it returns.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fs/cache/warmer.hpp"
#include "fs/fuse/session.hpp"
#include "fs/hooks/hook_options.hpp"
#include "fs/mount/mount_point.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

struct MountOptions {
  std::string url;            // canonical
  BucketOptions bucket = {};  // how it is reached
  std::filesystem::path mount_point;
  std::filesystem::path store;  // empty: the default place
  StoreLimits limits;
  Serve serve = Serve::automatic;
  std::chrono::milliseconds poll{1000};
  std::chrono::milliseconds pin_grace{60000};
  std::chrono::milliseconds read_timeout{60000};
  Follow follow = {};             // a reader's
  std::vector<std::string> only;  // globs of the files that a reader keeps; empty: all
  Ownership ownership;
  bool foreground = false;  // log to stderr, not to the store
  NonEmpty non_empty = NonEmpty::refused;
  std::string command = {};  // makes this mount again, as a line for a shell
  std::optional<int> gpu = {};
  bool writer = false;
  bool rebase = false;                // this and the next: of a writer
  std::vector<std::string> include;   // globs of files to publish beside the usual ones
  std::uint32_t staging_mode = 0755;  // of staging/ and publish/
  std::vector<HookOptions> hooks = {};
  Warm warm = Warm::automatic;
};

/// What `mount` prints when it is ready.
struct MountReady {
  std::filesystem::path mount_point;  // canonical
  std::uint64_t version = 0;          // 0: the repository is empty
  std::string serve, why;             // see ServingState
  std::filesystem::path store, log;   // log: empty in the foreground
  int pid = 0;
  bool offline = false;
  bool is_partial = false;              // the version streams in
  std::string gpu_failure = {};         // why --gpu is not followed; empty: it is
  std::vector<std::string> notes = {};  // what else there is to say, a line each
};

/// What a daemon tells while it starts; both are called at most once, in this order.
struct DaemonEvents {
  std::function<void(const std::filesystem::path& log)> logging;  // from here on it logs there
  std::function<void(const MountReady&)> ready;                   // mounted and serving
};

/// Mounts and serves until unmounted or SIGTERM, SIGINT or SIGHUP; then it ends within 10 s, if
/// need be by force: a store and a bucket withstand that at any time.
///
/// It is ready when `latest` exists, which on a host without any version it does before its files
/// are here, or the repository has nothing yet that is followed.  The bucket
/// may be out of reach if the store has a version; for a writer's mount it is enough that the store
/// was used before. Requires: the caller has one thread. Throws Error before it is ready (busy: the
/// store, naming the pid, or the mount point; invalid: the store or the bucket lies below the mount
/// point; and what its parts throw); after that it only returns.
void run_daemon(const MountOptions& options, const DaemonEvents& events, const Progress& progress);

}  // namespace weightfs::fs
