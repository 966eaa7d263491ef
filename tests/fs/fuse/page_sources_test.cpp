#include "fs/fuse/page_sources.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

TEST(PageSources, KeepsThePagesOfTheSameFile) {
  PageSources sources;
  EXPECT_TRUE(sources.take(1, 7));
  sources.note(1, 7);
  EXPECT_TRUE(sources.take(1, 7));
  EXPECT_TRUE(sources.take(2, 9));
}

// What is built from the bucket is right; a file that was here before may not have been.
TEST(PageSources, WhatIsOfNoFileIsKeptUnlessPagesMayBeOfOne) {
  PageSources sources(2);
  EXPECT_TRUE(sources.take(5, 0));
  EXPECT_TRUE(sources.take(5, 0));
  EXPECT_TRUE(sources.take(5, 7));
  EXPECT_FALSE(sources.take(5, 0));
  for (Inode inode = 6; inode < 8; inode++) EXPECT_TRUE(sources.take(inode, 7));
  EXPECT_FALSE(sources.take(5, 0)) << "nobody knows any more";
  EXPECT_TRUE(sources.take(8, 0));
}

// Each drops them in its own open(2): the second one may read before the first has.
TEST(PageSources, AllWhoOpenWhatWasMadeAgainTogetherDropThem) {
  PageSources sources;
  EXPECT_TRUE(sources.take(1, 7));
  sources.note(1, 7);
  for (int i = 0; i < 3; i++) EXPECT_FALSE(sources.take(1, 8));
  sources.note(1, 8);  // all have closed it
  EXPECT_TRUE(sources.take(1, 8));
}

// Else each rank of an engine would drop what the rank before it has read.
TEST(PageSources, WhatIsNewIsKeptAlsoWhenItIsFull) {
  PageSources sources(2);
  for (Inode inode = 1; inode < 10; inode++) {
    for (int rank = 0; rank < 3; rank++) EXPECT_TRUE(sources.take(inode, 7)) << inode;
    sources.note(inode, 7);
    EXPECT_TRUE(sources.take(inode, 7)) << inode;
  }
  EXPECT_TRUE(sources.take(8, 7));
  EXPECT_FALSE(sources.take(9, 8));
}

TEST(PageSources, WhatWasForgottenIsNotKept) {
  PageSources sources(2);
  EXPECT_TRUE(sources.take(1, 7));
  EXPECT_TRUE(sources.take(3, 7));
  EXPECT_TRUE(sources.take(4, 7));
  EXPECT_FALSE(sources.take(1, 8));
  EXPECT_FALSE(sources.take(2, 7)) << "nobody knows that it was never opened";
  EXPECT_FALSE(sources.take(3, 8));
  EXPECT_FALSE(sources.take(1, 7));
  sources.note(1, 7);
  EXPECT_TRUE(sources.take(1, 7));
}

}  // namespace
}  // namespace weightfs::fs
