#include "fs/mount_status.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "fs/bucket_options.hpp"
#include "fs/sync_directory.hpp"
#include "store/bucket.hpp"
#include "store/error.hpp"
#include "store/file.hpp"
#include "store/json.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kTextBytesMax = 16u << 20;

struct Pipe {
  Pipe() {
    std::array<int, 2> fds{};
    if (pipe2(fds.data(), O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
    read_end = File(fds[0]);
    write_end = File(fds[1]);
  }
  File read_end, write_end;
};

/// In the child: copies the file to the pipe.  Only calls that are safe behind a fork.
[[noreturn]] void copy_file(const char* path, int to) noexcept {
  std::array<char, 65536> buffer;
  const int from = ::open(path, O_RDONLY | O_CLOEXEC);
  if (from < 0) _exit(errno);
  while (true) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0) _exit(errno);
    if (got == 0) _exit(0);
    for (ssize_t written = 0; written < got;) {
      const ssize_t n =
          ::write(to, buffer.data() + written, static_cast<std::size_t>(got - written));
      if (n < 0) _exit(errno);
      written += n;
    }
  }
}

/// A child that is killed and reaped at the end, except when the kernel does not let it die.
class Child {
 public:
  explicit Child(pid_t pid) noexcept : pid_(pid) {}
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, WNOHANG);
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

/// Reads until the other end is closed.  Returns: false if that takes too long.
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

/// A dead mount is not looked into.
std::optional<MountInfo> find_served(const std::filesystem::path& path) {
  auto mount = find_mount(path);
  if (mount) {
    if (mount->type == kMountType) return mount;
    if (is_dead(path)) return std::nullopt;
  }
  const auto directory = find_sync_directory(path);
  if (!directory) return std::nullopt;
  return MountInfo{directory->path, std::string(kDirectoryType), directory->url, 0, 0};
}

/// What is mounted at `path`, or that nothing is.
std::string describe(const std::filesystem::path& path) {
  const auto mount = find_mount(path);
  if (!mount) return "nothing is mounted there";
  return fmt::format("{} is mounted there, from {}", mount->type, mount->source);
}

}  // namespace

std::string read_file_within(const std::filesystem::path& path, std::chrono::milliseconds timeout) {
  Pipe pipe;
  const pid_t pid = fork();
  if (pid < 0) throw_errno(errno, "start a child process");
  if (pid == 0) copy_file(path.c_str(), pipe.write_end.fd());
  Child child(pid);
  pipe.write_end = File();
  std::string text;
  if (!read_until_closed(pipe.read_end.fd(), timeout, text)) {
    throw Error(ErrorCode::timed_out,
                fmt::format("{} could not be read within {:.1f} s", path.string(),
                            std::chrono::duration<double>(timeout).count()));
  }
  if (const int error = child.wait(); error != 0) {
    if (error == ENOTCONN || error == ECONNABORTED) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("cannot read {}: its daemon is gone", path.string()));
    }
    throw_errno(error, fmt::format("read {}", path.string()));
  }
  return text;
}

std::string read_status(const MountInfo& mount, std::chrono::milliseconds timeout) {
  try {
    std::string text = read_file_within(mount.path / ".weightfs/status", timeout);
    parse_json(text, (mount.path / ".weightfs/status").string());
    return text;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("the daemon of {0} is gone; mount again: weightfs mount {1} {0}",
                              mount.path.string(), mount.source));
    }
    if (error.code() == ErrorCode::timed_out) {
      throw Error(ErrorCode::timed_out, fmt::format("the daemon of {} does not answer: {}",
                                                    mount.path.string(), error.what()));
    }
    throw;
  }
}

MountInfo get_mount(const std::filesystem::path& path) {
  auto mount = find_mount(path);
  if (mount && mount->type == kMountType) return std::move(*mount);
  throw Error(ErrorCode::not_found,
              fmt::format("{} is no weightfs mount: {}", path.string(), describe(path)));
}

MountInfo get_served(const std::filesystem::path& path) {
  if (auto served = find_served(path)) return std::move(*served);
  return get_mount(path);
}

bool is_synced(const std::filesystem::path& path) {
  const auto directory = find_sync_directory(path);
  return directory && directory->is_running;
}

Target resolve_target(const std::string& text) {
  if (text.find("://") == std::string::npos) {
    const auto mount = find_served(text);
    if (mount) {
      const std::string what = (mount->path / ".weightfs/status").string();
      const Json status = parse_json(read_status(*mount), what);
      return {canonical_url(json_string(status, "url", what)), mount->path,
              bucket_options_from(status, what)};
    }
  }
  return {canonical_url(text), {}, {}};
}

}  // namespace weightfs::fs
