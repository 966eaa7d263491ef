// /proc/THREAD/status says which process it is, stat of that process its session and when it began,
// cgroup where it is: one line for each hierarchy, one in all where there is only cgroup2.
#include "fs/reader_session.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

// "" if it cannot be read.
std::string read_proc_text(const stdfs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct ThreadStatus {
  pid_t process = 0;
  std::string command;
};

// 0: it cannot be read.
ThreadStatus read_thread_status(const stdfs::path& path) {
  ThreadStatus status;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Name:\t")) status.command = line.substr(6);
    if (!line.starts_with("Tgid:\t")) continue;
    std::from_chars(line.data() + 6, line.data() + line.size(), status.process);
    return status;
  }
  return status;
}

struct ProcessStat {
  char state = 0;  // 0: it cannot be read
  std::uint64_t session = 0;
  std::uint64_t start_ticks = 0;
};

// The name in parentheses may hold anything, so the fields are counted from behind it: 3 is the
// state, 6 the session, 22 the start.
ProcessStat read_process_stat(const stdfs::path& path) {
  const std::string text = read_proc_text(path);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; number++) {
    const auto take = [&](std::uint64_t& into) {
      std::from_chars(field.data(), field.data() + field.size(), into);
    };
    if (number == 3) stat.state = field.front();
    if (number == 6) take(stat.session);
    if (number == 22) take(stat.start_ticks);
  }
  return fields ? stat : ProcessStat{};
}

std::set<std::string> lines_of_text(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

// "/a" of "0::/a"; of several hierarchies each path once.
std::string other_cgroups(const std::string& text, const std::string& own) {
  const std::set<std::string> known = lines_of_text(own);
  std::set<std::string> paths;
  for (const std::string& line : lines_of_text(text)) {
    const std::size_t path = line.find(":/");
    if (path != std::string::npos && !known.contains(line)) paths.insert(line.substr(path + 1));
  }
  std::string all;
  for (const std::string& path : paths) all += all.empty() ? path : "," + path;
  return all;
}

bool shows_process(const stdfs::path& proc, pid_t self) {
  std::error_code failed;
  return stdfs::read_symlink(proc / "self", failed) == std::to_string(self) && !failed;
}

}  // namespace

ReaderSessions::ReaderSessions(stdfs::path proc, pid_t self)
    : proc_(std::move(proc)),
      is_usable_(shows_process(proc_, self)),
      own_cgroup_(read_proc_text(proc_ / std::to_string(self) / "cgroup")) {}

std::optional<Reader> ReaderSessions::find(pid_t thread) const {
  if (thread == 0 || !is_usable_) return Reader{.session = kInvisibleSession};
  const ThreadStatus status = read_thread_status(proc_ / std::to_string(thread) / "status");
  if (status.process == 0) return std::nullopt;
  const ProcessStat stat = read_process_stat(proc_ / std::to_string(status.process) / "stat");
  if (stat.state == 0) return std::nullopt;
  return Reader{.session = session_of(status.process, stat.session),
                .process = {status.process, stat.start_ticks},
                .command = status.command};
}

bool ReaderSessions::is_gone(const ProcessId& process) const {
  if (process.pid == 0 || !is_usable_) return false;
  const ProcessStat stat = read_process_stat(proc_ / std::to_string(process.pid) / "stat");
  // One that has ended and was not waited for opens nothing any more.
  return stat.state == 0 || stat.state == 'Z' || stat.state == 'X' ||
         stat.start_ticks != process.start_ticks;
}

std::string ReaderSessions::session_of(pid_t process, std::uint64_t process_session) const {
  const std::string text = read_proc_text(proc_ / std::to_string(process) / "cgroup");
  const std::string others = other_cgroups(text, own_cgroup_);
  if (!others.empty()) return "cgroup " + others;
  // The session of a process that came from outside this PID namespace has no number here.
  return process_session == 0 ? kInvisibleSession : fmt::format("session {}", process_session);
}

}  // namespace weightfs::fs
