#include "fs/base/output_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

/// Not write_at(): a pipe has no offsets.
void write_whole(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {  // somebody has made stdout's pipe non-blocking
        pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
        (void)::poll(&ready, 1, -1);
        continue;
      }
      throw_errno(errno, "write " + path.string());
    }
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

bool is_open_as(int fd, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

void write_output(const std::filesystem::path& path, std::string_view bytes, unsigned mode) {
  namespace stdfs = std::filesystem;
  std::error_code failure;
  const stdfs::file_status found = stdfs::status(path, failure);
  if (found.type() == stdfs::file_type::none) {
    throw_errno(failure.value(), "look at " + path.string());
  }
  if (!stdfs::exists(found)) return write_file(path, bytes, mode);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (is_open_as(fd, path)) return write_whole(fd, bytes, path);  // /dev/stdout >> log
  }
  if (stdfs::is_regular_file(found)) return write_file(stdfs::canonical(path), bytes, mode);
  // With O_CREAT the kernel refuses the FIFO of somebody else in /tmp (fs.protected_fifos).
  const File file = File::open(path, O_WRONLY | O_CREAT, mode);
  write_whole(file.fd(), bytes, path);
}

}  // namespace weightfs::fs
