// Daemon: everything behind one mount: store, history, sync, tree, session and status; for a
// writer's mount also staging and the publish queue.
//
// Threads: run_daemon blocks the caller; its threads end before it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fs/daemon/background_gc.hpp"
#include "fs/fuse/session_options.hpp"
#include "fs/fuse/tree.hpp"
#include "fs/mount/mount_point.hpp"
#include "fs/passes/passes.hpp"
#include "fs/runtime/host_options.hpp"
#include "store/base/context.hpp"
#include "store/local/image_table.hpp"
#include "store/parts/part_set.hpp"
#include "store/publish/publish_options.hpp"
#include "store/publish/snapshot_choice.hpp"

namespace weightfs::fs {

/// Options of a writer's mount only.
struct WriterOptions {
  bool rebase = false;                // code again on top of versions by others
  std::vector<std::string> include;   // globs of additional files to publish
  std::uint32_t staging_mode = 0755;  // of staging/ and publish/
  SnapshotPolicy snapshots;           // of versions that are handed over
  bool skips = true;                  // skip deltas are made (store/skips/skip_maker.hpp)
  BackgroundGcOptions gc;
  PartChoice part;  // what is handed over is this part of a version
  std::chrono::milliseconds part_wait = kPartWait;
};

/// Options of a mount, in addition to HostOptions.
struct MountOptions {
  std::filesystem::path mount_point;
  ServeOptions serve;
  ImagesHome images = ImagesHome::disk;  // memory: of a reader; not with Serve::bind
  std::chrono::milliseconds pin_grace = kPinGrace;
  std::vector<std::string> only;  // globs of the files that a reader keeps; empty: all
  Ownership ownership;
  bool foreground = false;  // log to stderr, not to the store
  NonEmpty non_empty = NonEmpty::refused;
  bool writer = false;
  WriterOptions writing;  // only with `writer`
};

/// What `mount` prints when it is ready.
struct MountReady {
  std::filesystem::path mount_point;  // canonical
  std::uint64_t version = 0;          // 0: the repository is empty
  std::string serve, why;             // see ServingState
  std::filesystem::path store, log;   // log: empty in the foreground
  int pid = 0;
  bool offline = false;
  bool is_partial = false;              // the version is still being filled
  std::string gpu_failure = {};         // why --gpu has no effect; empty: it has
  std::vector<std::string> notes = {};  // other remarks, one line each
};

/// Events while a daemon starts; each is called at most once, in this order.
struct DaemonEvents {
  std::function<void(const std::filesystem::path& log)> logging;  // from here on it logs there
  std::function<void(const MountReady&)> ready;                   // mounted and serving
};

/// Mounts and serves until unmounted, or until SIGTERM, SIGINT or SIGHUP; then it ends within 10 s,
/// by force if need be: store and bucket withstand that at any time.
///
/// It is ready when `latest` exists (on a host without any version, before the version's files are
/// here), or when the repository does not have yet what is followed.  The bucket may be out of
/// reach if the store has a version; for a writer's mount it is enough that the store was used
/// before.
/// Requires: the caller has one thread.
/// Throws Error before it is ready (busy: the store, naming the pid, or the mount point; invalid:
/// the store or the bucket is below the mount point; no_memory: two versions do not fit into
/// memory, where images are to lie; and what its parts throw); after that it only returns.
void run_daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
                const Progress& progress);

}  // namespace weightfs::fs
