// Skip rules: which skip deltas a bucket should have (store/format/skip_record.hpp).
//
//     to divisible by    from
//                  8     to - 8
//                 64     to - 64
//                 16     the newest snapshot before `to`, unless `to` has one itself
//
// So a host at a multiple of 64 catches up in one step for each 64 versions, one at a multiple of 8
// in at most 7 more on either side, and a host that joins needs the snapshot, one skip, and at most
// 15 versions more, which are one skip and seven deltas.
//
// Threads: pure functions, but for what they ask a History.
#pragma once

#include <cstdint>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/gc_log.hpp"

namespace weightfs {

/// Those that lead to `to`, the shortest first.  `snapshot`: the newest version up to `to` that has
/// one; 0: none has.
std::vector<VersionPair> wanted_skips(std::uint64_t to, std::uint64_t snapshot);

/// Whether the skip may be made, whatever the rules say: nothing of it was retired, and both
/// versions have one tensor table.  Whoever makes skips asks this first.
/// Throws Error: not_found (there is no such version); what the bucket throws.
bool is_wanted(History& history, const VersionPair& versions, const GcLog& retired,
               const Context& context);

/// Skips that the rules want to the newest `count` versions up to `newest`: to the newest version
/// first.  Some of them may not be made: is_wanted().
/// Throws Error: as is_wanted().
std::vector<VersionPair> skips_by_rule(History& history, std::uint64_t newest, std::uint64_t count,
                                       const GcLog& retired, const Context& context);

/// Those of them that may be made, and that LIST does not show: to the oldest version first, of
/// these the longest, so that a store which has nothing goes forwards from what it had to fetch.
/// LIST may show too few, so some of them may be there.
/// Throws Error: as is_wanted().
std::vector<VersionPair> missing_skips(History& history, std::uint64_t newest, std::uint64_t count,
                                       const GcLog& retired, const Context& context);

/// Bytes of the packs of all deltas that a skip leads over.
/// Throws Error: as is_wanted().
std::uint64_t delta_bytes(History& history, const VersionPair& versions, const Context& context);

}  // namespace weightfs
