#include "fs/base/child_call.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kTextBytesMax = 16u << 20;
constexpr std::chrono::seconds kDeathTimeout{1};
constexpr std::chrono::milliseconds kDeathLook{5};

struct Pipe {
  Pipe() {
    std::array<int, 2> fds{};
    if (pipe2(fds.data(), O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
    read_end = File(fds[0]);
    write_end = File(fds[1]);
  }
  File read_end, write_end;
};

/// Without libc, which would tell threads that only the parent has.  Returns: 0 or an errno.  The
/// kernel lets the new user neither trace such a process nor read its memory.
int become(const ChildUser& user) noexcept {
  const bool is_done = syscall(SYS_setgroups, 0, nullptr) == 0 &&
                       syscall(SYS_setresgid, user.group, user.group, user.group) == 0 &&
                       syscall(SYS_setresuid, user.user, user.user, user.user) == 0;
  return is_done ? 0 : errno;
}

/// Runs in the child.  It closes every other descriptor: a child that is left behind must not hold
/// a pipe of the caller's open.
[[noreturn]] void run_child(ChildCall call, const char* path, int to,
                            const std::optional<ChildUser>& as) noexcept {
  const auto kept = static_cast<unsigned>(to);
  if (kept > 0) close_range(0, kept - 1, 0);
  close_range(kept + 1, ~0U, 0);
  if (const int error = as ? become(*as) : 0) _exit(error);
  _exit(call(path, to));
}

/// Kills the child on destruction and waits a while for it to die: until then it keeps the mount
/// that it has reached busy.  A child that the kernel does not let die is left behind.
class Child {
 public:
  explicit Child(pid_t pid) noexcept : pid_(pid) {}
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    const auto deadline = Clock::now() + kDeathTimeout;
    while (waitpid(pid_, nullptr, WNOHANG) == 0 && Clock::now() < deadline) {
      std::this_thread::sleep_for(kDeathLook);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Its exit status, an errno.
  int wait() noexcept {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
  }

 private:
  pid_t pid_;
};

/// Reads until the other end is closed.  Returns: false on timeout.
bool read_until_closed(int fd, std::chrono::milliseconds timeout, std::string& text) {
  const auto deadline = Clock::now() + timeout;
  std::array<char, 65536> buffer;
  while (text.size() <= kTextBytesMax) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<long>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0) throw_errno(errno, "read from a pipe");
    if (got == 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  throw Error(ErrorCode::corrupt, "it is larger than 16 MiB");
}

}  // namespace

std::optional<ChildAnswer> call_in_child(ChildCall call, const std::filesystem::path& path,
                                         std::chrono::milliseconds timeout,
                                         std::optional<ChildUser> as) {
  Pipe pipe;
  const pid_t pid = fork();
  if (pid < 0) throw_errno(errno, "start a child process");
  if (pid == 0) run_child(call, path.c_str(), pipe.write_end.fd(), as);
  Child child(pid);
  pipe.write_end = File();
  ChildAnswer answer;
  if (!read_until_closed(pipe.read_end.fd(), timeout, answer.text)) return std::nullopt;
  answer.error = child.wait();
  return answer;
}

}  // namespace weightfs::fs
