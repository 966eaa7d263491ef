// Daemon: everything behind one mount: store, history, sync, tree, session, status, and for a
// writer's mount staging and the publish queue.
//
// Threads: run_daemon blocks the caller; its threads end before it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fs/fuse/session_options.hpp"
#include "fs/fuse/tree.hpp"
#include "fs/mount/mount_point.hpp"
#include "fs/passes/passes.hpp"
#include "fs/runtime/host_options.hpp"
#include "store/base/context.hpp"

namespace weightfs::fs {

/// What only a writer's mount has.
struct WriterOptions {
  bool rebase = false;                // code again on top of what others have published
  std::vector<std::string> include;   // globs of files to publish beside the usual ones
  std::uint32_t staging_mode = 0755;  // of staging/ and publish/
};

/// Of a mount, beside HostOptions.
struct MountOptions {
  std::filesystem::path mount_point;
  ServeOptions serve;
  std::chrono::milliseconds pin_grace = kPinGrace;
  std::vector<std::string> only;  // globs of the files that a reader keeps; empty: all
  Ownership ownership;
  bool foreground = false;  // log to stderr, not to the store
  NonEmpty non_empty = NonEmpty::refused;
  bool writer = false;
  WriterOptions writing;  // with `writer`
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
void run_daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
                const Progress& progress);

}  // namespace weightfs::fs
