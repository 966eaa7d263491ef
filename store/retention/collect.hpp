// Collect: retires what a bucket need not keep, and removes what was retired long enough ago.
//
//     1  read all manifests, list the bucket, read the log
//     2  what records older than their grace name is removed, of snapshots .hashes first, of skips
//        their record: before all that needs room, since the bucket may be full
//     3  what hosts told each other of versions that exist (parts) is removed; no record names it
//     4  skip deltas are made by which versions that are kept alone need fewer deltas
//     5  skip deltas that are to replace deltas are checked, and whether snapshots that stay are
//        there; what is of no use is planned without
//     6  the record names the feature `retired-objects`, so that older readers refuse
//     7  the log gets a record of what is retired now: put-if-absent; whoever loses computes again
//     8  as 2: a grace may be 0
//
// It may be killed anywhere, and run again: nothing is removed that no record names, and a removal
// that was not finished is finished by the next run.  Any number may run at once, beside publishers
// and readers.
//
// Format: docs/FORMAT.md, "Retired objects".  What is promised: docs/SEMANTICS.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "store/base/context.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/repository.hpp"
#include "store/retention/inventory.hpp"
#include "store/retention/keep.hpp"

namespace weightfs {

struct CollectOptions {
  KeepPolicy keep;
  std::chrono::seconds grace = std::chrono::hours(24);  // of new records
  WaitTurn wait_turn = {};
};

/// What gc wants of skip deltas, and what higher folders do.  Threads: called by one at a time.
struct SkipWork {
  /// Makes a skip delta; false: there can be none (another tensor table), or it was not made now.
  /// Empty: none are made.  Throws Error: as check; no_space: it was not made either.
  std::function<bool(const VersionPair& versions, const Context& context)> make;
  /// Checks that a host that has `from` could make `to` by this skip: its packs are there, and the
  /// hashes in their headers lead to the root of `to`.  Empty: none becomes needed.
  /// Throws Error: corrupt, not_found, unsupported: it does not; no_space: nobody knows; others end
  /// gc.
  std::function<void(const SkipRecord& record, const Context& context)> check;
};

struct ObjectTotal {
  std::uint64_t objects = 0, bytes = 0;
  void add(std::uint64_t object_bytes) {
    objects++;
    bytes += object_bytes;
  }
};

/// What gc would do, or did.
struct CollectReport {
  Inventory inventory;            // before anything was removed
  GcLog log;                      // after it was added to
  Retirement retired;             // by this run, or what it would retire
  std::vector<VersionPair> made;  // skip deltas, by this run
  ObjectTotal removed;            // by this run
  ObjectTotal waiting;            // named by a record, and still there: their grace is not over
  std::optional<std::int64_t> next_due;  // seconds since 1970: when the first of these may go
};

/// What gc would retire, without writing anything, and without checking or making skips: those that
/// are there count as fit, and `retired.missing` says which would be made first.
/// Throws Error: as read_inventory, read_gc_log.
CollectReport plan_collection(Repository& repository, const CollectOptions& options,
                              const Context& context);

/// Throws Error: the same; corrupt also if a version that is kept can be built only from a snapshot
/// of which objects are missing; permission
/// (but not for parts); no_space (what was due is removed); conflict if others added to the log
/// again and again.
CollectReport collect(Repository& repository, const CollectOptions& options, const SkipWork& skips,
                      const Context& context);

}  // namespace weightfs
