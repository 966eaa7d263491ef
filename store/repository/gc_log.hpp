// GcLog: the dense log of what was retired, and what follows from all of it.
//
// Threads: a value; read_gc_log() may run concurrently.
// Format: docs/FORMAT.md, "Retired objects".
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/os/memory_budget.hpp"
#include "store/repository/gc_record.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

struct GcLog {
  std::vector<GcRecord> records;               // record n at [n - 1]
  Sha256 last_sha256{};                        // of the last record's bytes; zeros: there is none
  VersionRanges deltas, snapshots;             // retired by any of them
  std::set<VersionPair> skips;                 // likewise
  NeededSkips needs;                           // skip deltas that versions are built from, still
  VersionRanges versions;                      // cannot be built any more
  std::set<std::string, std::less<>> objects;  // named by any of them

  /// Takes what a record says: needs and retires.
  void add(GcRecord record);

  /// The record that retired a version; nullptr: none did.
  [[nodiscard]] const GcRecord* find_record_of(std::uint64_t version) const noexcept;
};

/// Reads all records: GETs of 1, 2, 3, ... until one is absent.  Without a log this is one request.
/// `memory`: what all of it may use; without it this host's budget.
/// Throws Error: corrupt (a record is damaged, or does not follow the one before it), unsupported
/// (a newer record, or more of them than there is memory for).
GcLog read_gc_log(Repository& repository, const Context& context);
GcLog read_gc_log(Repository& repository, MemoryBudget& memory, const Context& context);

/// Throws Error: not_found if the version was retired, saying when, and what is left; else returns.
/// A log that cannot be read says nothing.
void throw_if_retired(Repository& repository, std::uint64_t version, const Context& context);

/// Adds a record whose number and previous_sha256 follow this log.
/// Returns: false if the number is taken: somebody else was faster, and all must be computed again.
/// Throws Error: corrupt if no reader could parse it (a bug), and nothing was written; what the
/// bucket throws: then it may have been added or not.
bool append_gc_record(const GcRecord& record, Repository& repository, const Context& context);

}  // namespace weightfs
