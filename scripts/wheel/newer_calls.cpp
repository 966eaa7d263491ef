// What glibc has only since 2.36, while the wheel runs from 2.34 on: the calls for mounts, and
// arc4random, which libstdc++'s std::random_device asks for.  The program's own definitions take
// the place of glibc's.
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {

int open_tree(int directory, const char* path, unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_open_tree, directory, path, flags));
}

int move_mount(int from_directory, const char* from, int to_directory, const char* to,
               unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_move_mount, from_directory, from, to_directory, to, flags));
}

int fsopen(const char* type, unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_fsopen, type, flags));
}

int fspick(int directory, const char* path, unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_fspick, directory, path, flags));
}

int fsconfig(int fd, unsigned int command, const char* key, const void* value, int more) noexcept {
  return static_cast<int>(syscall(SYS_fsconfig, fd, command, key, value, more));
}

int fsmount(int fd, unsigned int flags, unsigned int attributes) noexcept {
  return static_cast<int>(syscall(SYS_fsmount, fd, flags, attributes));
}

int mount_setattr(int directory, const char* path, unsigned int flags,
                  struct mount_attr* attributes, std::size_t size) noexcept {
  return static_cast<int>(syscall(SYS_mount_setattr, directory, path, flags, attributes, size));
}

std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
    if (errno != EINTR) std::abort();  // as glibc's: there is no randomness to be had
  }
  return value;
}
}
