#include "store/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "store/error.hpp"
#include "store/file.hpp"

namespace weightfs {
namespace {

constexpr int kChildLookMs = 50;  // how often a stop and the deadline are looked at

/// What happens between fork and exec.
class ChildActions {
 public:
  explicit ChildActions(int output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    posix_spawn_file_actions_addchdir_np(&actions_, "/");
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  ~ChildActions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  ChildActions(const ChildActions&) = delete;
  ChildActions& operator=(const ChildActions&) = delete;

  /// Throws Error.  Returns: its pid, which is its group as well.
  [[nodiscard]] pid_t start(ChildPlan plan) const {
    std::vector<char*> argv, environment;
    for (std::string& word : plan.argv) argv.push_back(word.data());
    for (std::string& entry : plan.environment) environment.push_back(entry.data());
    argv.push_back(nullptr);
    environment.push_back(nullptr);
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, argv[0], &actions_, &attributes_, argv.data(), environment.data());
    if (error != 0) throw_errno(error, "run " + plan.argv[0]);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// A child and its group; neither outlives this.
class ChildGroup {
 public:
  explicit ChildGroup(pid_t pid)
      : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  ~ChildGroup() {
    if (pid_ != 0) end();
  }
  ChildGroup(const ChildGroup&) = delete;
  ChildGroup& operator=(const ChildGroup&) = delete;

  [[nodiscard]] int ended_fd() const noexcept { return pidfd_.fd(); }

  /// Kills the group.  The child is reaped after, so that the group's number is still its own.
  /// Returns: waitpid's status.
  int end() noexcept {
    kill(-pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_;
  File pidfd_;
};

/// Takes what is in the pipe without waiting.  Returns: false at its end.
bool take_output(int fd, std::size_t bytes_max, ChildEnd& end) {
  std::array<char, 16384> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0;
    end.output.append(buffer.data(), static_cast<std::size_t>(got));
    if (end.output.size() <= bytes_max) continue;
    end.output.erase(0, end.output.size() - bytes_max);
    end.is_cut = true;
  }
}

}  // namespace

ChildEnd run_child_process(const ChildPlan& plan, const Context& context) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
  const File output(ends[0]);
  File input(ends[1]);
  fcntl(output.fd(), F_SETFL, O_NONBLOCK);
  const std::string what = "waiting for the end of " + plan.argv[0];
  context.check(what);
  ChildGroup child(ChildActions(input.fd()).start(plan));
  input = File();
  if (child.ended_fd() < 0) throw_errno(errno, "watch " + plan.argv[0]);

  ChildEnd end;
  std::array<pollfd, 2> waiting{{{.fd = child.ended_fd(), .events = POLLIN, .revents = 0},
                                 {.fd = output.fd(), .events = POLLIN, .revents = 0}}};
  while (waiting[0].revents == 0) {
    context.check(what);
    if (poll(waiting.data(), waiting.size(), kChildLookMs) < 0) waiting[0].revents = 0;
    if (!take_output(output.fd(), plan.output_bytes_max, end)) waiting[1].fd = -1;
  }
  const int status = child.end();
  take_output(output.fd(), plan.output_bytes_max, end);
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return end;
}

}  // namespace weightfs
