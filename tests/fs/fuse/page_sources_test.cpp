#include "fs/fuse/page_sources.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

TEST(PageSources, KeepsThePagesOfTheSameFile) {
  PageSources sources;
  EXPECT_TRUE(sources.is_same(1, 7));
  EXPECT_TRUE(sources.is_same(1, 7));
  EXPECT_FALSE(sources.is_same(1, 8)) << "made again";
  EXPECT_TRUE(sources.is_same(1, 8));
  EXPECT_TRUE(sources.is_same(2, 9));
  EXPECT_TRUE(sources.is_same(1, 0)) << "of no file";
  EXPECT_TRUE(sources.is_same(1, 8));
}

TEST(PageSources, WhatWasForgottenIsNotKept) {
  PageSources sources(2);
  EXPECT_TRUE(sources.is_same(1, 7));
  EXPECT_TRUE(sources.is_same(2, 7));
  EXPECT_FALSE(sources.is_same(3, 7));
  EXPECT_FALSE(sources.is_same(1, 7));
  EXPECT_TRUE(sources.is_same(1, 7));
}

}  // namespace
}  // namespace weightfs::fs
