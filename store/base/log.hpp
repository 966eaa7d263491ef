// Log: logfmt-like lines on stderr or in a bounded file.  Home of spdlog.
//
// Never log secrets: URLs go through canonical_url() first.  Threads: all calls may run in
// parallel.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace weightfs {

enum class LogLevel { debug, info, warning, error };

/// Until called, warnings and errors go to stderr.
void log_to_stderr(LogLevel least);
/// Rotates at 10 MiB, keeps one old file.  Throws Error: io, permission.
void log_to_file(const std::filesystem::path& path, LogLevel least);

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace weightfs
