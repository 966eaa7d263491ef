// Bases: the local versions that a plan may start from, and how one is protected from eviction.
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

/// The Base of a complete version in the store, with the files that are present.
Base base_of(Store& store, History& history, std::uint64_t version, const Context& context);

/// The newest few complete versions older than `before`.  Leaves out distrusted versions and those
/// whose records cannot be read.
std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context);

/// Reserves the base of a plan, so that it is not evicted (store/local/eviction.hpp).
/// Returns: an empty reservation if the plan has no base; nullopt if the base has just been
/// evicted, so that another plan must be made.
std::optional<Eviction::Reservation> reserve_base(Store& store, const Plan& plan,
                                                  Eviction::Claim claim, const Context& context);

/// The same of a base; nullopt if it has just been evicted, so that another one must be found.
std::optional<Eviction::Reservation> reserve_base(Store& store, const Base& base,
                                                  Eviction::Claim claim, const Context& context);

}  // namespace weightfs
