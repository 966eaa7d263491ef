// Sync service: `weightfs sync`: a mount without FUSE.  Store, history and sync as behind a mount,
// in front of them a directory of ordinary files (fs/directory/sync_directory.hpp), the control
// socket, and hooks.
//
// Threads: run_sync_service blocks the caller; its threads end before it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fs/cache/warmer.hpp"
#include "fs/hooks/hook_options.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

struct SyncServiceOptions {
  std::string url;  // canonical
  BucketOptions bucket = {};
  std::filesystem::path directory;
  std::filesystem::path store;  // empty: DIR/.weightfs/store
  StoreLimits limits;
  std::chrono::milliseconds poll{1000};
  Follow follow = {};
  std::optional<int> gpu = {};
  std::vector<HookOptions> hooks = {};  // not with `once`
  bool once = false;
  Warm warm = Warm::automatic;
  std::string command = {};  // runs this sync again, as a line for a shell
};

/// What `sync` prints when the directory is up to date for the first time.
struct SyncReady {
  std::filesystem::path directory;  // canonical
  std::uint64_t version = 0;        // that `latest` is; 0: it is not there
  bool waiting = false;             // what is followed does not exist yet; `latest` is as it was
  std::filesystem::path store;
  int pid = 0;
  bool offline = false;
  std::string gpu_failure = {};  // why --gpu is not followed; empty: it is
};

/// Keeps the directory up to date until SIGTERM, SIGINT or SIGHUP; with `once`, for one round.
/// Logs to stderr.
///
/// Ready when `latest` exists or the repository has nothing yet that is followed.  The bucket may
/// be out of reach if the store has a version, but not with `once`.
/// Requires: the caller has one thread.
/// Throws Error before it is ready: busy (the directory or the store, naming the pid), and what its
/// parts throw; after that it only returns.  With `once` also what the round throws.
void run_sync_service(const SyncServiceOptions& options,
                      const std::function<void(const SyncReady&)>& ready, const Progress& progress);

}  // namespace weightfs::fs
