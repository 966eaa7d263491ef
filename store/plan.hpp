// Plan, inside: what make_plan is made of.  Verify chooses its way itself and uses these.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/materialize.hpp"

namespace weightfs {

/// A version to start from, and what that costs.
struct Way {
  std::shared_ptr<const Version> start;
  const Base* base = nullptr;  // nullptr: the version's snapshot
  std::uint64_t fetch_bytes = 0;
  std::size_t steps = 0;
};

/// The ways to `wanted`, fewest bytes first; looks at manifests and layouts only.  Never empty.
/// Throws Error: corrupt, naming the version, if there is none.
std::vector<Way> find_ways(History& history, const std::shared_ptr<const Version>& wanted,
                           std::span<const Base> bases, const Context& context);

/// The plan for one way.  Throws as make_plan does.
Plan make_plan_by(const Way& way, History& history, const std::shared_ptr<const Version>& wanted,
                  const Context& context);

}  // namespace weightfs
