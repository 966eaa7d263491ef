// /proc/THREAD/status names the process of a thread.  The process's stat has its parent, session
// and start time; its cgroup has a line for each hierarchy, or one line if there is only cgroup2.
// /proc/THREAD/syscall has the system call in which a thread sleeps.
#include "fs/passes/reader_session.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>

#include <charconv>
#include <ctime>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "fs/base/process_files.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::size_t kAncestorsMax = 32;
constexpr unsigned kSyscallTries = 20;
constexpr std::string_view kCgroup = "cgroup ";
constexpr std::string_view kSession = "session ";

// "" if the file cannot be read.
std::string read_proc_text(const stdfs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct ThreadStatus {
  pid_t process = 0;
  std::string command;
};

// process 0: the file cannot be read.
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
  char state = 0;  // 0: unreadable
  std::uint64_t parent = 0;
  std::uint64_t session = 0;
  std::uint64_t start_ticks = 0;
};

// The name in parentheses may contain anything, so fields are counted from its end: 3 is the state,
// 4 the parent, 6 the session, 22 the start time.
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
    if (number == 4) take(stat.parent);
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

// "/a" for "0::/a"; with several hierarchies each path once.
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

// From clock ticks.
BootTime from_ticks(std::uint64_t ticks) {
  static const long per_second = sysconf(_SC_CLK_TCK);
  return std::chrono::nanoseconds(std::chrono::seconds(1)) / per_second *
         static_cast<std::int64_t>(ticks);
}

bool is_ended(const ProcessStat& stat) {
  // A zombie opens nothing any more.
  return stat.state == 0 || stat.state == 'Z' || stat.state == 'X';
}

Reader invisible(uid_t uid) {
  return {.session = fmt::format("invisible, uid {}", uid),
          .process = {0, uid},
          .command = {},
          .uid = uid,
          .started = {}};
}

// The number of the system call; -1 if the thread does not sleep; nullopt if it cannot be read.
std::optional<long> read_syscall(const stdfs::path& path) {
  const std::string text = read_proc_text(path);
  if (text.starts_with("running")) return -1;
  long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

// Knows only the system calls of this machine's native ABI.
LinkUse use_in(long number) {
  switch (number) {
    case SYS_readlinkat:
#ifdef SYS_readlink
    case SYS_readlink:
#endif
      return LinkUse::text;
    case SYS_openat:
    case SYS_openat2:
#ifdef SYS_open
    case SYS_open:
#endif
      return LinkUse::open;
    case SYS_newfstatat:
    case SYS_statx:
    case SYS_faccessat:
    case SYS_faccessat2:
#ifdef SYS_stat
    case SYS_stat:
    case SYS_lstat:
    case SYS_access:
#endif
      return LinkUse::look;
    default:
      return LinkUse::unknown;
  }
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

BootTime boot_now() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::optional<Reader> ReaderSessions::find(pid_t thread, uid_t uid) const {
  if (thread == 0 || !is_usable_) return invisible(uid);
  const ThreadStatus status = read_thread_status(proc_ / std::to_string(thread) / "status");
  if (status.process == 0) return std::nullopt;
  const ProcessStat stat = read_process_stat(proc_ / std::to_string(status.process) / "stat");
  if (stat.state == 0) return std::nullopt;
  return Reader{.session = session_of(proc_ / std::to_string(status.process), stat.session),
                .process = {status.process, stat.start_ticks},
                .command = status.command,
                .uid = uid,
                .started = from_ticks(stat.start_ticks)};
}

bool ReaderSessions::is_gone(const ProcessId& process) const {
  if (process.pid == 0 || !is_usable_) return false;
  const ProcessStat stat = read_process_stat(proc_ / std::to_string(process.pid) / "stat");
  return is_ended(stat) || stat.start_ticks != process.start_ticks;
}

std::vector<ProcessId> ReaderSessions::ancestors(const ProcessId& process) const {
  std::vector<ProcessId> found;
  if (process.pid == 0 || !is_usable_) return found;
  auto stat = read_process_stat(proc_ / std::to_string(process.pid) / "stat");
  while (stat.state != 0 && stat.parent != 0 && found.size() < kAncestorsMax) {
    const auto parent = static_cast<pid_t>(stat.parent);
    stat = read_process_stat(proc_ / std::to_string(parent) / "stat");
    if (stat.state != 0) found.push_back({parent, stat.start_ticks});
  }
  return found;
}

std::set<std::string> ReaderSessions::find_dead(std::set<std::string> sessions) const {
  const auto session_at = [this](const stdfs::path& process) {
    const ProcessStat stat = read_process_stat(process / "stat");
    return is_ended(stat) ? std::string() : session_of(process, stat.session);
  };
  std::erase_if(sessions, [&](const std::string& session) {
    const bool is_process = session.starts_with(kSession);
    if (!is_usable_ || (!is_process && !session.starts_with(kCgroup))) return true;
    return is_process && session_at(proc_ / session.substr(kSession.size())) == session;
  });
  if (sessions.empty()) return sessions;
  for_each_process(proc_, [&](pid_t pid) {
    if (!sessions.empty()) sessions.erase(session_at(proc_ / std::to_string(pid)));
  });
  return sessions;
}

LinkUse ReaderSessions::use_of_link(pid_t thread) const {
  if (thread == 0 || !is_usable_) return LinkUse::unknown;
  const stdfs::path path = proc_ / std::to_string(thread) / "syscall";
  for (unsigned tries = 0; tries < kSyscallTries; tries++) {
    const auto number = read_syscall(path);
    if (!number) return LinkUse::unknown;
    if (*number >= 0) return use_in(*number);
    sched_yield();  // it is about to sleep, waiting for this answer
  }
  return LinkUse::unknown;
}

// A process from outside this PID namespace has session 0 here.
std::string ReaderSessions::session_of(const stdfs::path& process,
                                       std::uint64_t process_session) const {
  const std::string text = read_proc_text(process / "cgroup");
  const std::string others = other_cgroups(text, own_cgroup_);
  if (!others.empty()) return std::string(kCgroup) + others;
  return fmt::format("{}{}", kSession, process_session);
}

}  // namespace weightfs::fs
