#include "store/patches/patch_path.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tests/store/patches/patch_fixture.hpp"

namespace weightfs {
namespace {

using test::ends_of;
using test::patch_version;

SpanInfo sized(const SpanEnds& ends, std::uint64_t bytes) { return {ends, 1, bytes}; }

// "1>2 3<2": versions and directions.
std::string as_text(const std::optional<PatchPath>& path) {
  if (!path) return "none";
  std::string text;
  for (const PathStep& step : *path) {
    text += (text.empty() ? "" : " ") + std::to_string(step.from().version) +
            (step.is_back ? "<" : ">") + std::to_string(step.to().version);
  }
  return text;
}

std::string way(const std::vector<SpanInfo>& spans, std::uint64_t from, std::uint64_t to,
                Direction direction = Direction::any) {
  return as_text(find_path(spans, patch_version(from), patch_version(to), direction));
}

TEST(PatchPath, ReadsTheFewestBytes) {
  const std::vector<SpanInfo> spans{sized(ends_of(PatchLevel::one, 1, 2), 100'000),
                                    sized(ends_of(PatchLevel::one, 2, 3), 100'000),
                                    sized(ends_of(PatchLevel::one, 3, 4), 100'000),
                                    sized(ends_of(PatchLevel::eight, 1, 3), 120'000),
                                    sized(ends_of(PatchLevel::cumulative, 1, 4), 900'000)};
  EXPECT_EQ(way(spans, 1, 1), "");
  EXPECT_EQ(way(spans, 1, 2), "1>2");
  EXPECT_EQ(way(spans, 1, 3), "1>3");
  EXPECT_EQ(way(spans, 1, 4), "1>3 3>4");
  EXPECT_EQ(way(spans, 4, 1), "4<3 3<1");
  EXPECT_EQ(way(spans, 4, 1, Direction::forwards), "none");
  EXPECT_EQ(way(spans, 1, 5), "none");
  EXPECT_EQ(size_bytes_of(*find_path(spans, patch_version(1), patch_version(4))), 220'000u);
}

TEST(PatchPath, GoesBackAndForthWhereThatIsCheaper) {
  const std::vector<SpanInfo> spans{sized(ends_of(PatchLevel::eight, 0, 8), 1000),
                                    sized(ends_of(PatchLevel::one, 7, 8), 100)};
  EXPECT_EQ(way(spans, 0, 7), "0>8 8<7");
  EXPECT_EQ(way(spans, 7, 0), "7>8 8<0");
  EXPECT_EQ(way(spans, 0, 7, Direction::forwards), "none");
}

TEST(PatchPath, OfEqualBytesTheOneWithFewerSpans) {
  const std::vector<SpanInfo> spans{sized(ends_of(PatchLevel::one, 1, 2), 0),
                                    sized(ends_of(PatchLevel::one, 2, 3), 0),
                                    sized(ends_of(PatchLevel::eight, 1, 3), 0)};
  EXPECT_EQ(way(spans, 1, 3), "1>3");
}

TEST(PatchPath, NeverJoinsVersionsOfTwoRepositories) {
  const std::vector<SpanInfo> spans{sized(ends_of(PatchLevel::one, 1, 2), 1),
                                    sized(ends_of(PatchLevel::one, 2, 3, 1), 1)};
  EXPECT_EQ(way(spans, 1, 3), "none");
  EXPECT_EQ(as_text(find_path(spans, patch_version(1), patch_version(3, 1))), "none");
  EXPECT_EQ(as_text(find_path(spans, patch_version(2, 1), patch_version(3, 1))), "2>3");
}

// Against the obvious: relax all edges until nothing changes.
TEST(PatchPath, IsTheCheapestOfRandomSpans) {
  test::Random rng = test::make_rng();
  for (int round = 0; round < 60; round++) {
    std::vector<SpanInfo> spans;
    for (int i = 0; i < 25; i++) {
      const std::uint64_t first = rng() % 12, last = first + 1 + rng() % 4;
      spans.push_back(sized(ends_of(PatchLevel::one, first, last), rng() % 100'000));
    }
    std::map<std::uint64_t, std::uint64_t> cost{{0, 0}};
    for (std::size_t i = 0; i <= spans.size(); i++) {
      for (const SpanInfo& span : spans) {
        const std::uint64_t a = span.ends.first.version, b = span.ends.last.version;
        const std::uint64_t step = span.size_bytes + kStepCostBytes;
        const auto relax = [&](std::uint64_t from, std::uint64_t to) {
          if (!cost.contains(from)) return;
          std::uint64_t& known = cost.try_emplace(to, ~0ull).first->second;
          known = std::min(known, cost.at(from) + step);
        };
        relax(a, b);
        relax(b, a);
      }
    }
    EXPECT_EQ(PathsFrom(spans, patch_version(0)).versions().size(), cost.size());
    for (std::uint64_t to = 0; to < 16; to++) {
      const auto path = find_path(spans, patch_version(0), patch_version(to));
      ASSERT_EQ(path.has_value(), cost.contains(to));
      if (!path) continue;
      EXPECT_EQ(size_bytes_of(*path) + path->size() * kStepCostBytes, cost.at(to));
      PatchVersion reached = patch_version(0);
      for (const PathStep& step : *path) {
        EXPECT_EQ(step.from(), reached);
        reached = step.to();
      }
      EXPECT_EQ(reached, patch_version(to));
    }
  }
}

}  // namespace
}  // namespace weightfs
