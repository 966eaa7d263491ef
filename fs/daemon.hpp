// Daemon: everything behind one reader's mount: store, history, sync, tree, session, status.
//
// Threads: run_daemon blocks the caller; its threads end before it returns.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "fs/fuse_session.hpp"
#include "store/context.hpp"
#include "store/store.hpp"

namespace weightfs::fs {

struct MountOptions {
  std::string url;                          // canonical
  std::filesystem::path mount_point;
  std::filesystem::path store;              // empty: the default place
  StoreLimits limits;
  Serve serve = Serve::automatic;
  std::chrono::milliseconds poll{1000};
  Ownership ownership;
  bool foreground = false;
  bool json = false;
};

/// What `mount` prints when it is ready.
struct MountReady {
  std::uint64_t version = 0;  // 0: the repository is empty
  std::string serve, why;
  std::filesystem::path store, log;
  int pid = 0;
  bool offline = false;
};

/// Mounts and serves until unmounted or SIGTERM/SIGINT.  Calls `ready` once, when `latest` exists or
/// the repository is empty.
/// Throws Error before that; after it only returns.
void run_daemon(const MountOptions& options, const std::function<void(const MountReady&)>& ready,
                const Progress& progress);

/// Runs run_daemon in a daemonised child, waits until it is ready or failed, and passes on what it
/// said.  Forks before any thread is made.
MountReady start_daemon(const MountOptions& options, const Progress& progress);

}  // namespace weightfs::fs
