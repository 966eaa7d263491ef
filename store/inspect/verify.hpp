// Verify: re-hashes everything in a repository and names every damaged object.  Versions are built
// with the coder.  Works from the bucket, independently of any daemon.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/inspect/verdicts.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct VerifyOptions {
  /// Check only the objects of this version, and that it can be built from what it needs.
  std::optional<std::uint64_t> only{};
  /// A version with both a delta and a snapshot is always built both ways. With `deep` the bytes
  /// are compared too, because an attacker who can write to the bucket could make chunk hashes
  /// collide.
  bool deep = false;
};

/// Checks every object of every version: records, manifests and their chain, layouts, blobs, pieces
/// of packs and snapshots, and that each version decodes to its root.  Continues after a problem,
/// and names every damaged object once; its key is the problem's object.  Manifests that are
/// missing in turn are one problem, of the first; where more than 65,536 are, later versions are
/// not checked, and the problem says so.  Of skip deltas it checks record and pieces, and that they
/// lead to the root of their version; with `deep` they are decoded. A problem of one says that no
/// version depends on it.  With `only` they are neither checked nor used.  Those that gc left
/// instead of deltas are checked, and what is built from them is decoded by them, always.
/// `scratch`: a directory with room for two versions (three if a version has a delta and a
/// snapshot). Throws Error: not_found (there is no version `only`); errors that are not a verdict
/// on an object (unavailable, cancelled, no_space, io).
VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress,
                               const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                               const VerifyOptions& options = {});

}  // namespace weightfs
