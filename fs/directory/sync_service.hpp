// Sync service: `weightfs sync`, a mount without FUSE. Store, history and sync are as behind a
// mount; in front of them are a directory of ordinary files (fs/directory/sync_directory.hpp), the
// control socket, and hooks.
//
// Threads: run_sync_service blocks the caller; its threads end before it returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "fs/runtime/host_options.hpp"
#include "store/base/context.hpp"

namespace weightfs::fs {

/// Options of a sync, in addition to HostOptions, whose default store is DIR/.weightfs/store.
struct SyncServiceOptions {
  std::filesystem::path directory;
  bool once = false;
};

/// What `sync` prints when the directory is up to date for the first time.
struct SyncReady {
  std::filesystem::path directory;  // canonical
  std::uint64_t version = 0;        // that `latest` shows; 0: none
  bool waiting = false;             // what is followed does not exist yet; `latest` is unchanged
  std::filesystem::path store;
  int pid = 0;
  bool offline = false;
  std::string gpu_failure = {};  // why --gpu has no effect; empty: it has
};

/// Keeps the directory up to date until SIGTERM, SIGINT or SIGHUP; with `once`, for one round.
/// Logs to stderr.
///
/// It is ready when `latest` exists, or when the repository does not have yet what is followed.
/// The bucket may be out of reach if the store has a version, but not with `once`.
/// Requires: the caller has one thread.
/// Throws Error before it is ready: busy (the directory or the store, naming the pid), and what its
/// parts throw; after that it only returns.  With `once` also what the round throws.
void run_sync_service(const HostOptions& host, const SyncServiceOptions& options,
                      const std::function<void(const SyncReady&)>& ready, const Progress& progress);

}  // namespace weightfs::fs
