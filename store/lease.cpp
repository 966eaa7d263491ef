// Who still reads or writes a file: the kernel grants a write lease only if nobody else has the
// file open or mapped, through the mount's passthrough too, and a read lease only if nobody can
// write.

#include <fcntl.h>

#include <cerrno>
#include <filesystem>

#include "store/file.hpp"
#include "store/staging.hpp"
#include "store/store.hpp"

namespace weightfs {

bool nobody_reads_file(const std::filesystem::path& path) {
  // A user's own images may be read-only to him; a lease needs no more than a descriptor.
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  File file(::open(path.c_str(), O_RDWR | kFlags));
  if (!file && errno == EACCES) file = File(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file) return errno == ENOENT;
  if (::fcntl(file.fd(), F_SETLEASE, F_WRLCK) != 0) return false;
  ::fcntl(file.fd(), F_SETLEASE, F_UNLCK);
  return true;
}

bool nobody_reads(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() != fs::file_type::regular) continue;
    if (!nobody_reads_file(entry->path())) return false;
  }
  return !error || error.value() == ENOENT;
}

bool nobody_writes(const std::filesystem::path& path) {
  // A read lease wants a read-only descriptor.
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file || ::fcntl(file.fd(), F_SETLEASE, F_RDLCK) != 0) return false;
  ::fcntl(file.fd(), F_SETLEASE, F_UNLCK);
  return true;
}

}  // namespace weightfs
