// Parent: which version a publish follows, and what it says of it.
//
// Threads: pure functions, but for what they ask the History, the store and the bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// The newest version that exists; never one beyond a gap in the history.
/// Throws Error: as History::refresh().
std::uint64_t find_newest(History& history, Store& store, const Context& context);

/// Throws Error: unsupported if no version can follow this one.
void check_has_room(std::uint64_t parent, Repository& repository);

/// The store may know a version that the bucket has lost; publishing on top of it would leave a gap
/// that no reader can pass.  Throws Error: corrupt.
void check_is_in_bucket(const Version& version, Repository& repository, const Context& context);

/// Manifest::snapshot_before of the version after `parent`: as the parent's manifest says; walks
/// back where a release that did not write it published.
/// nullopt: what is in the way cannot be read.
std::optional<std::uint64_t> find_snapshot_before(std::shared_ptr<const Version> parent,
                                                  History& history, const Context& context);

/// The pause before try `tries` + 1 of a rebase: doubles, with jitter so that publishers differ.
Clock::duration pause_after(unsigned tries);

}  // namespace weightfs
