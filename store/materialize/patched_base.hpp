// Patched base: what the store's patches make of images on this host: a version that is not here,
// as a base for plans (store/materialize/plan.hpp), without the bucket.
//
//     images of 64     patches 64..128, 128..129, 129..130
//     ============ + ------------------------------------- = version 130, a base
//
// Its chunk hashes are those of the images, and where there are patches those that the last one
// leads to.  The root in the manifest is compared with them before anything is built (make_plan),
// and every chunk when it is.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

/// The newest version up to `version` that patches make of complete images here; nullopt if there
/// is none, or if complete images of a version are as near.  It takes the path that reads the
/// fewest bytes, from images beside which there is room for another version.  Images that lack
/// files are not used, nor those of `distrusted` versions.
///
/// Reads all patches of the path.  Asks the bucket for what the store has not kept of manifests and
/// layouts.
/// Throws PatchDamaged (a patch is damaged or gone), Error: cancelled, timed_out, io.
std::optional<Base> find_patched_base(Store& store, History& history, std::uint64_t version,
                                      const std::set<std::uint64_t>& distrusted,
                                      const Context& context);

/// As find_patched_base(), for who has another way: what is damaged is dropped and in the log, and
/// other patches are tried; nullopt if something else goes wrong.
/// Throws Error: cancelled, timed_out.
std::optional<Base> find_sound_patched_base(Store& store, History& history, std::uint64_t version,
                                            const std::set<std::uint64_t>& distrusted,
                                            const Context& context);

/// After damage: says so in the log, and removes the span, if it is known and there, so that nobody
/// tries it again.  Returns: whether it is gone; if not, the same damage may be met again.
bool drop_damaged_patches(Store& store, const PatchDamaged& damaged);

}  // namespace weightfs
