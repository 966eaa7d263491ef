#include "store/aws_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "store/aws_answers.hpp"
#include "store/aws_config.hpp"
#include "store/error.hpp"
#include "store/file.hpp"
#include "store/json.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kProcessOutputMax = 1u << 20, kProcessSaidMax = 400;

struct PipeEnds {
  File read, write;
};

PipeEnds make_pipe_ends() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
  return {File(ends[0]), File(ends[1])};
}

// Attributes of a child: its own group, to be killed with all it started, and no signal blocked.
class SpawnPlan {
 public:
  SpawnPlan(int out, int err) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, err, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  // Returns: errno.
  int spawn(std::vector<std::string> words, pid_t& pid) const {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return posix_spawnp(&pid, argv[0], &actions_, &attributes_, argv.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

// Readable when the process has ended.  (pidfd_open of glibc 2.36 cannot be linked from C++.)
int open_pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A child that does not outlive this object; if it was not waited for, nor does what it started.
class ProcessGroup {
 public:
  explicit ProcessGroup(pid_t pid) : pid_(pid), ended_(open_pidfd(pid)) {}
  ~ProcessGroup() {
    if (pid_ == 0) return;
    kill(-pid_, SIGKILL);
    (void)wait();
  }
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int ended_fd() const noexcept { return ended_.fd(); }

  // Waits for the child alone: an agent that it started may live on.  Returns: waitpid's status.
  int wait() {
    int status = -1;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_;
  File ended_;
};

struct ProcessEnd {
  int status = 0;  // of waitpid
  std::string output, said;
};

// Reads what is there without waiting.  Returns: false at the end of the pipe.
bool drain(const File& pipe, std::string& into) {
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(pipe.fd(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0;
    const std::size_t room = kProcessOutputMax + 1 - std::min(into.size(), kProcessOutputMax + 1);
    into.append(buffer, std::min(static_cast<std::size_t>(got), room));
  }
}

// Until the process itself ends: what it left behind may hold the pipes open for ever.
ProcessEnd watch_process(ProcessGroup& process, const File& output, const File& said,
                         const std::string& source, const Context& context) {
  ProcessEnd end;
  pollfd watched[] = {
      {output.fd(), POLLIN, 0}, {said.fd(), POLLIN, 0}, {process.ended_fd(), POLLIN, 0}};
  for (bool ended = false; !ended;) {
    context.check("waiting for the credential_process of " + source);
    if (poll(watched, std::size(watched), 50) < 0 && errno != EINTR) throw_errno(errno, "poll");
    ended = (watched[2].revents & POLLIN) != 0;
    if (!drain(output, end.output)) watched[0].fd = -1;
    if (!drain(said, end.said)) watched[1].fd = -1;
  }
  end.status = process.wait();
  return end;
}

// The first words of what it said, without control characters and without anything that could be a
// key or a token: runs of 32 and more letters, digits and "+/=_-".
std::string fit_to_show(const std::string& said) {
  std::string shown, word;
  const auto end_word = [&] {
    shown += word.size() >= 32 ? "[hidden]" : word;
    word.clear();
  };
  for (const char c : said) {
    const bool may_be_key = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                            (c >= 'a' && c <= 'z') || c == '+' || c == '/' || c == '=' ||
                            c == '_' || c == '-';
    if (may_be_key) {
      word += c;
      continue;
    }
    end_word();
    const char plain = c < ' ' || c == 0x7F ? ' ' : c;
    if (plain != ' ' || !shown.ends_with(' ')) shown += plain;
  }
  end_word();
  if (shown.size() > kProcessSaidMax) shown = shown.substr(0, kProcessSaidMax) + "...";
  while (shown.ends_with(' ')) shown.pop_back();
  return shown;
}

void check_end(const ProcessEnd& end, const std::string& source) {
  if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0) {
    if (end.output.size() <= kProcessOutputMax) return;
    throw Error(ErrorCode::invalid, source + ": its credential_process wrote more than 1 MiB");
  }
  const std::string how =
      WIFEXITED(end.status)
          ? "ended with status " + std::to_string(WEXITSTATUS(end.status))
          : "was ended by signal " +
                std::to_string(WIFSIGNALED(end.status) ? WTERMSIG(end.status) : 0);
  const std::string said = fit_to_show(end.said);
  throw Error(ErrorCode::invalid, source + ": its credential_process " + how +
                                      (said.empty() ? " and said nothing" : ": " + said));
}

ProcessEnd run_process(const std::vector<std::string>& words, const std::string& source,
                       const Context& context) {
  PipeEnds output = make_pipe_ends(), said = make_pipe_ends();
  fcntl(output.read.fd(), F_SETFL, O_NONBLOCK);
  fcntl(said.read.fd(), F_SETFL, O_NONBLOCK);
  pid_t pid = 0;
  const int error = SpawnPlan(output.write.fd(), said.write.fd()).spawn(words, pid);
  if (error != 0) {
    throw Error(ErrorCode::invalid,
                source + ": " + describe_errno(error, "run its credential_process " + words[0]));
  }
  ProcessGroup process(pid);
  output.write = File();
  said.write = File();
  if (process.ended_fd() < 0) throw_errno(errno, "watch the credential_process " + words[0]);
  return watch_process(process, output.read, said.read, source, context);
}

std::vector<std::string> words_of(const std::string& command, const std::string& source) {
  std::vector<std::string> words;
  try {
    words = split_shell_words(command);
  } catch (const Error& error) {
    throw Error(error.code(), source + ": its credential_process is no command: " + error.what());
  }
  if (words.empty()) {
    throw Error(ErrorCode::invalid, source + ": its credential_process is empty");
  }
  return words;
}

void check_version(const std::string& output, const std::string& source) {
  std::string problem;
  try {
    if (json_uint(parse_json(output, "its output"), "Version", "its output") == 1) return;
    problem = "its output has another Version than 1";
  } catch (const Error& error) {
    problem = error.what();
  }
  throw Error(ErrorCode::invalid,
              source + ": credential_process: " + problem +
                  " (expected {\"Version\": 1, \"AccessKeyId\": ..., \"SecretAccessKey\": ...})");
}

}  // namespace

AwsCredentials run_credential_process(const std::string& command, const std::string& source,
                                      const Context& context, Clock::duration timeout) {
  const std::vector<std::string> words = words_of(command, source);
  ProcessEnd end;
  try {
    end = run_process(words, source, context.within(timeout));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timed_out) throw;
    context.check("waiting for the credential_process of " + source);
    throw Error(ErrorCode::unavailable, source + ": its credential_process " + words[0] +
                                            " did not end in time and was killed");
  }
  check_end(end, source);
  check_version(end.output, source);
  return parse_json_keys(end.output, "SessionToken", "credential_process of " + source);
}

}  // namespace weightfs
