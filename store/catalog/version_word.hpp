// Version word: how a command line names a version: a number, a tag, or `latest`. parse_follow()
// (store/catalog/follow.hpp) parses the word; this looks it up.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/catalog/follow.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// The version that a word names now: a number unchanged, whether or not that version exists; the
/// newest version; or the newest version that carries the tag.  Reads manifests from the newest one
/// down to that version, several at a time; a damaged one counts as untagged.
///
/// Throws Error: not_found, if the repository is empty or no version carries the tag (lists the
/// tags that exist); what History throws if the bucket is unreachable.
std::uint64_t find_version(const Follow& word, History& history, const Context& context);

}  // namespace weightfs
