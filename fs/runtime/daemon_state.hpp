// Daemon state: what a daemon knows about itself, for its status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/base/coder_choice.hpp"
#include "fs/cache/warmer.hpp"
#include "fs/fuse/session.hpp"
#include "fs/hooks/reconciler.hpp"
#include "fs/passes/loader_pins.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/staging/staging.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

/// What only a writer's mount has.
struct WriterState {
  bool rebase = false;
  std::vector<std::string> include;  // of the mount
  std::vector<HandOver> queue;
  StagingSummary staging;
  EarlyStatus early = {};
  PublishedTotals published = {};
  std::vector<HandOverEnd> ended = {};
};

/// Which files are kept here, and how much of `latest` that is.
struct KeptState {
  std::vector<std::string> only;  // globs; empty: all are
  std::uint64_t kept_bytes = 0, version_bytes = 0;
  std::uint64_t made_bytes = 0;  // of other files, made for who read them
};

/// What a daemon knows about itself.
struct DaemonState {
  std::string url;         // canonical
  BucketOptions bucket;    // that it was given
  std::string repository;  // id
  std::filesystem::path mount_point, store;
  std::filesystem::path log;      // empty: stderr
  std::filesystem::path control;  // its socket; empty: there is none
  int pid = 0;
  std::vector<std::uint64_t> versions;  // that the mount shows, ascending
  SyncStatus sync;
  ServingState serving;
  CoderState coder;
  PinsState pins = {};
  std::optional<WriterState> writer = {};
  std::vector<std::string> queued = {};  // a reader's mount: names of hand-overs in its store
  std::vector<HookStatus> hooks = {};
  CacheState cache = {};
  KeptState kept = {};
};

}  // namespace weightfs::fs
