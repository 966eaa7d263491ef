#include <gtest/gtest.h>

#include <sstream>

#include "fs/base/text_table.hpp"
#include "fs/cli/progress_line.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TextTable, AlignsItsColumns) {
  TextTable table({{"NAME"}, {"SIZE", TextTable::Align::right}, {"NOTE"}});
  table.add({"a", "1", ""});
  table.add({"long name", "1000", "x"});
  EXPECT_EQ(table.text(),
            "NAME       SIZE  NOTE\n"
            "a             1\n"
            "long name  1000  x\n");
}

TEST(TextTable, HasNoHeadingWithoutTitles) {
  TextTable table({{}, {}});
  table.add({"tag", "x"});
  table.add({"version", "1"});
  EXPECT_EQ(table.text(),
            "tag      x\n"
            "version  1\n");
}

TEST(TextTable, CountsCharactersAndNotBytes) {
  TextTable table({{}, {}});
  table.add({"\xC3\xA9", "1"});
  table.add({"ee", "2"});
  EXPECT_EQ(table.text(), "\xC3\xA9   1\nee  2\n");
}

TEST(TextTable, ControlCharactersNeverReachATerminal) {
  TextTable table(std::vector<TextTable::Column>(1));
  table.add({"a\x1b[2J\n\x7F"});
  EXPECT_EQ(table.text(), "a?[2J??\n");
}

// U+009B is ESC [ in one character.
TEST(TextTable, NeitherDoTheControlCharactersBehindAscii) {
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J\xC2\x80.\xC2\x9F"),
            "?2J?.?");
  const std::string others = "\xC2\xA0\xC3\x9B\xE2\x82\x9B\xC2";
  EXPECT_EQ(printable(others), others);
}

TEST(TextTable, TheLastColumnGoesOnInTheNextLine) {
  TextTable table({{"N", TextTable::Align::right}, {"NOTE"}});
  table.add({"1", "short"});
  table.add({"10", "some words that do not fit"});
  table.add({"11", ""});
  EXPECT_EQ(table.text(20),
            " N  NOTE\n"
            " 1  short\n"
            "10  some words that\n"
            "    do not fit\n"
            "11\n");
}

TEST(TextTable, AWordThatIsTooLongBeginsFurtherLeft) {
  TextTable table({{"NUMBER"}, {"SIZE"}, {"TAG"}});
  table.add({"1", "10 MiB", "a-long-tag a=1"});
  EXPECT_EQ(table.text(20),
            "NUMBER  SIZE    TAG\n"
            "1       10 MiB\n"
            "      a-long-tag a=1\n");
  for (const std::size_t width : {0u, 100u}) {
    EXPECT_EQ(table.text(width),
              "NUMBER  SIZE    TAG\n"
              "1       10 MiB  a-long-tag a=1\n");
  }
}

TEST(ProgressLine, TellsShareBytesRateAndTimeLeft) {
  EXPECT_EQ(progress_text("reading", 1 << 20, 4 << 20, seconds(1)),
            "reading      25 %  1.0 MiB of 4.0 MiB  1.0 MiB/s  3 s left");
  EXPECT_EQ(progress_text("reading", 4 << 20, 4 << 20, seconds(1)),
            "reading     100 %  4.0 MiB of 4.0 MiB  4.0 MiB/s");
  EXPECT_EQ(progress_text("reading", 1 << 20, 0, seconds(1)), "reading     1.0 MiB  1.0 MiB/s");
}

TEST(ProgressLine, LongTimesAreMinutesAndHours) {
  const auto left = [](std::uint64_t times) {
    const std::string text = progress_text("p", 1024, 1024 * (times + 1), seconds(1));
    return text.substr(text.rfind("  ") + 2);
  };
  EXPECT_EQ(left(59), "59 s left");
  EXPECT_EQ(left(61), "1:01 min left");
  EXPECT_EQ(left(3600), "1:00 h left");
}

TEST(ProgressLine, NothingHappensNeverDividesByZero) {
  EXPECT_EQ(progress_text("p", 0, 10, seconds(0)), "p             0 %  0 B of 10 B  0 B/s");
}

class ProgressLineTest : public testing::Test {
 protected:
  Clock::time_point now_{};
  std::ostringstream out_;
  ProgressLine line_{out_, 80, [this] { return now_; }};

  std::string taken() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }
};

TEST_F(ProgressLineTest, ShowsNothingDuringTheFirstSecond) {
  line_.update("reading", 1, 10);
  now_ += milliseconds(999);
  line_.update("reading", 2, 10);
  line_.clear();
  EXPECT_EQ(taken(), "");
  now_ += milliseconds(1);
  line_.update("reading", 3, 10);
  EXPECT_NE(taken().find("30 %"), std::string::npos);
}

TEST_F(ProgressLineTest, ShowsAtMostTenLinesASecond) {
  now_ += seconds(2);
  line_.update("reading", 1, 10);
  EXPECT_NE(taken(), "");
  now_ += milliseconds(99);
  line_.update("reading", 2, 10);
  EXPECT_EQ(taken(), "");
  line_.update("writing", 0, 10);  // but a new phase is shown at once
  EXPECT_NE(taken().find("writing"), std::string::npos);
  now_ += milliseconds(100);
  line_.update("writing", 1, 10);
  EXPECT_NE(taken(), "");
}

TEST_F(ProgressLineTest, TellsWhenNothingComes) {
  now_ += milliseconds(2999);
  line_.tell_silence();
  EXPECT_EQ(taken(), "");
  now_ += milliseconds(1);
  line_.tell_silence();
  EXPECT_EQ(taken(), "\r\x1b[Kwaiting for the bucket: no answer for 3 s");
  line_.update("uploading", 1, 10);
  taken();
  now_ += seconds(61);
  line_.tell_silence();
  EXPECT_EQ(taken(), "\r\x1b[Kuploading, waiting for the bucket: no answer for 1:01 min");
  line_.update("uploading", 2, 10);
  taken();
  line_.tell_silence();
  EXPECT_EQ(taken(), "");
}

TEST_F(ProgressLineTest, ALineThatIsTooLongIsCut) {
  now_ += seconds(2);
  line_.update(std::string(81, 'x'), 0, 0);
  EXPECT_EQ(taken(), "\r\x1b[K" + std::string(77, 'x') + "...");
}

TEST_F(ProgressLineTest, WritesOverItsLineAndTakesItAway) {
  now_ += seconds(2);
  line_.update("reading", 1, 10);
  EXPECT_TRUE(taken().starts_with("\r\x1b[K"));
  line_.clear();
  EXPECT_EQ(taken(), "\r\x1b[K");
  line_.clear();
  EXPECT_EQ(taken(), "");
}

}  // namespace
}  // namespace weightfs::fs
