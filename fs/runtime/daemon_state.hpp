// Daemon state: what a daemon knows about itself, for its status.
#pragma once

#include <chrono>
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
#include "store/parts/part_set.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/seed/seed_directory.hpp"
#include "store/skips/skip_maker.hpp"
#include "store/staging/staging.hpp"
#include "store/sync/sync.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs::fs {

/// What a writer's mount removes from its bucket by itself (--gc).
struct GcState {
  bool is_running = false;
  bool gives_way = false;      // a run is due or under way, and waits while a hand-over is
  std::uint64_t runs = 0;      // that ended without an error
  std::int64_t last_time = 0;  // when the last of these ended, seconds since 1970
  std::uint64_t removed_objects = 0, removed_bytes = 0;  // by all of them
  std::uint64_t retired_versions = 0;                    // likewise
  std::uint64_t skips_made = 0;                          // likewise
  std::uint64_t waiting_objects = 0, waiting_bytes = 0;  // for their grace to end
  std::int64_t next_due = 0;                             // when the first of these may go
  std::string error;                                     // of the last run; empty: none
};

/// Of a reader that says in the bucket what it shows (--announce).
struct AnnounceState {
  std::chrono::seconds every{};
  std::string id = {};         // empty: not known yet
  std::uint64_t records = 0;   // that were written
  std::int64_t last_time = 0;  // when the last one was written, seconds since 1970; 0: none yet
  std::string error = {};      // why the last one was not written; empty: it was
};

/// What only a writer's mount has.
struct WriterState {
  bool rebase = false;
  std::vector<std::string> include;  // the mount's
  PartChoice part = {};              // of what is handed over
  std::vector<HandOver> queue;
  StagingSummary staging;
  EarlyStatus early = {};
  PublishedTotals published = {};
  std::vector<HandOverEnd> ended = {};
  SkipMakerStatus skips = {};
  std::optional<GcState> gc = {};
};

/// Which files are kept here, and how much of `latest` that is.
struct KeptState {
  std::vector<std::string> only;  // globs; empty: all
  std::uint64_t kept_bytes = 0, version_bytes = 0;
  bool lacks_files = false;      // of these some are still missing: see CatalogVersion
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
  std::string metrics = {};       // their address; empty: they are not given out
  int pid = 0;
  std::vector<std::uint64_t> versions;                    // shown, and complete here; ascending
  std::optional<std::chrono::milliseconds> max_lag = {};  // HostOptions::max_lag
  SyncStatus sync;
  ServingState serving;
  CoderState coder;
  PinsState pins = {};
  std::optional<WriterState> writer = {};
  std::optional<AnnounceState> announce = {};  // nullopt: off
  std::vector<std::string> queued = {};        // a reader's mount: names of hand-overs in its store
  std::vector<HookStatus> hooks = {};
  CacheState cache = {};
  KeptState kept = {};
  std::optional<SeedState> seed = {};                 // nullopt: none was given
  std::optional<std::uint64_t> hub_bytes = {};        // fetched from the Hub; nullopt: never asked
  std::string refused_leases = {};                    // RefusedLeases::text()
  std::optional<TimingRecord> latest_timing = {};     // of the version that `latest` shows
  std::optional<TimingRecord> hand_over_timing = {};  // of the last one that was handed over
};

}  // namespace weightfs::fs
