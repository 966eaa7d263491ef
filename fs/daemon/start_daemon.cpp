// The daemon as a child: it reports its progress to its parent over a pipe, one JSON object per
// line.
//
//     {"log": PATH}  {"progress": [PHASE, DONE, TOTAL]}...  {"ready": {...}} or {"error": {...}}
//
// The parent draws the progress, so only one process writes to the terminal.

#include "fs/daemon/start_daemon.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "fs/base/stop_signals.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kPipeInterval = std::chrono::milliseconds(100);
constexpr int kPatienceMs = 3000;
constexpr auto kChildEndTimeout = std::chrono::seconds(10);
constexpr int kChildLookMs = 50;
constexpr int kPipeUnreadMax = 32 << 10;  // half of a pipe

// ---- the messages ----

Json to_json(const MountReady& ready) {
  return {{"mount_point", ready.mount_point.string()},
          {"version", ready.version},
          {"serve", ready.serve},
          {"why", ready.why},
          {"store", ready.store.string()},
          {"log", ready.log.string()},
          {"pid", ready.pid},
          {"offline", ready.offline},
          {"partial", ready.is_partial},
          {"notes", ready.notes},
          {"gpu_failure", ready.gpu_failure}};
}

MountReady ready_from(const Json& json) {
  return {.mount_point = json["mount_point"].get<std::string>(),
          .version = json["version"].get<std::uint64_t>(),
          .serve = json["serve"].get<std::string>(),
          .why = json["why"].get<std::string>(),
          .store = json["store"].get<std::string>(),
          .log = json["log"].get<std::string>(),
          .pid = json["pid"].get<int>(),
          .offline = json["offline"].get<bool>(),
          .is_partial = json["partial"].get<bool>(),
          .gpu_failure = json["gpu_failure"].get<std::string>(),
          .notes = json["notes"].get<std::vector<std::string>>()};
}

Json error_json(ErrorCode code, const std::string& message) {
  return {{"error", {{"code", static_cast<int>(code)}, {"message", message}}}};
}

// ---- the child ----

/// Writes messages to the parent.  If the parent is gone or stopped, the daemon neither ends nor
/// waits: progress is dropped.
class Reporter {
 public:
  explicit Reporter(File pipe) noexcept : pipe_(std::move(pipe)) {}

  /// Sends the last message.
  void finish(const Json& json) {
    send(json);
    const std::lock_guard lock(mutex_);
    pipe_ = File();
  }

  void send(const Json& json) {
    const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const std::lock_guard lock(mutex_);
    for (std::size_t sent = 0; pipe_ && sent < line.size();) {
      pollfd waiting{.fd = pipe_.fd(), .events = POLLOUT, .revents = 0};
      poll(&waiting, 1, -1);
      const ssize_t n = write(pipe_.fd(), line.data() + sent, line.size() - sent);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
  }

  void send_progress(std::string_view phase, std::uint64_t done, std::uint64_t total) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !pipe_ || Clock::now() - sent_ < kPipeInterval) return;
    // The last message must fit, also if nobody reads: the parent may have been stopped.
    int unread_bytes = 0;
    if (ioctl(pipe_.fd(), FIONREAD, &unread_bytes) == 0 && unread_bytes > kPipeUnreadMax) return;
    sent_ = Clock::now();
    const std::string line = Json{{"progress", {phase, done, total}}}.dump() + "\n";
    // Shorter than PIPE_BUF: written completely, or not at all.
    [[maybe_unused]] const ssize_t ignored = write(pipe_.fd(), line.data(), line.size());
  }

 private:
  RankedMutex mutex_{LockRank::leaf, "Reporter::mutex_"};  // guards the fields below
  File pipe_;
  Clock::time_point sent_{};
};

void redirect_to_null(std::initializer_list<int> fds) {
  const File null = File::open("/dev/null", O_RDWR);
  for (const int fd : fds) dup2(null.fd(), fd);
}

/// Closes inherited descriptors except the standard three and `keep`: a reader of an inherited pipe
/// would wait for the daemon to end.
void close_others(int keep) {
  const auto kept = static_cast<unsigned>(keep);
  if (kept > 3) close_range(3, kept - 1, 0);
  close_range(kept + 1, ~0U, 0);
}

/// Leaves the terminal and the caller's directory. stderr stays until the daemon is ready, for
/// messages from before there is a log.
void detach() {
  setsid();
  umask(022);
  if (chdir("/") != 0) throw_errno(errno, "change to the directory /");
  redirect_to_null({STDIN_FILENO, STDOUT_FILENO});
}

/// The child, from the fork to the end of the daemon.
/// Returns: the exit code.
int run_child(const HostOptions& host, const MountOptions& options, File pipe,
              bool wants_progress) noexcept {
  close_others(pipe.fd());
  Reporter reporter(std::move(pipe));
  const DaemonEvents events{.logging =
                                [&](const auto& log) {
                                  reporter.send({{"log", log.string()}});
                                },
                            .ready =
                                [&](const MountReady& ready) {
                                  redirect_to_null({STDERR_FILENO});
                                  reporter.finish({{"ready", to_json(ready)}});
                                }};
  Progress progress;
  if (wants_progress) {
    progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
      reporter.send_progress(phase, done, total);
    };
  }
  try {
    detach();
    run_daemon(host, options, events, progress);
    return 0;
  } catch (const Error& error) {
    reporter.finish(error_json(error.code(), error.what()));
  } catch (const std::exception& error) {
    reporter.finish(error_json(ErrorCode::io, error.what()));
  }
  return 1;
}

// ---- the parent ----

/// The stop signals as a descriptor; they are blocked as long as it lives.
class SignalFile {
 public:
  SignalFile() {
    const sigset_t set = stop_signal_set();
    pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
    file_ = File(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!file_) throw_errno(errno, "make a signalfd");
  }
  ~SignalFile() {
    signalfd_siginfo info{};
    while (read(file_.fd(), &info, sizeof info) > 0) {  // drops signals that were acted on
    }
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  SignalFile(const SignalFile&) = delete;
  SignalFile& operator=(const SignalFile&) = delete;
  [[nodiscard]] int fd() const noexcept { return file_.fd(); }

 private:
  sigset_t old_mask_{};
  File file_;
};

class Parent {
 public:
  Parent(pid_t child, File pipe, const Progress& progress)
      : child_(child), pipe_(std::move(pipe)), progress_(progress) {}

  /// Reads messages until the daemon is ready.
  MountReady wait_ready(const SignalFile& signals) {
    while (!ready_) {
      std::array<pollfd, 2> waiting{{{.fd = pipe_.fd(), .events = POLLIN, .revents = 0},
                                     {.fd = signals.fd(), .events = POLLIN, .revents = 0}}};
      const int count = poll(waiting.data(), waiting.size(), kPatienceMs);
      if (count == 0 && progress_) progress_("waiting for the bucket", 0, 0);
      if (count <= 0) continue;  // EINTR
      if (waiting[1].revents != 0) cancel();
      if (waiting[0].revents != 0 && !read_messages()) report_death();
    }
    return *ready_;
  }

 private:
  /// Returns: false if the child has closed the pipe.
  bool read_messages() {
    std::array<char, 4096> buffer;
    const ssize_t got = read(pipe_.fd(), buffer.data(), buffer.size());
    if (got <= 0) return got < 0 && errno == EINTR;
    text_.append(buffer.data(), static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos;) {
      take_message(parse_json(text_.substr(0, end), "the daemon's message"));
      text_.erase(0, end + 1);
    }
    return true;
  }

  void take_message(const Json& message) {
    if (message.contains("progress")) {
      const Json& parts = message["progress"];
      if (progress_) {
        progress_(parts[0].get<std::string>(), parts[1].get<std::uint64_t>(),
                  parts[2].get<std::uint64_t>());
      }
    } else if (message.contains("log")) {
      log_ = message["log"].get<std::string>();
    } else if (message.contains("ready")) {
      ready_ = ready_from(message["ready"]);
    } else {
      const Json& error = message["error"];
      reap();
      throw Error(static_cast<ErrorCode>(error["code"].get<int>()),
                  error["message"].get<std::string>());
    }
  }

  int reap() const {
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

  /// Forwards the signal, and waits until the child has ended.  That it has closed the pipe does
  /// not say so: it does that when it is ready, and has a mount to end then.
  [[noreturn]] void cancel() {
    kill(child_, SIGTERM);
    const auto deadline = Clock::now() + kChildEndTimeout;
    std::array<char, 4096> ignored;
    for (bool is_open = true; waitpid(child_, nullptr, WNOHANG) == 0;) {
      if (Clock::now() >= deadline) {
        kill(child_, SIGKILL);
        reap();
        break;
      }
      pollfd waiting{.fd = is_open ? pipe_.fd() : -1, .events = POLLIN, .revents = 0};
      const bool has_more = poll(&waiting, 1, kChildLookMs) > 0;
      if (has_more) is_open = read(pipe_.fd(), ignored.data(), ignored.size()) > 0;
    }
    throw Error(ErrorCode::cancelled, "stopped by a signal before anything was mounted");
  }

  [[noreturn]] void report_death() const {
    const int status = reap();
    const std::string how = WIFSIGNALED(status)
                                ? fmt::format("signal {}", strsignal(WTERMSIG(status)))
                                : fmt::format("exit code {}", WEXITSTATUS(status));
    const std::string where =
        log_.empty() ? "before it had opened its log" : fmt::format("see its log, {}", log_);
    throw Error(ErrorCode::io,
                fmt::format("the daemon ended while it started ({}); {}", how, where));
  }

  const pid_t child_;
  const File pipe_;
  const Progress& progress_;
  std::string text_;  // of an incomplete message
  std::string log_;
  std::optional<MountReady> ready_;
};

}  // namespace

MountReady start_daemon(const HostOptions& host, const MountOptions& options,
                        const Progress& progress) {
  const SignalFile signals;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
  File read_end(ends[0]), write_end(ends[1]);
  fcntl(write_end.fd(), F_SETFL, O_NONBLOCK);  // affects only the child's end of the pipe
  const pid_t child = fork();
  if (child < 0) throw_errno(errno, "start the daemon");
  if (child == 0) {
    _exit(run_child(host, options, std::move(write_end), static_cast<bool>(progress)));
  }
  write_end = File();
  return Parent(child, std::move(read_end), progress).wait_ready(signals);
}

}  // namespace weightfs::fs
