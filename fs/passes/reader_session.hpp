// Reader session: who it is that calls, in the sense of pins.
//
//     the caller's cgroup, where it differs from the daemon's    "cgroup /system.slice/x.service"
//     else its process session                                   "session 4711"
//     all callers of a uid that this PID namespace does not show "invisible, uid 1000"
//
// A thread id is enough: FUSE gives that of the caller, in the PID namespace of who mounted.
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

/// Since the machine started: CLOCK_BOOTTIME.
using BootTime = std::chrono::nanoseconds;
BootTime boot_now();

/// One process; a number that is given out again is another one.  All that cannot be seen of one
/// uid are one: {0, uid}.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since the machine started
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

struct Reader {
  std::string session;
  ProcessId process = {};
  std::string command = {};  // /proc/PID/comm
  uid_t uid = 0;
  BootTime started{};  // rounded down to a tick (10 ms); 0 for those that cannot be seen
};

/// What a symlink is read for.
enum class LinkUse : std::uint8_t {
  unknown,  // the thread may not be looked at, or is in another system call
  open,     // open(2) and its kin walk through it
  look,     // so do stat(2), access(2) and theirs, which open nothing
  text      // readlink(2): it walks nowhere
};

class ReaderSessions {
 public:
  /// `proc`: where procfs is mounted; `self`: this process.  Remembers the daemon's own cgroup.  A
  /// procfs of another PID namespace is of no use: then everybody is invisible.
  explicit ReaderSessions(std::filesystem::path proc = "/proc", pid_t self = getpid());

  /// Who the thread belongs to.  Returns: nullopt if it has ended meanwhile or may not be looked
  /// at.
  [[nodiscard]] std::optional<Reader> find(pid_t thread, uid_t uid) const;

  /// True if the process has ended.  False for one that cannot be seen.
  [[nodiscard]] bool is_gone(const ProcessId& process) const;

  /// The nearest first; none for a process that has ended or cannot be seen.
  [[nodiscard]] std::vector<ProcessId> ancestors(const ProcessId& process) const;

  /// Those of the sessions of which no process is left; none where they cannot be seen.  Looks at
  /// all processes, unless those that began the sessions are there.
  [[nodiscard]] std::set<std::string> find_dead(std::set<std::string> sessions) const;

  /// What the thread, whose READLINK is being answered, wants it for.
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
