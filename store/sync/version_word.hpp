// Version word: what a command line calls a version: its number, a tag, or `latest`. parse_follow()
// (store/sync/follow.hpp) reads the word; here it is looked up.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/materialize/history.hpp"
#include "store/sync/follow.hpp"

namespace weightfs {

/// The version of the repository that a word names now: a number as it is, whether or not that
/// version exists; the newest version; the newest version that carries the tag.  Reads manifests
/// from the newest one down to that version, several at a time; one that is damaged carries no tag.
///
/// Throws Error: not_found, if the repository is empty, or no version carries the tag: says which
/// tags there are; what History throws of a bucket that is out of reach.
std::uint64_t find_version(const Follow& word, History& history, const Context& context);

}  // namespace weightfs
