// Reader session: identifies the caller for the purpose of pins.
//
//     the caller's cgroup, if it differs from the daemon's       "cgroup /system.slice/x.service"
//     else its process session                                   "session 4711"
//     all callers of a uid that this PID namespace does not show "invisible, uid 1000"
//
// A thread id is enough: FUSE passes the caller's, in the PID namespace of the mounting process.
//
// Threads: immutable; all calls may run in parallel.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weightfs::fs {

/// Time since boot: CLOCK_BOOTTIME.
using BootTime = std::chrono::nanoseconds;
BootTime boot_now();

/// One process; a reused pid makes another ProcessId.  All invisible processes of a uid share {0,
/// uid}.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since boot
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

struct Reader {
  std::string session;
  ProcessId process = {};
  std::string command = {};  // /proc/PID/comm
  uid_t uid = 0;
  BootTime started{};  // rounded down to a tick (10 ms); 0 if invisible
};

/// The purpose of reading a symlink.
enum class LinkUse : std::uint8_t {
  unknown,  // the thread cannot be inspected, or is in another system call
  open,     // open(2) and the like: walk through it
  look,     // stat(2), access(2) and the like: walk through it, but open nothing
  text      // readlink(2): no walk
};

class ReaderSessions {
 public:
  /// `proc`: where procfs is mounted; `self`: this process.  Remembers the daemon's own cgroup.  If
  /// the procfs is of another PID namespace, every caller is invisible.
  explicit ReaderSessions(std::filesystem::path proc = "/proc", pid_t self = getpid());

  /// The process of a thread.
  /// Returns: nullopt if it has ended meanwhile or cannot be inspected.
  [[nodiscard]] std::optional<Reader> find(pid_t thread, uid_t uid) const;

  /// True if the process has ended.  False if it is invisible.
  [[nodiscard]] bool is_gone(const ProcessId& process) const;

  /// Nearest first; none if the process has ended or is invisible.
  [[nodiscard]] std::vector<ProcessId> ancestors(const ProcessId& process) const;

  /// Those of the sessions that have no process left; none if processes are invisible.  Checks all
  /// processes, unless every session's leader is still there.
  [[nodiscard]] std::set<std::string> find_dead(std::set<std::string> sessions) const;

  /// Why the thread, whose READLINK is being answered, reads the symlink.
  [[nodiscard]] LinkUse use_of_link(pid_t thread) const;

  [[nodiscard]] const std::filesystem::path& proc() const noexcept { return proc_; }

 private:
  [[nodiscard]] std::string session_of(const std::filesystem::path& process,
                                       std::uint64_t process_session) const;

  std::filesystem::path proc_;
  bool is_usable_;
  std::string own_cgroup_;  // the text of /proc/self/cgroup
};

}  // namespace weightfs::fs
