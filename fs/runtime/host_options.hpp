// Host options: what a mount and a sync have in common: which repository they follow, how, and
// which resources of this host they use.
//
// Each default is in the struct of its subject; the command line's help takes it from there.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/cache/warmer.hpp"
#include "fs/hooks/hook_options.hpp"
#include "fs/metrics/metrics_address.hpp"
#include "store/base/log.hpp"
#include "store/catalog/follow.hpp"
#include "store/local/store.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/sync/patch_recorder.hpp"

namespace weightfs::fs {

/// Whether a reader says in the bucket what it shows (fs/runtime/announcer.hpp).
struct AnnounceOptions {
  bool is_on = false;
  std::chrono::seconds every{30};
};

struct HostOptions {
  std::string url;              // canonical
  BucketOptions bucket;         // how to reach it
  std::filesystem::path store;  // empty: the default place
  std::filesystem::path seed;   // a checkpoint that spares a fetch (store/seed); empty: none
  StoreLimits limits;
  std::uint64_t history = kHistoryVersions;  // PatchRecorderOptions::history
  FollowOptions follow;
  std::optional<int> gpu;          // nullopt: only the CPU
  std::vector<HookOptions> hooks;  // none with SyncServiceOptions::once
  Warm warm = Warm::automatic;
  std::optional<std::chrono::milliseconds> max_lag;  // then health is failed; nullopt: no limit
  AnnounceOptions announce;                          // not of a writer's mount
  std::optional<MetricsAddress> metrics;             // nullopt: none are given out
  LogOptions log;
  std::vector<std::string> words;  // the command line that runs this again, without "weightfs"
};

}  // namespace weightfs::fs
