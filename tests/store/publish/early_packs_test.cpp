#include "store/publish/early_packs.hpp"

#include <gtest/gtest.h>

namespace weightfs::test {
namespace {

constexpr std::uint64_t kGiB = 1u << 30;

TEST(EarlyPacks, PiecesAreAnEighthOfALargeFileAndNeverTiny) {
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 1), kGiB / 2);
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 256), kGiB / 2);
  EXPECT_EQ(early_piece_bytes(kEarlyPieceBytes, 1), kEarlyPieceBytes);
  EXPECT_EQ(early_piece_bytes(0, 0), kEarlyPieceBytes);
}

// A manifest has room for some 5,000 packs.
TEST(EarlyPacks, OfManyFilesThereAreFewerPieces) {
  for (const std::size_t files : {300u, 1000u, 2048u, 100'000u}) {
    const std::uint64_t pieces = 4 * kGiB / early_piece_bytes(4 * kGiB, files);
    EXPECT_GE(pieces, 1u);
    EXPECT_LE((pieces - 1) * files, 2048u) << files;
  }
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 1000), 2 * kGiB);
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 2048), 4 * kGiB) << "none before the end";
}

}  // namespace
}  // namespace weightfs::test
