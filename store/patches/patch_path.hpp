// PatchPath: the spans that lead from one version to another.
//
// A span leads both ways: going back inverts its patches.  Spans join only where both the number
// and the manifest of a version agree, so a path never leads over a repository that was made anew,
// and never over a change of the tensor table, since no span does.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "store/patches/patch_span.hpp"

namespace weightfs {

struct PathStep {
  SpanInfo span;
  bool is_back = false;  // from span.last to span.first

  [[nodiscard]] const PatchVersion& from() const noexcept {
    return is_back ? span.ends.last : span.ends.first;
  }
  [[nodiscard]] const PatchVersion& to() const noexcept {
    return is_back ? span.ends.first : span.ends.last;
  }
  bool operator==(const PathStep&) const = default;
};

/// Invariant: steps[i].to() == steps[i + 1].from().
using PatchPath = std::vector<PathStep>;

enum class Direction { any, forwards };

/// What a step costs beside its bytes, in bytes: of equal paths the one with fewer patches for each
/// chunk is the cheaper.
inline constexpr std::uint64_t kStepCostBytes = 4096;

/// The path that reads the fewest bytes.
///
/// Returns: nullopt if the spans do not connect the two.  from == to gives the empty path.
std::optional<PatchPath> find_path(std::span<const SpanInfo> spans, const PatchVersion& from,
                                   const PatchVersion& to, Direction direction = Direction::any);

/// All versions to which spans lead from one of them, each by the path that reads the fewest bytes:
/// one search for who asks about many.
///
/// Ownership: refers to the spans.
class PathsFrom {
 public:
  PathsFrom(std::span<const SpanInfo> spans, const PatchVersion& from,
            Direction direction = Direction::any);

  /// Ascending, with the one that it begins at; so there is always one.
  [[nodiscard]] std::vector<PatchVersion> versions() const;
  [[nodiscard]] bool reaches(const PatchVersion& version) const;
  /// Requires: reaches(version).
  [[nodiscard]] PatchPath path_to(const PatchVersion& version) const;

 private:
  struct Reached {
    std::uint64_t cost;
    const SpanInfo* by;  // nullptr: it begins here
    bool is_back;
  };

  PatchVersion from_;
  std::map<PatchVersion, Reached> reached_;
};

/// Bytes of all spans of a path.
std::uint64_t size_bytes_of(const PatchPath& path) noexcept;

}  // namespace weightfs
