#include "store/local/image_memory.hpp"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSpareBytes = 64u << 20;  // directories, small files, rounding to pages

[[noreturn]] void refuse(int error, const std::string& what) {
  const bool is_forbidden = error == EPERM || error == EACCES;
  const bool is_unknown = error == ENOSYS || error == ENODEV || error == EINVAL;
  throw Error(is_forbidden ? ErrorCode::permission
              : is_unknown ? ErrorCode::unsupported
                           : ErrorCode::io,
              fmt::format("--images memory: cannot {}: {}; it needs Linux 5.2 with tmpfs and "
                          "CAP_SYS_ADMIN: mount as root, or leave out --images",
                          what, std::generic_category().message(error)));
}

void set(const File& context, const char* key, const char* value) {
  if (::fsconfig(context.fd(), FSCONFIG_SET_STRING, key, value, 0) != 0) {
    const int error = errno;
    refuse(error, fmt::format("set {}={} of a tmpfs", key, value));
  }
}

/// Options that not every kernel has.
void set_if_known(const File& context) {
  static_cast<void>(::fsconfig(context.fd(), FSCONFIG_SET_STRING, "huge", "within_size", 0));
  static_cast<void>(::fsconfig(context.fd(), FSCONFIG_SET_FLAG, "noswap", nullptr, 0));
}

void make_directory(const std::filesystem::path& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0) throw_errno(errno, "make the directory " + path.string());
}

}  // namespace

ImageMemory::ImageMemory() {
  const File context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context) refuse(errno, "make a tmpfs");
  set(context, "mode", "0700");
  set(context, "size", std::to_string(kSpareBytes).c_str());
  set_if_known(context);
  if (::fsconfig(context.fd(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    refuse(errno, "make a tmpfs");
  }
  mount_ = File(::fsmount(context.fd(), FSMOUNT_CLOEXEC,
                          MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  if (!mount_) refuse(errno, "open a tmpfs");
  make_directory(images(), 0755);
  make_directory(deltas(), 0700);
  make_directory(temporary(), 0700);
}

std::filesystem::path ImageMemory::root() const {
  return fmt::format("/proc/self/fd/{}", mount_.fd());
}

std::filesystem::path ImageMemory::images() const { return root() / "images"; }

std::filesystem::path ImageMemory::deltas() const { return root() / "deltas"; }

std::filesystem::path ImageMemory::temporary() const { return root() / "tmp"; }

/// By a context of its own, which nobody else uses meanwhile: one that was refused once takes
/// nothing any more.
void ImageMemory::set_limit(std::uint64_t bytes) const {
  const std::string size = std::to_string(bytes + bytes / 64 + kSpareBytes);
  const File context(::fspick(mount_.fd(), "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC));
  if (!context) throw_errno(errno, "set the size of the tmpfs for images");
  set(context, "size", size.c_str());
  set_if_known(context);  // a kernel may take it for a change that they are not there
  if (::fsconfig(context.fd(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) == 0) return;
  if (errno != EINVAL) throw_errno(errno, "set the size of the tmpfs for images to " + size);
}

}  // namespace weightfs
