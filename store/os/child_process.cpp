#include "store/os/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>

#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr int kChildLookMs = 50;  // interval for checking stop and deadline
constexpr int kReadsAtOnce = 64;  // more than a pipe has room for

/// The actions between fork and exec.
class ChildActions {
 public:
  ChildActions(const ChildPlan& plan, int output, int errors) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, errors, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    if (!plan.directory.empty()) {
      posix_spawn_file_actions_addchdir_np(&actions_, plan.directory.c_str());
    }
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

  /// Throws Error.  Returns: its pid, which is also its process group.
  [[nodiscard]] pid_t start(ChildPlan plan) const {
    std::vector<char*> argv, own;
    for (std::string& word : plan.argv) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (plan.environment) {
      for (std::string& entry : *plan.environment) own.push_back(entry.data());
    }
    own.push_back(nullptr);
    char** environment = plan.environment ? own.data() : environ;
    pid_t pid = 0;
    const int error =
        posix_spawnp(&pid, argv[0], &actions_, &attributes_, argv.data(), environment);
    if (error != 0) throw_errno(error, "run " + plan.argv[0]);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// A child that does not outlive this object; nor does its group, unless it was waited for.
class ChildGroup {
 public:
  explicit ChildGroup(pid_t pid)
      : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  ~ChildGroup() {
    if (pid_ != 0) end(true);
  }
  ChildGroup(const ChildGroup&) = delete;
  ChildGroup& operator=(const ChildGroup&) = delete;

  [[nodiscard]] int ended_fd() const noexcept { return pidfd_.fd(); }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Waits for the child.  Kills the group first, while its number cannot have been reused.
  /// Returns: waitpid's status; nullopt: the kernel has thrown it away (SIGCHLD is ignored).
  std::optional<int> end(bool kills_group) noexcept {
    if (kills_group) kill(-pid_, SIGKILL);
    int status = 0;
    pid_t ended = -1;
    do {
      ended = waitpid(pid_, &status, 0);
    } while (ended < 0 && errno == EINTR);
    pid_ = 0;
    return ended < 0 ? std::nullopt : std::optional(status);
  }

 private:
  pid_t pid_;
  File pidfd_;
};

/// The pipe for a child's output.
struct ChildPipe {
  ChildPipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
    output = File(ends[0]);
    input = File(ends[1]);
    fcntl(output.fd(), F_SETFL, O_NONBLOCK);
  }
  File output, input;
};

/// Keeps the last bytes.
void cut(std::size_t bytes_max, std::string& output, bool& is_cut) {
  if (output.size() <= bytes_max) return;
  output.erase(0, output.size() - bytes_max);
  is_cut = true;
}

/// Reads what is in a pipe without waiting, but no more than it may hold: who never stops writing
/// would keep this from looking at the clock.  Keeps the last bytes, up to twice as many as wanted,
/// so that they are seldom moved.
/// Returns: false at its end.
bool take_output(int fd, std::size_t bytes_max, std::string& into, bool& is_cut) {
  std::array<char, 16384> buffer;
  for (int reads = 0; reads < kReadsAtOnce; reads++) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0;
    into.append(buffer.data(), static_cast<std::size_t>(got));
    if (into.size() > 2 * bytes_max) cut(bytes_max, into, is_cut);
  }
  return true;
}

/// Waits only for the child itself: processes that it leaves behind may keep the pipes open for
/// ever.
void watch_child(const ChildGroup& child, const ChildPlan& plan, int output, int errors,
                 const Context& context, ChildEnd& end) {
  std::array<pollfd, 3> waiting{{{.fd = child.ended_fd(), .events = POLLIN, .revents = 0},
                                 {.fd = output, .events = POLLIN, .revents = 0},
                                 {.fd = errors, .events = POLLIN, .revents = 0}}};
  const auto take = [&] {
    if (!take_output(output, plan.output_bytes_max, end.output, end.is_cut)) waiting[1].fd = -1;
    if (!take_output(errors, plan.output_bytes_max, end.errors, end.is_cut)) waiting[2].fd = -1;
  };
  while (waiting[0].revents == 0) {
    context.check("waiting for the end of " + plan.argv[0]);
    if (poll(waiting.data(), waiting.size(), kChildLookMs) < 0) waiting[0].revents = 0;
    take();
  }
  take();
  cut(plan.output_bytes_max, end.output, end.is_cut);
  cut(plan.output_bytes_max, end.errors, end.is_cut);
}

/// When a process began, in ticks since the machine did; "": there is no such process.
std::string begin_of(pid_t pid) {
  constexpr int kBegin = 22, kAfterName = 2;  // fields of proc(5); a name may have spaces
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat, '\0');
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = kAfterName; i < kBegin; i++) fields >> field;
  return field;
}

/// "PID BEGIN BOOT": no other process has, or will have, all three.  "": it cannot be found out.
std::string id_of(pid_t pid) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string begin = begin_of(pid);
  return begin.empty() || boot.empty() ? "" : fmt::format("{} {} {}", pid, begin, boot);
}

}  // namespace

ChildEnd run_child_process(const ChildPlan& plan, const Context& context) {
  ChildPipe output, errors;
  context.check("waiting for the end of " + plan.argv[0]);
  const File& second = plan.keeps_apart ? errors.input : output.input;
  ChildGroup child(ChildActions(plan, output.input.fd(), second.fd()).start(plan));
  output.input = File();
  errors.input = File();
  if (child.ended_fd() < 0) throw_errno(errno, "watch " + plan.argv[0]);
  if (plan.started) plan.started(id_of(child.pid()));

  ChildEnd end;
  watch_child(child, plan, output.output.fd(), errors.output.fd(), context, end);
  const auto status = child.end(plan.ends_group);
  if (!status) {
    throw Error(ErrorCode::io,
                fmt::format("cannot learn how {} ended: SIGCHLD is ignored", plan.argv[0]));
  }
  end.signal = WIFSIGNALED(*status) ? WTERMSIG(*status) : 0;
  end.exit_code = WIFEXITED(*status) ? WEXITSTATUS(*status) : 0;
  return end;
}

void end_left_child(const std::string& id, const Context& context) {
  pid_t pid = 0;
  std::istringstream(id) >> pid;
  if (pid <= 0) return;
  const File ended(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (ended.fd() < 0 || id_of(pid) != id || getpgid(pid) != pid) return;
  if (kill(-pid, SIGKILL) != 0 && errno != ESRCH) {
    throw_errno(errno, fmt::format("end process {}, which was left behind", pid));
  }
  pollfd waiting{.fd = ended.fd(), .events = POLLIN, .revents = 0};
  while (waiting.revents == 0) {
    context.check(fmt::format("waiting for the end of process {}, which was left behind", pid));
    poll(&waiting, 1, kChildLookMs);
  }
}

std::vector<std::string> split_command(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (c == '\\' && quote != '\'') {
      if (++i == text.size()) throw Error(ErrorCode::invalid, "the command ends with a backslash");
      // Within double quotes it escapes only itself and the quote.
      if (quote == '"' && text[i] != '"' && text[i] != '\\') word += '\\';
      word += text[i];
      in_word = true;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0)
    throw Error(ErrorCode::invalid,
                fmt::format("the quote {} in the command is not closed", quote));
  if (in_word) words.push_back(word);
  return words;
}

}  // namespace weightfs
