// Daemon metrics: what a mount and a sync tell Prometheus; docs/METRICS.md lists it, and a test
// compares the two.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "fs/runtime/daemon_state.hpp"
#include "store/base/log.hpp"
#include "store/database/db.hpp"
#include "store/timing/timing_totals.hpp"

namespace weightfs::fs {

/// What metrics show and status does not.
struct DaemonCounters {
  std::int64_t start_time = 0;  // seconds since 1970
  TimingTotals timings = {};
  DbFacts database = {};
  LogCounts log = {};
};

/// `now`: seconds since 1970.
std::string metrics_text(const DaemonState& state, const DaemonCounters& counters,
                         std::int64_t now);

}  // namespace weightfs::fs
