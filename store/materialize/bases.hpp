// Bases: the versions on this host that a plan may start from, and how one is kept for it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "store/base/context.hpp"
#include "store/local/eviction.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

/// The Base of a complete version in the store, with the files that it has.
Base base_of(Store& store, History& history, std::uint64_t version, const Context& context);

/// Complete versions older than `before`, to start from: the newest few.  Leaves out versions whose
/// records cannot be read, and those that are distrusted.
std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context);

/// Keeps the base of a plan from being evicted (store/local/eviction.hpp).
/// Returns: a reservation of nothing if the plan has no base; nullopt: it was evicted just now, so
/// another plan must be made.
std::optional<Eviction::Reservation> reserve_base(Store& store, const Plan& plan,
                                                  Eviction::Claim claim, const Context& context);

}  // namespace weightfs
