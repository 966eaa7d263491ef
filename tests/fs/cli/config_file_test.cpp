#include "fs/cli/config_file.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"

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
  const auto values = [&](std::string_view table, std::string_view key) {
    for (const ConfigEntry& entry : entries) {
      if (entry.table == table && entry.key == key) return entry.values;
    }
    return Values{"there is none"};
  };
  EXPECT_EQ(entries.size(), 6U);
  EXPECT_EQ(values("", "store"), Values{"/ssd/a#b"});
  EXPECT_EQ(values("mount", "poll"), Values{"0.5"});
  EXPECT_EQ(values("mount", "foreground"), Values{"true"});
  EXPECT_EQ(values("publish", "include"), (Values{"*.bin", "*.pt", "a b"}));
  EXPECT_EQ(values("publish", "empty"), Values{});
  EXPECT_EQ(values("publish", "tag"), Values{"q\"\\\t"});
}

TEST(ConfigFile, TellsArraysFromSingleValues) {
  EXPECT_TRUE(parse_config("a = ['x']", "c.toml").front().is_array);
  EXPECT_FALSE(parse_config("a = 'x'", "c.toml").front().is_array);
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
                           "a.b.c = 1",
                           "a = {b = {c = 1}}",
                           "umask = 0o337",
                           "a = 2026-01-01T00:00:00Z",
                           "]"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
  EXPECT_TRUE(refusal("a = 1\n\nb = c\n").starts_with("c.toml, line 3: "));
  EXPECT_EQ(refusal("a = 1\numask = 0o337"),
            "c.toml, line 2: a number that is not decimal must be quoted");
}

TEST(ConfigFile, RefusesKeysAndTablesThatAreThereTwice) {
  EXPECT_TRUE(refusal("a = 1\na = 2").starts_with("c.toml, line 2: "));
  EXPECT_TRUE(refusal("[t]\n[u]\n[t]").starts_with("c.toml, line 3: "));
  EXPECT_EQ(refusal("a = 1\n[t]\na = 2"), "");
}

}  // namespace
}  // namespace weightfs::fs
