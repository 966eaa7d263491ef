#include "store/base/log.hpp"

#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kLogBytesMax = 10u << 20;
constexpr std::size_t kOldLogs = 1;

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

void use(spdlog::sink_ptr sink, LogLevel least) {
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::move(sink));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  logger->set_level(level_of(least));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

// The library's default is stdout, which is reserved for data.
spdlog::logger& logger() {
  static const bool once = [] {
    if (spdlog::default_logger()->name().empty()) log_to_stderr(LogLevel::warning);
    return true;
  }();
  static_cast<void>(once);
  return *spdlog::default_logger_raw();
}

}  // namespace

void log_to_stderr(LogLevel least) {
  use(std::make_shared<spdlog::sinks::stderr_sink_mt>(), least);
}

void log_to_file(const std::filesystem::path& path, LogLevel least) {
  try {
    use(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path.string(), kLogBytesMax,
                                                               kOldLogs),
        least);
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(ErrorCode::io, "cannot write the log " + path.string() + ": " + error.what());
  }
}

void log_debug(std::string_view message) { logger().debug(message); }
void log_info(std::string_view message) { logger().info(message); }
void log_warning(std::string_view message) { logger().warn(message); }
void log_error(std::string_view message) { logger().error(message); }

}  // namespace weightfs
