// Whole version: which version can still be built when an object of the bucket is damaged.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// An object is missing or wrong: another version may still be whole.
bool is_about_objects(ErrorCode code) noexcept;

/// Finds the newest version that can be made without the object `damaged` ("": it is not known
/// which one is damaged), as far as manifests, layouts, pack headers and small files tell: these
/// are read, tensors are not.  Looks at the newest 64 versions and at the first.
///
/// Returns: 0 if there is none.
/// Throws Error: only what says nothing about an object (unavailable, cancelled, timed_out).
std::uint64_t find_whole_version(History& history, const std::string& damaged,
                                 const Context& context);

}  // namespace weightfs
