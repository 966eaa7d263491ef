// Wait condition: whether a wait of `weightfs wait` has ended, and how.
//
//     --version N      versions/N can be opened here.  On a mount that is true of every version
//                      that is not newer than what the host follows (WaitFacts::nameable), but
//                      for what was found damaged when it was last opened: whether gc has retired
//                      a version that nobody has opened here is not asked.  A
//                      directory of `sync` has only its images: N below `latest` without an image
//                      never arrives, and on a host frozen at one version no other does.
//     --newer-than N   `latest` is above N.
//     --tag T          If publish/ has a hand-over with tag T, T means that hand-over and no other
//                      version of that tag; it is remembered, so that its outcome counts after it
//                      has left publish/.  Otherwise T is what came last: the newest version that
//                      carries it, as for --version, or a hand-over with tag T that has ended
//                      since, such as one that was taken back.  How hand-overs ended is forgotten
//                      with the daemon; T is that version then.
//     order            the hand-over with that order.
//     --ready          every byte of the version, or of the one that `latest` shows, is here.
//                      Where any version can be opened by name it is fetched, and not evicted
//                      during the wait.
//
// A published hand-over is `here` even if its images have been evicted again: its client must not
// be told that it failed.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fs/control/server.hpp"
#include "store/catalog/catalog.hpp"
#include "store/catalog/follow.hpp"
#include "store/streaming/partial_version.hpp"

namespace weightfs::fs {

/// The input of the decision.  Take the fields in this order: queue, ended, catalog; then a
/// hand-over that leaves the queue meanwhile is in one of the others.
struct WaitFacts {
  std::vector<HandOver> queue;
  std::vector<HandOverEnd> ended;
  std::shared_ptr<const Catalog> catalog;
  Follow follow = {};
  std::uint64_t followed = 0;  // see SyncStatus
  std::uint64_t nameable = 0;  // versions up to this one can be opened by name; 0: none
  std::map<std::uint64_t, PartialProgress> partial = {};
};

/// Returns: nullopt if it has not ended yet.
/// Requires: `what` has the fields that WaitFor demands.
std::optional<WaitEnd> find_wait_end(const WaitFor& what, const WaitFacts& facts,
                                     ControlHandlers::WaitState& state);

}  // namespace weightfs::fs
