#include "store/os/lease.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "store/os/file.hpp"

namespace weightfs {
namespace {

/// NFSv4 and SMB answer EAGAIN where their server has lent them nothing, whether somebody has the
/// file open or not.
bool is_of_other_hosts(int fd) {
  struct statfs found {};
  if (::fstatfs(fd, &found) != 0) return false;
  const auto type = static_cast<std::uint32_t>(found.f_type);
  return type == NFS_SUPER_MAGIC || type == CIFS_SUPER_MAGIC || type == SMB2_SUPER_MAGIC;
}

/// A user's own images may be read-only; any descriptor suffices for a lease.
File open_for_lease(const std::filesystem::path& path) {
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  File file(::open(path.c_str(), O_RDWR | kFlags));
  if (!file && errno == EACCES) file = File(::open(path.c_str(), O_RDONLY | kFlags));
  return file;
}

/// Returns: 0, or an errno; so do the next two.
int try_write_lease(int fd) {
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return errno;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return 0;
}

/// The kernel grants them to who owns the file, too.  Only this thread becomes that user, and only
/// for file systems.
int try_write_lease_as_owner(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return errno;
  constexpr auto kNobody = static_cast<uid_t>(-1);
  static const int dumpable = ::prctl(PR_GET_DUMPABLE);  // before any thread cleared it here
  const auto before = static_cast<uid_t>(::setfsuid(found.st_uid));
  // It reports no error: a second call, which changes nothing, tells whether it did anything.
  const bool is_owner = static_cast<uid_t>(::setfsuid(kNobody)) == found.st_uid;
  const int error = is_owner ? try_write_lease(fd) : EACCES;
  ::setfsuid(before);
  // A change of user clears it, and with it what others may see of the process in /proc.
  if (dumpable == 1) ::prctl(PR_SET_DUMPABLE, 1);
  return error;
}

/// EAGAIN: somebody reads the file.
int ask_for_readers(int fd) {
  int error = try_write_lease(fd);
  if (error == EACCES) error = try_write_lease_as_owner(fd);
  return error == EAGAIN && is_of_other_hosts(fd) ? EOPNOTSUPP : error;
}

std::string why_refused(int error) {
  const std::string why =
      fmt::format("leases are refused ({})", std::generic_category().message(error));
  if (error == EACCES) return why + "; give the daemon CAP_LEASE or CAP_SETUID";
  if (error == EINVAL || error == EOPNOTSUPP) return why + "; put the store on a local file system";
  return why;
}

/// Why nobody can tell who reads a file; empty: it is known.
std::string why_unknown(bool is_open, int error) {
  const bool is_known = error == 0 || error == EAGAIN || error == ETXTBSY;  // the last: it runs
  if (is_known) return "";
  if (is_open) return why_refused(error);
  return fmt::format("it cannot be opened ({})", std::generic_category().message(error));
}

}  // namespace

bool nobody_reads_file(const std::filesystem::path& path, RefusedLeases* refused_leases) {
  const File file = open_for_lease(path);
  int error = file ? ask_for_readers(file.fd()) : errno;
  if (!file && error == ENOENT) error = 0;
  if (refused_leases != nullptr && !is_want_of_resources(error) && error != EINTR) {
    refused_leases->note(path, why_unknown(static_cast<bool>(file), error));
  }
  return error == 0;
}

namespace {

/// A file, with the number of its names in some directories and in all.
struct Names {
  std::filesystem::path first;
  nlink_t here = 0, all = 0;
};
using Files = std::map<std::pair<dev_t, ino_t>, Names>;

/// Returns: false if the directory cannot be read; a missing one has no files.
bool add_names(const std::filesystem::path& directory, Files& files) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    struct stat found {};
    if (::lstat(entry->path().c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    Names& names = files[{found.st_dev, found.st_ino}];
    if (names.here++ == 0) names.first = entry->path();
    names.all = found.st_nlink;
  }
  return !error || error.value() == ENOENT;
}

}  // namespace

bool nobody_reads(std::span<const std::filesystem::path> directories,
                  RefusedLeases* refused_leases) {
  Files files;
  for (const std::filesystem::path& directory : directories) {
    if (!add_names(directory, files)) return false;
  }
  return std::all_of(files.begin(), files.end(), [&](const auto& file) {
    const Names& names = file.second;
    return names.all > names.here || nobody_reads_file(names.first, refused_leases);
  });
}

bool nobody_reads(const std::filesystem::path& directory, RefusedLeases* refused_leases) {
  return nobody_reads(std::span(&directory, 1), refused_leases);
}

Writers find_writers(int fd) {
  if (is_of_other_hosts(fd)) {
    errno = EOPNOTSUPP;
    return Writers::unknown;
  }
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) {
    return errno == EAGAIN ? Writers::some : Writers::unknown;
  }
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return Writers::none;
}

bool nobody_writes(const std::filesystem::path& path) {
  // A read lease needs a read-only descriptor.
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return file && find_writers(file.fd()) == Writers::none;
}

}  // namespace weightfs
