// Verify tree: compares the files of versions shown in a directory with a repository's hashes.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "store/inspect/verify.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Checks the files below `directory` (versions/<n>/...) against the repository's hashes: every
/// version that is listed there, or `only` this one.  A problem's object is the path below
/// `directory`.  What gc removed from the repository cannot be compared, and is no problem.
/// Throws Error: not_found if `versions` or the version `only` does not exist; errors that are not
/// about a file or an object (unavailable, permission, cancelled).
VerifyReport verify_tree(History& history, const std::filesystem::path& directory,
                         const Context& context, const Progress& progress,
                         std::optional<std::uint64_t> only = {});

}  // namespace weightfs
