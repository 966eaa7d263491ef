#include "store/os/new_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"

namespace weightfs {

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
  if (::chmod(partial_.c_str(), 0644) != 0) {
    throw_errno(errno, "set the mode of " + partial_.string());
  }
  if (::link(partial_.c_str(), target_.c_str()) != 0) {
    throw_errno(errno, "make " + target_.string());
  }
  fsync_directory(target_.parent_path());
}

}  // namespace weightfs
