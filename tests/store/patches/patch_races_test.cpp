// What has threads, and so runs under ThreadSanitizer too.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/patches/fold_spans.hpp"
#include "tests/store/patches/patch_fixture.hpp"

namespace weightfs {
namespace {

using test::ends_of;
using test::patch_version;
using test::PlainVersion;

constexpr std::uint64_t kRaceVersions = 64;

struct PatchRaces : testing::Test {
  test::Random rng = test::make_rng();
  test::PatchFixture at;
  std::vector<PlainVersion> plain{test::random_version(rng, 3, 4)};

  PatchRaces() {
    for (std::uint64_t last = 1; last <= kRaceVersions; last++) {
      plain.push_back(test::changed_version(plain.back(), plain.back(), rng));
    }
    install_all();
  }
  void install_all() {
    for (std::uint64_t last = 1; last <= kRaceVersions; last++) {
      at.install(ends_of(PatchLevel::one, last - 1, last), plain[last - 1], plain[last]);
    }
  }
};

// Readers look for a path and read it, while versions come, and spans are folded and removed. They
// get right bytes, or are told that a span is gone.
TEST_F(PatchRaces, ReadersBesideFoldsGetRightBytesOrLookAgain) {
  std::atomic<bool> is_done = false;
  std::atomic<int> reads = 0;
  const auto read = [&](std::uint64_t seed) {
    test::Random random(seed);
    kernels::Scratch scratch;
    while (!is_done || reads < 20) {
      const std::uint64_t from = random() % (kRaceVersions + 1),
                          to = random() % (kRaceVersions + 1);
      const auto path = find_path(at.table->list(), patch_version(from), patch_version(to));
      if (!path) continue;
      try {
        PlainVersion version = plain[from];
        PatchReader reader(*at.table, *path);
        for (auto& [place, bytes] : version) {
          apply_chunk_patches(reader.take(place, scratch), test::kPatchKind, bytes, scratch, "");
        }
        EXPECT_EQ(version, plain[to]);
        reads++;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
      }
    }
  };
  {
    const std::uint64_t seeds[]{rng(), rng()};
    std::jthread first([&] { read(seeds[0]); }), second([&] { read(seeds[1]); });
    for (int round = 0; round < 3; round++) {
      fold_all(*at.table, {.history = 8}, {});
      fold_all(*at.table, {.history = 0, .patches_bytes = 1}, {});
      install_all();
    }
    is_done = true;
  }
  EXPECT_GE(reads, 20);
  EXPECT_EQ(at.patch_count(), at.recorded_count());
}

}  // namespace
}  // namespace weightfs
