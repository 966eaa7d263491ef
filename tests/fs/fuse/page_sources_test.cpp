#include "fs/fuse/page_sources.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

TEST(PageSources, KeepsThePagesOfTheSameFile) {
  PageSources sources;
  EXPECT_TRUE(sources.is_same(1, 7));
  sources.note(1, 7);
  EXPECT_TRUE(sources.is_same(1, 7));
  EXPECT_TRUE(sources.is_same(2, 9));
  EXPECT_TRUE(sources.is_same(1, 0)) << "of no file";
}

// Each drops them in its own open(2): the second one may read before the first has.
TEST(PageSources, AllWhoOpenWhatWasMadeAgainTogetherDropThem) {
  PageSources sources;
  EXPECT_TRUE(sources.is_same(1, 7));
  sources.note(1, 7);
  for (int i = 0; i < 3; i++) EXPECT_FALSE(sources.is_same(1, 8));
  sources.note(1, 8);  // all have closed it
  EXPECT_TRUE(sources.is_same(1, 8));
}

// Else each rank of an engine would drop what the rank before it has read.
TEST(PageSources, WhatIsNewIsKeptAlsoWhenItIsFull) {
  PageSources sources(2);
  for (Inode inode = 1; inode < 10; inode++) {
    for (int rank = 0; rank < 3; rank++) EXPECT_TRUE(sources.is_same(inode, 7)) << inode;
    sources.note(inode, 7);
    EXPECT_TRUE(sources.is_same(inode, 7)) << inode;
  }
  EXPECT_TRUE(sources.is_same(8, 7));
  EXPECT_FALSE(sources.is_same(9, 8));
}

TEST(PageSources, WhatWasForgottenIsNotKept) {
  PageSources sources(2);
  EXPECT_TRUE(sources.is_same(1, 7));
  EXPECT_TRUE(sources.is_same(3, 7));
  EXPECT_TRUE(sources.is_same(4, 7));
  EXPECT_FALSE(sources.is_same(1, 8));
  EXPECT_FALSE(sources.is_same(2, 7)) << "nobody knows that it was never opened";
  EXPECT_FALSE(sources.is_same(3, 8));
  EXPECT_FALSE(sources.is_same(1, 7));
  sources.note(1, 7);
  EXPECT_TRUE(sources.is_same(1, 7));
}

}  // namespace
}  // namespace weightfs::fs
