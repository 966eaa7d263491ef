#include "store/base/suggest.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace weightfs {
namespace {

const std::vector<std::string> kKnown{"status", "sync", "show", "publish", "umount"};

TEST(Suggest, FindsTheNearestWord) {
  EXPECT_EQ(nearest_word("stauts", kKnown), "status");
  EXPECT_EQ(nearest_word("sycn", kKnown), "sync");
  EXPECT_EQ(nearest_word("shw", kKnown), "show");
  EXPECT_EQ(nearest_word("unmount", kKnown), "umount");
  EXPECT_EQ(nearest_word("pub", kKnown), "publish");
}

TEST(Suggest, SaysNothingOfWhatIsFarFromAll) {
  for (const char* word : {"", "x", "pu", "frobnicate", "mountain-range"}) {
    EXPECT_EQ(nearest_word(word, kKnown), "") << word;
    EXPECT_EQ(did_you_mean(word, kKnown), "") << word;
  }
  EXPECT_EQ(nearest_word(std::string(100'000, 'a'), kKnown), "");
}

TEST(Suggest, IsTheEndOfASentence) {
  EXPECT_EQ(did_you_mean("sow", kKnown, "--"), "; did you mean --show?");
  EXPECT_EQ(did_you_mean("a\x1b", std::vector<std::string>{"a\x1b["}), "; did you mean a\\x1b[?");
}

}  // namespace
}  // namespace weightfs
