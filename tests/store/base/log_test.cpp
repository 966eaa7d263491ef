#include "store/base/log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::system_clock::time_point kNoon{std::chrono::milliseconds(1'764'072'000'123)};

std::string text_line(std::string_view message, bool is_journal = false) {
  return log_line(kNoon, LogLevel::warning, message, LogFormat::text, is_journal);
}

TEST(LogLine, HasTimeLevelAndMessage) {
  EXPECT_EQ(text_line("a b"), "2025-11-25T12:00:00.123Z warning a b");
  EXPECT_EQ(log_line(kNoon, LogLevel::info, "a", LogFormat::json, false),
            fmt::format(R"({{"time":"2025-11-25T12:00:00.123Z","level":"info","pid":{},)"
                        R"("message":"a"}})",
                        ::getpid()));
}

TEST(LogLine, IsOneLineWhateverTheMessage) {
  EXPECT_EQ(text_line("a\n<0>forged\r\x1b[31m", true), "<4>a\\n<0>forged\\x0d\\x1b[31m");
  std::string any;
  for (int byte = 0; byte < 256; byte++) any += static_cast<char>(byte);
  for (const bool is_journal : {false, true}) {
    std::string line = log_line(kNoon, LogLevel::error, any, LogFormat::json, is_journal);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    if (is_journal) {
      EXPECT_EQ(line.substr(0, 3), "<3>");
      line = line.substr(3);
    }
    const auto parsed = nlohmann::json::parse(line);
    EXPECT_EQ(parsed["level"], "error");
    EXPECT_TRUE(parsed["message"].get<std::string>().starts_with(any.substr(0, 128)));
  }
}

// U+009B is ESC [ in one character.
TEST(LogLine, HasNoControlCharactersBehindAsciiEither) {
  EXPECT_EQ(text_line("a\xC2\x9B"
                      "31m",
                      true),
            "<4>a\\xc2\\x9b31m");
  EXPECT_EQ(text_line("\xC2\xA0\xC3\x9B\xC2", true), "<4>\xC2\xA0\xC3\x9B\xC2");
}

TEST(LogJournal, IsTheStreamThatTheVariableNames) {
  const test::TempDir directory;
  const File file = File::open(directory.path() / "f", O_RDWR | O_CREAT);
  struct stat attributes {};
  ASSERT_EQ(::fstat(file.fd(), &attributes), 0);
  const std::string right = fmt::format("{}:{}", attributes.st_dev, attributes.st_ino);
  EXPECT_TRUE(is_journal(file.fd(), right.c_str()));
  const std::string wrong = fmt::format("{}:{}", attributes.st_dev, attributes.st_ino + 1);
  for (const char* const other : {wrong.c_str(), "", "x", "1"}) {
    EXPECT_FALSE(is_journal(file.fd(), other)) << other;
  }
  EXPECT_FALSE(is_journal(file.fd(), nullptr));
}

TEST(LogFile, HasWhatIsAsBadAsTheLevelAndCountsAll) {
  const test::TempDir directory;
  const std::filesystem::path path = directory.path() / "log";
  const LogCounts before = log_counts();
  log_to_file(path, {.least = LogLevel::error, .format = LogFormat::json});
  log_warning("not this");
  log_error("this");
  log_to_stderr({.least = LogLevel::warning});
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(nlohmann::json::parse(line)["message"], "this");
  EXPECT_FALSE(std::getline(file, line));
  EXPECT_EQ(log_counts().warnings, before.warnings + 1);
  EXPECT_EQ(log_counts().errors, before.errors + 1);
}

TEST(LogIfPossible, LogsAtTheLevelAndThrowsNothing) {
  const LogCounts before = log_counts();
  for (const LogLevel level :
       {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    log_if_possible(level, [] { return "said by a test"; });
    log_if_possible(level, []() -> std::string { throw std::bad_alloc(); });
  }
  EXPECT_EQ(log_counts().warnings, before.warnings + 1);
  EXPECT_EQ(log_counts().errors, before.errors + 1);
}

}  // namespace
}  // namespace weightfs
