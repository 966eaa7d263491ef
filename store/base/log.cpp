#include "store/base/log.hpp"

#include <fmt/format.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "store/base/controls.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kLogBytesMax = 10u << 20;
constexpr std::size_t kOldLogs = 1;

std::atomic<std::uint64_t> logged_warnings = 0, logged_errors = 0;

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

LogLevel level_of(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return LogLevel::debug;
  if (level == spdlog::level::info) return LogLevel::info;
  return level == spdlog::level::warn ? LogLevel::warning : LogLevel::error;
}

/// As sd-daemon.h has them.
int journal_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return 7;
    case LogLevel::info:
      return 6;
    case LogLevel::warning:
      return 4;
    case LogLevel::error:
      return 3;
  }
  return 6;
}

std::string time_text(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(time);
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(ms));
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  const auto part = ms - std::chrono::floor<std::chrono::seconds>(ms);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     part.count());
}

std::string without_controls(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t size = control_size(text);
    if (text[0] == '\n') {
      line += "\\n";
    } else if (size == 0) {
      line += text[0];
    } else {
      for (const char c : text.substr(0, size)) {
        line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return line;
}

class LineFormatter final : public spdlog::formatter {
 public:
  LineFormatter(LogFormat format, bool is_journal) : format_(format), is_journal_(is_journal) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& into) override {
    const std::string line =
        log_line(message.time, level_of(message.level),
                 {message.payload.data(), message.payload.size()}, format_, is_journal_) +
        "\n";
    into.append(line.data(), line.data() + line.size());
  }
  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_, is_journal_);
  }

 private:
  const LogFormat format_;
  const bool is_journal_;
};

void use(spdlog::sink_ptr sink, const LogOptions& options, bool is_journal) {
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::move(sink));
  logger->set_formatter(std::make_unique<LineFormatter>(options.format, is_journal));
  logger->set_level(level_of(options.least));
  logger->flush_on(level_of(options.least));
  spdlog::set_default_logger(std::move(logger));
}

// The library's default is stdout, which is reserved for data.
spdlog::logger& logger() {
  static const bool once = [] {
    if (spdlog::default_logger()->name().empty()) log_to_stderr({.least = LogLevel::warning});
    return true;
  }();
  static_cast<void>(once);
  return *spdlog::default_logger_raw();
}

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
  }
  return "";
}

void log_to_stderr(const LogOptions& options) {
  use(std::make_shared<spdlog::sinks::stderr_sink_mt>(), options,
      is_journal(STDERR_FILENO, std::getenv("JOURNAL_STREAM")));
}

void log_to_file(const std::filesystem::path& path, const LogOptions& options) {
  try {
    use(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path.string(), kLogBytesMax,
                                                               kOldLogs),
        options, false);
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(ErrorCode::io, "cannot write the log " + path.string() + ": " + error.what());
  }
}

void log_debug(std::string_view message) { logger().debug(message); }
void log_info(std::string_view message) { logger().info(message); }
void log_warning(std::string_view message) {
  logged_warnings++;
  logger().warn(message);
}
void log_error(std::string_view message) {
  logged_errors++;
  logger().error(message);
}

void log_at(LogLevel level, std::string_view message) {
  switch (level) {
    case LogLevel::debug:
      return log_debug(message);
    case LogLevel::info:
      return log_info(message);
    case LogLevel::warning:
      return log_warning(message);
    case LogLevel::error:
      return log_error(message);
  }
}

void log_caught(std::string_view doing, const std::exception& error) noexcept {
  log_if_possible(LogLevel::warning, [&] { return std::string(doing) + ": " + error.what(); });
}

LogCounts log_counts() noexcept { return {logged_warnings, logged_errors}; }

std::string log_line(std::chrono::system_clock::time_point time, LogLevel level,
                     std::string_view message, LogFormat format, bool is_journal) {
  std::string line = is_journal ? fmt::format("<{}>", journal_level(level)) : "";
  if (format == LogFormat::json) {
    const nlohmann::ordered_json fields{{"time", time_text(time)},
                                        {"level", to_string(level)},
                                        {"pid", getpid()},
                                        {"message", message}};
    return line + fields.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  if (!is_journal) line += fmt::format("{} {} ", time_text(time), to_string(level));
  return line + without_controls(message);
}

bool is_journal(int fd, const char* journal_stream) noexcept {
  unsigned long long device = 0, inode = 0;
  struct stat attributes {};
  return journal_stream != nullptr &&
         std::sscanf(journal_stream, "%llu:%llu", &device, &inode) == 2 &&
         ::fstat(fd, &attributes) == 0 && attributes.st_dev == device && attributes.st_ino == inode;
}

}  // namespace weightfs
