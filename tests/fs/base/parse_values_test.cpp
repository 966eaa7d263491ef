#include "fs/base/parse_values.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;

/// What the function says to a text that it refuses; "" if it takes it.
template <typename Function>
std::string refused_value(Function function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid);
    return error.what();
  }
}

TEST(Values, SizesMayHaveUnits) {
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("1073741824"), 1073741824U);
  EXPECT_EQ(parse_size("17B"), 17U);
  EXPECT_EQ(parse_size("500M"), 500U << 20);
  EXPECT_EQ(parse_size("500MiB"), 500U << 20);
  EXPECT_EQ(parse_size("500MB"), 500'000'000U);
  EXPECT_EQ(parse_size("10GiB"), 10ULL << 30);
  EXPECT_EQ(parse_size("3T"), 3ULL << 40);
  EXPECT_EQ(parse_size("15P"), 15ULL << 50);
  EXPECT_EQ(parse_size("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(Values, SizesThatAreNoneAreRefused) {
  for (const char* text : {"", "G", "-1", "1.5G", "10 G", "10g", "10GB2", "10Gi", "0x10", "1e9",
                           "+5", "18446744073709551616", "20000P"}) {
    EXPECT_NE(refused_value([&] { parse_size(text); }), "") << text;
  }
  EXPECT_EQ(refused_value([] { parse_size("ten"); }),
            "'ten' is not a size such as 1073741824, 500M or 10GiB");
}

TEST(Values, WordsAreNotEmptyAndHaveNothingHidden) {
  EXPECT_EQ(parse_word("eu-west-1"), "eu-west-1");
  EXPECT_EQ(parse_word("my profile"), "my profile");
  for (const char* text : {"", " ", " a", "a ", "a\nb", "a\x7F"}) {
    EXPECT_NE(refused_value([&] { parse_word(text); }), "") << text;
  }
}

TEST(Values, NumbersKeepTheirRange) {
  EXPECT_EQ(parse_number("7", {1, 7}), 7U);
  EXPECT_EQ(parse_number("1", {1, 7}), 1U);
  for (const char* text : {"", "0", "8", "-1", "+1", "1 ", "1.0", "99999999999999999999"}) {
    EXPECT_NE(refused_value([&] { parse_number(text, {1, 7}); }), "") << text;
  }
  EXPECT_EQ(refused_value([] { parse_number("8", {1, 7}); }), "'8' is not a number from 1 to 7");
}

TEST(Values, SecondsMayHaveFractions) {
  EXPECT_EQ(parse_seconds("0.5"), milliseconds(500));
  EXPECT_EQ(parse_seconds("2"), milliseconds(2000));
  EXPECT_EQ(parse_seconds("0.01"), milliseconds(10));
  EXPECT_EQ(parse_seconds("86400"), milliseconds(86'400'000));
  for (const char* text : {"", "0", "0.009", "-1", "86401", "nan", "inf", "1s", "1e3", "0x2"}) {
    EXPECT_NE(refused_value([&] { parse_seconds(text); }), "") << text;
  }
}

TEST(Values, UmasksAreOctal) {
  EXPECT_EQ(parse_umask("022"), 022U);
  EXPECT_EQ(parse_umask("777"), 0777U);
  for (const char* text : {"", "8", "1000", "-1", "0o22"}) {
    EXPECT_NE(refused_value([&] { parse_umask(text); }), "") << text;
  }
}

TEST(Values, ModesAreOctal) {
  EXPECT_EQ(parse_mode("755"), 0755U);
  EXPECT_EQ(parse_mode("3777"), 03777U);
  for (const char* text : {"", "8", "4755", "-1", "0o755"}) {
    EXPECT_NE(refused_value([&] { parse_mode(text); }), "") << text;
  }
}

TEST(Values, SwitchesHaveFourSpellingsEach) {
  for (const char* text : {"true", "yes", "on", "1"}) EXPECT_TRUE(parse_switch(text)) << text;
  for (const char* text : {"false", "no", "off", "0"}) EXPECT_FALSE(parse_switch(text)) << text;
  EXPECT_NE(refused_value([] { parse_switch("maybe"); }), "");
}

TEST(Values, PairsAreSplitAtTheFirstEqualsSign) {
  EXPECT_EQ(parse_pair("a=b"), std::pair(std::string_view("a"), std::string_view("b")));
  EXPECT_EQ(parse_pair("a=b=c").second, "b=c");
  EXPECT_EQ(parse_pair("a=").second, "");
  EXPECT_NE(refused_value([] { parse_pair("=b"); }), "");
  EXPECT_NE(refused_value([] { parse_pair("ab"); }), "");
}

}  // namespace
}  // namespace weightfs::fs
