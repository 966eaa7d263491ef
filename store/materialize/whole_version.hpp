// Whole version: which version can still be built if an object of the bucket is damaged.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// The error concerns an object (missing or wrong), so another version may still be whole.
bool is_about_objects(ErrorCode code) noexcept;

/// Finds the newest version that can be built without the object `damaged` ("" if unknown), as far
/// as manifests, layouts, pack headers and small files show. Reads those, but not tensors.  Looks
/// at the newest 64 versions and at the first.
///
/// Returns: 0 if there is none.
/// Throws Error: only errors that say nothing about an object (unavailable, cancelled, timed_out).
std::uint64_t find_whole_version(History& history, const std::string& damaged,
                                 const Context& context);

}  // namespace weightfs
