// Check_skip: whether a host that has a version could make a later one by a skip delta.
//
// Reads the headers of its packs, not their data.
#pragma once

#include <memory>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/pack.hpp"
#include "store/format/skip_record.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Checks that the record is of this history, that the versions have one tensor table, and that the
/// headers of its packs, and what a plan says of `from`, lead to the root of `to`.
/// Returns: what its packs hold, in their order.
/// Throws Error: corrupt, not_found (a pack is gone), unsupported, naming the object; as make_plan
/// if `from` cannot be built; what the bucket throws.
std::vector<std::shared_ptr<const PackIndex>> check_skip(History& history, const SkipRecord& record,
                                                         const Context& context);

}  // namespace weightfs
