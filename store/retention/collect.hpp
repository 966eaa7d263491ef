// Collect: retires what a bucket need not keep, and removes what was retired long enough ago.
//
//     1  read all manifests, list the bucket, read the log
//     2  the record names the feature `retired-objects`, so that older readers refuse
//     3  the log gets a record of what is retired now: put-if-absent; whoever loses computes again
//     4  what records older than their grace name is removed, of snapshots .hashes first
//
// It may be killed anywhere, and run again: nothing is removed that no record names, and a removal
// that was not finished is finished by the next run.  Any number may run at once, beside publishers
// and readers.
//
// Format: docs/FORMAT.md, "Retired objects".  What is promised: docs/SEMANTICS.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "store/base/context.hpp"
#include "store/repository/repository.hpp"
#include "store/retention/gc_log.hpp"
#include "store/retention/inventory.hpp"
#include "store/retention/keep.hpp"

namespace weightfs {

struct CollectOptions {
  KeepPolicy keep;
  std::chrono::seconds grace = std::chrono::hours(24);  // of new records
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
  Inventory inventory;  // before anything was removed
  GcLog log;            // after it was added to
  Retirement retired;   // by this run, or what it would retire
  ObjectTotal removed;  // by this run
  ObjectTotal waiting;  // named by a record, and still there: their grace is not over
  std::optional<std::int64_t> next_due;  // seconds since 1970: when the first of these may go
};

/// What gc would retire, without writing anything.  Throws Error: as read_inventory, read_gc_log.
CollectReport plan_collection(Repository& repository, const CollectOptions& options,
                              const Context& context);

/// Throws Error: the same; permission; conflict if others added to the log again and again.
CollectReport collect(Repository& repository, const CollectOptions& options,
                      const Context& context);

}  // namespace weightfs
