#include "store/seed/snapshot_pieces.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/streaming/remote_files.hpp"
#include "tests/store/seed/seed_fixture.hpp"
#include "tests/support/eventually.hpp"

namespace weightfs {
namespace {

using test::eventually;
using test::nudge;
using test::TestTensor;
using test::write_text;

using SnapshotPiecesTest = test::Seeded;

TEST_F(SnapshotPiecesTest, WhatTheSeedHasInOtherFilesIsNotFetched) {
  builder_.add(tree());
  write_whole_seed();
  open_seed();
  EXPECT_EQ(write(), 0u);
  EXPECT_EQ(taken(), meter_.read().seeded_bytes);
  EXPECT_GE(taken(), weights_bytes() - none_bytes());
  const std::uint64_t before = taken();
  EXPECT_EQ(stream(), 0u);
  EXPECT_EQ(taken() - before, weights_bytes()) << "each byte once";
}

TEST_F(SnapshotPiecesTest, HeadersOfManyPiecesAreThoseOfTheLayout) {
  notes_ = std::string(3 * kPieceBytes, 'n');
  builder_.add(tree());
  write_whole_seed();
  open_seed();
  EXPECT_EQ(stream(), 0u);
  EXPECT_EQ(write(), 0u);
}

TEST_F(SnapshotPiecesTest, WithoutASeedAllIsFetched) {
  builder_.add(tree());
  EXPECT_EQ(stream(), weights_bytes());
  EXPECT_GE(fetched(), weights_bytes());
  EXPECT_EQ(meter_.read().seeded_bytes, 0u);
}

TEST_F(SnapshotPiecesTest, APieceWithABitThatIsWrongIsFetched) {
  builder_.add(tree());
  TestTensor flipped = big_;
  flipped.data[3 * kPieceBytes + 1000] ^= std::byte{4};
  write_seed("1.safetensors", {other_x_, flipped});
  write_seed("2.safetensors", {x_, y_});
  open_seed();
  EXPECT_EQ(stream(1, 1), kPieceBytes);
  EXPECT_EQ(write(), kPieceBytes);
}

TEST_F(SnapshotPiecesTest, TensorsOfAnotherDtypeOrShapeAreFetched) {
  builder_.add(tree());
  TestTensor signs = big_, turned = x_;
  signs.dtype = Dtype::i8;
  std::swap(turned.shape[0], turned.shape[1]);
  write_seed("1.safetensors", {other_x_, signs});
  write_seed("2.safetensors", {turned, y_});
  open_seed();
  EXPECT_EQ(stream(1, 1), builder_.tree(1).at("a.safetensors").size());
  EXPECT_EQ(taken(), weights_bytes() - builder_.tree(1).at("a.safetensors").size());
}

TEST_F(SnapshotPiecesTest, OfTensorsWithOneNameTheRightOneIsTaken) {
  builder_.add(tree());
  TestTensor wrong = big_;
  for (std::size_t at = 0; at < wrong.data.size(); at += 1000) wrong.data[at] ^= std::byte{1};
  write_seed("0.safetensors", {wrong});
  write_whole_seed();
  write_seed("9.safetensors", {wrong});
  open_seed();
  EXPECT_EQ(stream(1, 1), 0u);
  EXPECT_EQ(write(), 0u);
}

TEST_F(SnapshotPiecesTest, AnotherModelIsSoonLeftAlone) {
  builder_.add(tree());
  for (TestTensor* tensor : {&big_, &x_, &y_, &other_x_}) nudge(*tensor, 0.1, rng_);
  write_whole_seed();
  open_seed();
  EXPECT_EQ(stream(1, 1), weights_bytes() - none_bytes());
  EXPECT_EQ(taken(), none_bytes());
}

// What comes after the pieces that are wrong would be right, but is not looked at.
TEST_F(SnapshotPiecesTest, ATensorOfWhichSeveralPiecesAreWrongIsNotReadFurther) {
  builder_.add(tree());
  TestTensor wrong = big_;
  for (std::size_t piece = 0; piece < SnapshotSeed::kWrongMax; piece++) {
    wrong.data[piece * kPieceBytes + 1000] ^= std::byte{1};
  }
  write_seed("1.safetensors", {wrong, x_});
  write_seed("2.safetensors", {y_, other_x_});
  open_seed();
  EXPECT_EQ(stream(1, 1), builder_.tree(1).at("a.safetensors").size());
  EXPECT_EQ(taken(), weights_bytes() - builder_.tree(1).at("a.safetensors").size());
}

TEST_F(SnapshotPiecesTest, WhatIsCutOrGoneAfterALookIsFetched) {
  builder_.add(tree());
  write_whole_seed();
  open_seed();
  const auto big = seed_path() / "1.safetensors";
  std::filesystem::resize_file(big, 4 * kPieceBytes);
  const std::uint64_t some = stream(1, 1);
  EXPECT_GE(some, 2 * kPieceBytes);
  EXPECT_LE(some, 5 * kPieceBytes);
  std::filesystem::remove(big);
  write_text(seed_path() / "sub/2.safetensors", "");
  EXPECT_EQ(stream(1, 1), weights_bytes() - none_bytes());
  EXPECT_GE(write(), weights_bytes() - none_bytes());
}

TEST_F(SnapshotPiecesTest, TheSeedStandsInForTheSnapshotBelowDeltas) {
  builder_.add(tree());
  write_whole_seed();
  for (int i = 0; i < 3; i++) {
    nudge(big_, 0.0001, rng_);
    nudge(y_, 0.01, rng_);
    builder_.add(tree());
  }
  open_seed();
  EXPECT_EQ(plan(4).steps.size(), 3u);
  EXPECT_EQ(write(4), 0u);
  EXPECT_EQ(stream(4), 0u);
  EXPECT_GE(taken(), 2 * weights_bytes());
}

TEST_F(SnapshotPiecesTest, FilesThatAreNotKeptAreBuiltFromItToo) {
  builder_.add(tree());
  write_whole_seed();
  open_seed();
  test::TempDir place;
  auto store = Store::open(place / "store", repository_->id(), "memory:///bucket", {1u << 30, 0});
  History history(*repository_, store.get(), seed_);
  RemoteFiles files(*store, history, {});
  const std::string& whole = builder_.tree(1).at("b.safetensors");
  std::string bytes(whole.size(), '\0');
  ASSERT_EQ(files.read(1, "b.safetensors", 0, std::as_writable_bytes(std::span(bytes)), {}),
            whole.size());
  EXPECT_EQ(bytes, whole);
  EXPECT_EQ(fetched(), 0u);
}

// The seed's bytes are others from one read to the next: cut, replaced, written over, gone.
TEST_F(SnapshotPiecesTest, ASeedThatChangesWhileItIsCopiedNeverMakesWrongBytes) {
  builder_.add(tree());
  write_whole_seed();
  open_seed();
  const auto path = seed_path() / "1.safetensors";
  const std::string right = test::read_text(path);
  std::atomic<bool> stop = false;
  std::atomic<int> changes = 0;
  std::thread meddler([&, rng = test::Random(rng_())]() mutable {
    while (!stop) {
      std::string bytes = right;
      switch (rng() % 4) {
        case 0:
          bytes.resize(rng() % bytes.size());
          break;
        case 1:
          for (int i = 0; i < 20; i++) bytes[rng() % bytes.size()] ^= 1;
          break;
        case 2: {
          std::error_code ignored;
          std::filesystem::remove(path, ignored);
          break;
        }
        default:
          break;
      }
      write_text(path, bytes);
      changes++;
    }
  });
  for (int i = 0; i < 4; i++) {
    const int before = changes;
    stream();
    write();
    EXPECT_TRUE(eventually([&] { return changes >= before + 2; }));
  }
  stop = true;
  meddler.join();
}

}  // namespace
}  // namespace weightfs
