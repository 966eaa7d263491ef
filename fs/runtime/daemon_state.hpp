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
#include "store/seed/seed_directory.hpp"
#include "store/skips/skip_maker.hpp"
#include "store/staging/staging.hpp"
#include "store/sync/sync.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs::fs {

/// What only a writer's mount has.
struct WriterState {
  bool rebase = false;
  std::vector<std::string> include;  // the mount's
  std::vector<HandOver> queue;
  StagingSummary staging;
  EarlyStatus early = {};
  PublishedTotals published = {};
  std::vector<HandOverEnd> ended = {};
  SkipMakerStatus skips = {};
};

/// Which files are kept here, and how much of `latest` that is.
struct KeptState {
  std::vector<std::string> only;  // globs; empty: all
  std::uint64_t kept_bytes = 0, version_bytes = 0;
  std::uint64_t made_bytes = 0;  // of other files, built for readers
};

/// What a daemon knows about itself.
struct DaemonState {
  std::string url;         // canonical
  BucketOptions bucket;    // as given
  std::string repository;  // id
  std::filesystem::path mount_point, store;
  std::filesystem::path log;      // empty: stderr
  std::filesystem::path control;  // its socket; empty: there is none
  int pid = 0;
  std::vector<std::uint64_t> versions;  // shown by the mount, ascending
  SyncStatus sync;
  ServingState serving;
  CoderState coder;
  PinsState pins = {};
  std::optional<WriterState> writer = {};
  std::vector<std::string> queued = {};  // a reader's mount: names of hand-overs in its store
  std::vector<HookStatus> hooks = {};
  CacheState cache = {};
  KeptState kept = {};
  std::optional<SeedState> seed = {};                 // nullopt: none was given
  std::optional<TimingRecord> latest_timing = {};     // of the version that `latest` shows
  std::optional<TimingRecord> hand_over_timing = {};  // of the last one that was handed over
};

}  // namespace weightfs::fs
