// plan_folds: which spans to fold into which, and which to remove.
//
// Spans of level `one` are folded by eight into level `eight`, those by eight into `sixty_four`,
// where the last version of the result is a multiple of 8 or 64; so any version is reached from the
// last multiple of 64 by at most 7 + 7 patches for each chunk.  With a base, one cumulative span
// leads from it to the last multiple of 64.  A run that is cut short (the tensor table changed, a
// version's patches were not taken) is folded as it is.
//
// Removed is what is older than the history and was folded, cumulative spans that a longer one
// replaces, and, beyond the bytes allowed, what is oldest: with a base only what is older than the
// history, and what leads from the base to the newest version is never removed; without one the
// history becomes shorter.
//
// A plan says what can be done now: after folds were made, and spans removed, another one may say
// more.  An empty plan: there is nothing to do until a span is installed.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "store/patches/patch_path.hpp"
#include "store/patches/patch_span.hpp"

namespace weightfs {

struct FoldLimits {
  std::uint64_t history = 64;  // newest versions that can be reached one by one
  /// Of the newest version: a cumulative span of more than half of them is not made longer.
  std::uint64_t newest_bytes = std::numeric_limits<std::uint64_t>::max();
  /// Of all spans together.
  std::uint64_t patches_bytes = std::numeric_limits<std::uint64_t>::max();
  /// The version from which history goes forwards; nullopt: it goes back from the newest image.
  std::optional<PatchVersion> base = std::nullopt;
};

struct Fold {
  SpanEnds into;
  PatchPath from;  // forwards, from into.first to into.last

  bool operator==(const Fold&) const = default;
};

struct FoldPlan {
  std::vector<Fold> folds;       // in this order; none needs the result of another
  std::vector<PatchSpan> drops;  // may be removed now: no fold of this plan reads them
  /// The cumulative span has grown beyond half of the newest version: the base should move.
  bool is_base_outgrown = false;

  [[nodiscard]] bool is_empty() const noexcept { return folds.empty() && drops.empty(); }
};

/// In the order in which they go where there is too little room: by the last version.
std::vector<SpanInfo> oldest_first(std::span<const SpanInfo> spans);

FoldPlan plan_folds(std::span<const SpanInfo> spans, const FoldLimits& limits);

}  // namespace weightfs
