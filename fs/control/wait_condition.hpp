// Wait condition: whether what `weightfs wait` waits for has come, and when it never will.
//
//     --version N      versions/N opens here.  On a mount any version does that is not newer than
//                      what the host follows (WaitFacts::nameable); a directory of `sync` has what
//                      it has: N below `latest` without an image never comes, nor does any other
//                      than the one that a host is frozen at.
//     --newer-than N   `latest` is above N.
//     --tag T          T in publish/ means that hand-over and no other version of that tag; it is
//                      remembered, so that its end counts when it has left publish/.  Else the
//                      newest version that carries T, here, as for --version.
//     order            that hand-over.
//     --ready          every byte of the version, or of what `latest` is, is here.  Where any
//                      version opens by name this one is brought, and stays while it is waited
//                      for.
//
// A hand-over that was published is `here` also when its images were removed again to make room:
// who handed it over must not be told that it failed.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fs/control/server.hpp"
#include "store/streaming/partial_version.hpp"
#include "store/sync/catalog.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

/// What the condition is decided by.  Taken in this order: queue, ended, catalog; so a hand-over
/// that leaves the queue meanwhile is in one of the others.
struct WaitFacts {
  std::vector<HandOver> queue;
  std::vector<HandOverEnd> ended;
  std::shared_ptr<const Catalog> catalog;
  Follow follow = {};
  std::uint64_t followed = 0;  // see SyncStatus
  std::uint64_t nameable = 0;  // versions up to this one open by name; 0: none does
  std::map<std::uint64_t, PartialProgress> partial = {};
};

/// nullopt: not yet.  Requires: the fields of `what` that WaitFor says.
std::optional<WaitEnd> find_wait_end(const WaitFor& what, const WaitFacts& facts,
                                     ControlHandlers::WaitState& state);

}  // namespace weightfs::fs
