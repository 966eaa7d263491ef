// Verify: re-hashes everything and names every object that is wrong.  Diff: compares two versions.
// Export: writes a version as plain files.  Versions are made with the coder.  All three work from
// the bucket, beside any daemon.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/chunk_coder.hpp"
#include "kernels/diff.hpp"
#include "store/history.hpp"

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

/// Checks the files below `directory` (versions/<n>/...) against the repository's hashes: every
/// version that is listed there, or `only` this one.  A problem's object is the path below
/// `directory`.
/// Throws Error: not_found if there is no `versions`, or no such version.
VerifyReport verify_tree(History& history, const std::filesystem::path& directory,
                         const Context& context, const Progress& progress,
                         std::optional<std::uint64_t> only = {});

/// Writes a version into `directory`, which must be absent or empty.  The files appear there all at
/// once, by a rename; after a failure nothing is left.
/// Throws Error: exists (the directory is not empty), and as make_plan and write_version do.
void export_version(History& history, std::uint64_t version, const std::filesystem::path& directory,
                    const Context& context, const Progress& progress,
                    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

struct TensorDiff {
  std::string name, file;
  enum class Change { same, changed, added, removed, reshaped, retyped } change{};
  std::string dtype;
  std::uint64_t elements = 0;     // as the codec sees them: bytes for dtypes without a kind
  std::uint64_t changed = 0;      // all, if there is nothing of the same size to compare with
  std::uint64_t largest_ulp = 0;  // 0 if there is nothing to compare with
};

/// Compares two versions tensor by tensor: those of `to` in the order of its layout, then those of
/// `from` that are gone.  `from` may be the later one.  A tensor is found again by its name in the
/// file of the same path, else in the same directory; one that kept its bytes but not its shape is
/// reshaped, not changed.  `scratch`: room for both.
std::vector<TensorDiff> diff_versions(
    History& history, std::uint64_t from, std::uint64_t to, const std::filesystem::path& scratch,
    const Context& context, const Progress& progress,
    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
