// Take patches: compares two versions whose images are on this host, and writes the patches from
// the one to the other.
//
// Only chunks whose hashes differ are read; what is read is compared with its hash before a patch
// is made of it, so a damaged image never gets into the history.
//
// This is for versions whose changes were not noted while they were made
// (store/patches/fresh_patches.hpp).
//
// Threads: runs one for every second core, of the priority of the caller.
// Memory: of each thread two chunks and two patches.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/materialize/plan.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

/// The changes of a version take more than patches may.
class TooManyPatches : public Error {
 public:
  explicit TooManyPatches(std::uint64_t bytes_max);
};

/// The span of level one from `from` to `to`; nullopt if patches cannot lead over it: `to` is not
/// the later version, the tensor tables differ, or files are absent.
std::optional<SpanEnds> span_between(const Base& from, const Base& to);

/// Files for PatchTable::install().  Requires: ends == span_between(from, to); both are kept from
/// being evicted.
/// Throws TooManyPatches (they would have more than `bytes_max`), BaseDamaged (an image does not
/// match its hashes, or is missing), Error: cancelled, timed_out, no_space, io.
PatchFiles take_patches(const PatchTable& table, const SpanEnds& ends, const Base& from,
                        const Base& to, const Context& context,
                        std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max());

}  // namespace weightfs
