// History files: the small files without which the store's patches do not make a version: those of
// all versions to which patches lead, where the images here do not have them.  They are kept beside
// the patches (store/local/small_files.hpp).
//
// The newest versions come first, up to kHistoryFilesBytesMax; those of the newest one are kept
// whatever they take.  What is lacking is fetched from the bucket when the version is made.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/sha256.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

inline constexpr std::uint64_t kHistoryFilesBytesMax = 64u << 20;

/// Keeps what is lacking, as far as `sources`, images that are reserved, have it; what was kept of
/// them and is damaged is replaced.  Nothing is removed: that is for SmallFiles::keep_only(), once
/// the patches are there too.
/// `images`: versions with all of whose images this may count.
/// Returns: all that is to be kept.
/// Throws Error: no_space, io; cancelled, timed_out.
std::set<Sha256> keep_history_files(Store& store, History& history,
                                    const std::vector<std::uint64_t>& images,
                                    const std::vector<Base>& sources, const Context& context);

}  // namespace weightfs
