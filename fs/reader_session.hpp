// Reader session: who it is that calls, in the sense of pins.
//
//     the caller's cgroup, when it differs from the daemon's     "cgroup
//     /system.slice/vllm.service" else its process session "session 4711" callers that this PID
//     namespace does not show (pid 0)      "invisible"
//
// A thread id is enough: FUSE gives that of the caller, in the PID namespace of who mounted.
//
// Threads: immutable; all calls may run in parallel.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weightfs::fs {

/// One process; a number that is given out again is another one.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since the machine started
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

struct Reader {
  std::string session;
  ProcessId process = {};    // {0, 0}: cannot be seen
  std::string command = {};  // /proc/PID/comm
};

inline constexpr const char* kInvisibleSession = "invisible";

class ReaderSessions {
 public:
  /// `proc`: where procfs is mounted; `self`: this process.  Remembers the daemon's own cgroup.  A
  /// procfs of another PID namespace is of no use: then everybody is invisible.
  explicit ReaderSessions(std::filesystem::path proc = "/proc", pid_t self = getpid());

  /// Who the thread belongs to.  Returns: nullopt if it has ended meanwhile or may not be looked
  /// at.
  [[nodiscard]] std::optional<Reader> find(pid_t thread) const;

  /// True if the process has ended.  False for one that cannot be seen.
  [[nodiscard]] bool is_gone(const ProcessId& process) const;

  [[nodiscard]] const std::filesystem::path& proc() const noexcept { return proc_; }

 private:
  [[nodiscard]] std::string session_of(pid_t process, std::uint64_t process_session) const;

  std::filesystem::path proc_;
  bool is_usable_;
  std::string own_cgroup_;  // the text of /proc/self/cgroup
};

}  // namespace weightfs::fs
