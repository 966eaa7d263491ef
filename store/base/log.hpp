// Log: logfmt-like lines on stderr or in a bounded file.  Home of spdlog.
//
//     2026-11-25T13:30:00.123Z info version 42 is shown                           text
//     {"time":"2026-11-25T13:30:00.123Z","level":"info","pid":7,"message":"..."}  json
//
// One message is one line: control characters are escaped, so that no file name can forge a line.
// On a stderr that is the journal's (JOURNAL_STREAM) each line begins with its level as systemd
// knows it, "<4>", which journald takes off; text lines then have neither time nor level.
//
// Never log secrets: URLs go through canonical_url() first.  Threads: all calls may run in
// parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

namespace weightfs {

enum class LogLevel { debug, info, warning, error };
std::string_view to_string(LogLevel level) noexcept;

enum class LogFormat { text, json };

struct LogOptions {
  LogLevel least = LogLevel::info;
  LogFormat format = LogFormat::text;
};

/// Until called, warnings and errors go to stderr.
void log_to_stderr(const LogOptions& options);
/// Rotates at 10 MiB, keeps one old file.  Throws Error: io, permission.
void log_to_file(const std::filesystem::path& path, const LogOptions& options);

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

void log_at(LogLevel level, std::string_view message);

/// Logs what `words` returns; nothing where there is no memory for that.  For who must not throw.
template <typename Words>
void log_if_possible(LogLevel level, const Words& words) noexcept {
  try {
    log_at(level, words());
  } catch (const std::exception&) {
    // Whoever calls it goes on.
  }
}

/// Logs "DOING: what()" as a warning, if possible.
void log_caught(std::string_view doing, const std::exception& error) noexcept;

/// Warnings and errors of this process, whether or not they were written.
struct LogCounts {
  std::uint64_t warnings = 0, errors = 0;
};
LogCounts log_counts() noexcept;

/// A line without its end.  `is_journal`: for systemd's journal.
std::string log_line(std::chrono::system_clock::time_point time, LogLevel level,
                     std::string_view message, LogFormat format, bool is_journal);

/// Whether `fd` is the stream that `journal_stream`, the value of JOURNAL_STREAM, names: of a
/// process that systemd started, until it is redirected.
bool is_journal(int fd, const char* journal_stream) noexcept;

}  // namespace weightfs
