// Fresh spans: compares what was noted of two versions with what their images say.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "store/materialize/plan.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs::test {

/// All patches of a span, which is installed for a moment.
inline std::vector<std::pair<ChunkPlace, ChunkPatch>> patches_in(PatchTable& table,
                                                                 const SpanEnds& ends,
                                                                 PatchFiles files) {
  table.install(ends, std::move(files));
  auto page = table.read_page(*table.find(ends.span()), {}, 1u << 30);
  EXPECT_TRUE(page.is_last);
  EXPECT_TRUE(table.remove(ends.span()));
  return std::move(page.patches);
}

/// What was noted is byte for byte what a comparison of the two finds.  Its chunks leave the span.
inline void expect_as_compared(PatchTable& table, const Base& from, const Base& to,
                               FreshSpan& span) {
  ASSERT_TRUE(span.is_wanted());
  const auto ends = span_between(from, to);
  ASSERT_EQ(span.find_ends(), ends);
  ASSERT_TRUE(ends);
  auto files = write_patches(table, *ends, span, {});
  ASSERT_TRUE(files);
  const auto noted = patches_in(table, *ends, std::move(*files));
  const auto taken = patches_in(table, *ends, take_patches(table, *ends, from, to, {}));
  ASSERT_EQ(noted.size(), taken.size());
  for (std::size_t i = 0; i < noted.size(); i++) {
    EXPECT_EQ(noted[i].first, taken[i].first);
    EXPECT_TRUE(noted[i].second == taken[i].second) << to_string(taken[i].first);
  }
}

}  // namespace weightfs::test
