// Verify: re-hashes everything in a repository and names every object that is wrong.  Versions are
// made with the coder.  Works from the bucket, beside any daemon.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct Problem {
  std::string object;  // key, or path
  std::string message;
};

/// Objects below one prefix that no version names.  What a publish that was cut short has left, or
/// one that is under way has uploaded so far: nobody can tell the two apart.
struct Orphans {
  std::string prefix;  // "packs/7/", "snapshots/1/", "blobs/", "layouts/"
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

struct VerifyReport {
  std::uint64_t versions = 0;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;  // read and hashed
  std::vector<Problem> problems;
  std::vector<Orphans> orphans;  // no problem; ascending
};

struct VerifyOptions {
  /// The objects of this version, and that it can be made from all that it needs.
  std::optional<std::uint64_t> only{};
  /// A version that has a delta and a snapshot is made both ways all the same; now their bytes are
  /// compared, as whoever can write the bucket can make the hashes of chunks collide.
  bool deep = false;
};

/// Checks every object of every version: records, manifests and their chain, layouts, blobs, pieces
/// of packs and snapshots, and that each version decodes to its root.  Goes on after a problem, and
/// names every damaged object once; its key is the problem's object.  Counts orphans; those of a
/// version whose manifest is damaged are not known, and not counted.
/// `scratch`: a directory with room for two versions (three where a version has a delta and a
/// snapshot).
/// Throws Error: not_found (there is no version `only`); Error: what is no verdict on an object
/// (unavailable, cancelled, no_space, io).
VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress,
                               const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                               const VerifyOptions& options = {});

}  // namespace weightfs
