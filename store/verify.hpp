// Verify: re-hashes everything and names every object that is wrong.  Diff: compares two versions.
// Export: writes a version as plain files.  All three work from the bucket, beside any daemon.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "store/history.hpp"
#include "kernels/diff.hpp"

namespace weightfs {

struct Problem {
  std::string object;   // key, or path
  std::string message;
};

struct VerifyReport {
  std::uint64_t versions = 0;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;   // read and hashed
  std::vector<Problem> problems;
};

/// Checks every object of every version: records, manifests and their chain, layouts, blobs, pieces
/// of packs and snapshots, and that each version decodes to its root.  Goes on after a problem.
/// `scratch`: a directory with room for two versions.
VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress);

/// Checks the files below `directory` (versions/<n>/...) against the repository's hashes: every
/// version that is listed there.
VerifyReport verify_tree(History& history, const std::filesystem::path& directory,
                         const Context& context, const Progress& progress);

/// Writes a version into `directory`, which must be absent or empty.
void export_version(History& history, std::uint64_t version, const std::filesystem::path& directory,
                    const Context& context, const Progress& progress);

struct TensorDiff {
  std::string name, file;
  enum class Change { same, changed, added, removed, reshaped, retyped } change{};
  std::string dtype;
  std::uint64_t elements = 0, changed = 0;
  std::uint64_t largest_ulp = 0;
};

/// Compares two versions tensor by tensor.  `scratch`: room for both.
std::vector<TensorDiff> diff_versions(History& history, std::uint64_t from, std::uint64_t to,
                                      const std::filesystem::path& scratch, const Context& context,
                                      const Progress& progress);

}  // namespace weightfs
