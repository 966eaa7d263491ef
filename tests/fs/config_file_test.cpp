#include "fs/config_file.hpp"

#include <gtest/gtest.h>

#include "store/error.hpp"

namespace weightfs::fs {
namespace {

using Values = std::vector<std::string>;

std::string refusal(std::string_view text) {
  try {
    parse_config(text, "c.toml");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid);
    return error.what();
  }
}

TEST(ConfigFile, ReadsTablesStringsNumbersBooleansAndArrays) {
  const auto entries = parse_config(
      "# weightfs\n"
      "store = \"/ssd/a#b\"   # a comment behind a value\n"
      "\n"
      "[mount]\r\n"
      "  poll=0.5\n"
      "foreground = true\n"
      "[ publish ]\n"
      "include = ['*.bin', \"*.pt\",\n"
      "   # one more\n"
      "   'a b', ]\n"
      "empty = []\n"
      "tag = \"q\\\"\\\\\\t\"",
      "c.toml");
  ASSERT_EQ(entries.size(), 6U);
  EXPECT_EQ(entries[0].table, "");
  EXPECT_EQ(entries[0].key, "store");
  EXPECT_EQ(entries[0].values, Values{"/ssd/a#b"});
  EXPECT_FALSE(entries[0].is_array);
  EXPECT_EQ(entries[1].table, "mount");
  EXPECT_EQ(entries[1].key, "poll");
  EXPECT_EQ(entries[1].values, Values{"0.5"});
  EXPECT_EQ(entries[2].values, Values{"true"});
  EXPECT_EQ(entries[3].table, "publish");
  EXPECT_EQ(entries[3].values, (Values{"*.bin", "*.pt", "a b"}));
  EXPECT_TRUE(entries[3].is_array);
  EXPECT_EQ(entries[4].values, Values{});
  EXPECT_EQ(entries[5].values, Values{"q\"\\\t"});
}

TEST(ConfigFile, AnEmptyFileHasNoEntries) {
  EXPECT_TRUE(parse_config("", "c.toml").empty());
  EXPECT_TRUE(parse_config("# nothing\n\n   ", "c.toml").empty());
}

TEST(ConfigFile, RefusesWhatItDoesNotKnowWithTheLine) {
  for (const char* text : {"= 1",
                           "a",
                           "a =",
                           "a = b",
                           "a = \"b",
                           "a = 'b\n'",
                           "a = \"b\\x\"",
                           "a = \"\\",
                           "a = 1 2",
                           "a = [1",
                           "a = [1 2]",
                           "a = [,]",
                           "[mount",
                           "[]",
                           "[mount] x",
                           "[[mount]]",
                           "a.b = 1",
                           "a = {b = 1}",
                           "a = 2026-01-01T00:00:00Z",
                           "\"a\" = 1",
                           "a = \"\"\"b\"\"\"",
                           "]"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
  EXPECT_EQ(refusal("a = 1\n\nb = c\n"),
            "c.toml, line 3: 'c' is no number, boolean or string in quotes");
}

TEST(ConfigFile, RefusesKeysAndTablesThatAreThereTwice) {
  EXPECT_EQ(refusal("a = 1\na = 2"), "c.toml, line 2: 'a' is there twice");
  EXPECT_EQ(refusal("[t]\n[u]\n[t]"), "c.toml, line 3: the table [t] is there twice");
  EXPECT_EQ(refusal("a = 1\n[t]\na = 2"), "");
}

}  // namespace
}  // namespace weightfs::fs
