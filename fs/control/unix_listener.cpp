#include "fs/control/unix_listener.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "fs/control/protocol.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

File open_socket_directory(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  make_directories(parent);
  File directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw_errno(errno, "open " + parent.string());
  struct stat attributes {};
  if (::fstat(directory.fd(), &attributes) != 0) throw_errno(errno, "stat " + parent.string());
  if (attributes.st_uid != ::geteuid() && attributes.st_uid != 0) {
    throw Error(ErrorCode::permission,
                fmt::format("{} belongs to uid {}; a socket there could be replaced",
                            parent.string(), attributes.st_uid));
  }
  return directory;
}

bool somebody_listens(const std::filesystem::path& path) {
  try {
    connect_socket(path);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) return false;
    return true;
  }
}

/// Removes the socket of a dead daemon.
void remove_stale(int directory, const std::string& name, const std::filesystem::path& path) {
  struct stat attributes {};
  if (::fstatat(directory, name.c_str(), &attributes, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (!S_ISSOCK(attributes.st_mode)) {
    throw Error(ErrorCode::exists,
                fmt::format("{} exists and is not a socket; remove it", path.string()));
  }
  if (somebody_listens(path)) {
    throw Error(ErrorCode::busy, fmt::format("another process listens at {}", path.string()));
  }
  ::unlinkat(directory, name.c_str(), 0);
}

}  // namespace

UnixListener::UnixListener(const std::filesystem::path& path)
    : directory_(open_socket_directory(path)), name_(path.filename().string()) {
  remove_stale(directory_.fd(), name_, path);
  socket_ = bind_socket(directory_.fd(), name_, path);
  struct stat attributes {};
  if (::fstatat(directory_.fd(), name_.c_str(), &attributes, AT_SYMLINK_NOFOLLOW) == 0) {
    inode_ = attributes.st_ino;
  }
  // To connect, a client needs write permission.  A user's own daemon serves only that user, like
  // the mount.
  const mode_t mode = ::geteuid() == 0 ? 0666 : 0600;
  if (::fchmodat(directory_.fd(), name_.c_str(), mode, 0) != 0 ||
      ::listen(socket_.fd(), SOMAXCONN) != 0) {
    const int error = errno;
    remove();
    throw_errno(error, "listen at " + path.string());
  }
}

UnixListener::~UnixListener() { remove(); }

void UnixListener::remove() noexcept {
  struct stat attributes {};
  if (::fstatat(directory_.fd(), name_.c_str(), &attributes, AT_SYMLINK_NOFOLLOW) == 0 &&
      attributes.st_ino == inode_) {
    ::unlinkat(directory_.fd(), name_.c_str(), 0);
  }
}

}  // namespace weightfs::fs
