#include "store/base/path_rules.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace weightfs {
namespace {

using namespace std::string_literals;

std::string repeat(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; i++) all += text;
  return all;
}

TEST(PathRules, AcceptsOrdinaryPaths) {
  for (const std::string& path : {"config.json"s, "a/b/c.safetensors"s, "with space.txt"s, "x.."s,
                                  "naïve-\xF0\x9F\x98\x80.json"s, std::string(255, 'x'),
                                  repeat("a/", 15) + "a", "a:b*?\"<>|"s}) {
    EXPECT_EQ(path_problem(path), "") << path;
  }
}

TEST(PathRules, RefusesPathsThatCouldLeaveOrHide) {
  const std::pair<std::string, const char*> bad[] = {
      {"", "empty"},
      {"/etc/passwd", "empty component"},
      {"a//b", "empty component"},
      {"a/", "empty component"},
      {".", "'.'"},
      {"..", "'..'"},
      {"a/../b", "'..'"},
      {"a/./b", "'.'"},
      {".hidden", "hidden"},
      {"a/.hidden/b", "hidden"},
      {"...", "hidden"},
      {"a\\b", "backslash"},
      {"a\nb", "control"},
      {"a\x7F", "control"},
      {"a\0b"s, "control"},
      {std::string(256, 'x'), "255 bytes"},
      {repeat("a/", 16) + "a", "16 components"},
      {repeat(std::string(200, 'x') + "/", 5) + std::string(100, 'x'), "1024 bytes"}};
  for (const auto& [path, reason] : bad) {
    EXPECT_NE(path_problem(path).find(reason), std::string::npos) << path << path_problem(path);
  }
}

TEST(PathRules, RefusesWhatIsNotUtf8) {
  for (const char* text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xC3", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "a\xE2\x82", "\xE2\x82z", "\xFF"}) {
    EXPECT_NE(path_problem(text).find("UTF-8"), std::string::npos) << escape_name(text);
    EXPECT_NE(tag_problem(text).find("UTF-8"), std::string::npos) << escape_name(text);
  }
  EXPECT_EQ(path_problem("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\xC2\x80"), "");
}

TEST(PathRules, RefusesAFileThatIsAlsoADirectory) {
  using Paths = std::vector<std::string_view>;
  EXPECT_EQ(paths_problem(Paths{}), "");
  EXPECT_EQ(paths_problem(Paths{"a", "ab", "b/a", "b/c"}), "");
  EXPECT_NE(paths_problem(Paths{"a", "a"}).find("twice"), std::string::npos);
  // "a-b" sorts between the two.
  EXPECT_NE(paths_problem(Paths{"a", "a-b", "a/b"}).find("directory"), std::string::npos);
  EXPECT_NE(paths_problem(Paths{"x/y", "x/y/z/w"}).find("'x/y'"), std::string::npos);
}

TEST(PathRules, ChecksTags) {
  for (const std::string& tag : {"step-42"s, "a b"s, std::string(200, 'x')}) {
    EXPECT_EQ(tag_problem(tag), "");
  }
  for (const std::string& tag :
       {""s, ".x"s, ".."s, "-x"s, " x"s, "a/b"s, "a\\b"s, "a\nb"s, std::string(201, 'x')}) {
    EXPECT_NE(tag_problem(tag), "") << tag;
  }
}

TEST(PathRules, EscapesNamesForMessages) {
  EXPECT_EQ(escape_name("plain-ü"), "plain-ü");
  EXPECT_EQ(escape_name("a\n\xFF\\b\xC3"), "a\\x0a\\xff\\x5cb\\xc3");
  EXPECT_EQ(escape_name("\xC2\x9B"
                        "2J\xC2\xA0"),
            "\\xc2\\x9b2J\xC2\xA0");
  EXPECT_EQ(escape_name(std::string(5000, 'x')), std::string(1024, 'x') + "...");
}

}  // namespace
}  // namespace weightfs
