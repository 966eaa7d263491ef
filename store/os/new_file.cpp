#include "store/os/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

/// What file systems answer that have no links, no modes, or no such rename: vfat, exFAT, buckets
/// that are mounted.  The file is ours, so it is no matter of permissions.
bool is_unknown_there(int error) {
  return error == EPERM || error == ENOTSUP || error == ENOSYS || error == EINVAL;
}

/// Returns: whether it has the name; if not, errno says why.
bool rename_if_free(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (!is_unknown_there(errno)) return false;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(to, ignored))) {
    errno = EEXIST;
    return false;
  }
  return ::rename(from.c_str(), to.c_str()) == 0;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& file)
    : target_(std::filesystem::absolute(file).lexically_normal()) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(target_, ignored))) {
    throw Error(ErrorCode::exists,
                fmt::format("{} exists; choose another file, or remove it", target_.string()));
  }
  make_directories(target_.parent_path());
  partial_ = target_.parent_path() /
             fmt::format(".{}.partial-{}", target_.filename().string(), random_hex(8));
}

NewFile::~NewFile() { ::unlink(partial_.c_str()); }

void NewFile::keep() const {
  if (::chmod(partial_.c_str(), 0644) != 0 && !is_unknown_there(errno)) {
    throw_errno(errno, "set the mode of " + partial_.string());
  }
  bool is_kept = ::link(partial_.c_str(), target_.c_str()) == 0;
  if (!is_kept && is_unknown_there(errno)) is_kept = rename_if_free(partial_, target_);
  if (!is_kept) throw_errno(errno, "make " + target_.string());
  fsync_directory(target_.parent_path());
}

}  // namespace weightfs
