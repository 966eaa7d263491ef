// Host options: what a mount and a sync have in common: which repository they follow, how, and what
// they use of this host.
//
// Each default stands in the struct of its subject; the help of the command line takes it from
// there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/cache/warmer.hpp"
#include "fs/hooks/hook_options.hpp"
#include "store/local/store.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

struct HostOptions {
  std::string url;              // canonical
  BucketOptions bucket;         // how it is reached
  std::filesystem::path store;  // empty: the default place
  StoreLimits limits;
  FollowOptions follow;
  std::optional<int> gpu;          // nullopt: only the CPU
  std::vector<HookOptions> hooks;  // not with SyncServiceOptions::once
  Warm warm = Warm::automatic;
  std::string command;  // runs this again, as a line for a shell
};

}  // namespace weightfs::fs
