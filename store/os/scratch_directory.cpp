#include "store/os/scratch_directory.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"

namespace weightfs {

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent, std::string_view prefix) {
  make_directories(parent);
  const std::filesystem::path path = parent / (std::string(prefix) + random_hex(8));
  if (::mkdir(path.c_str(), 0755) != 0) throw_errno(errno, "make the directory " + path.string());
  path_ = path;
}

ScratchDirectory::~ScratchDirectory() { remove(); }

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

ScratchDirectory& ScratchDirectory::operator=(ScratchDirectory&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
  }
  return *this;
}

void ScratchDirectory::keep_as(const std::filesystem::path& path) {
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    throw_errno(errno, "rename " + path_.string() + " to " + path.string());
  }
  path_.clear();
}

void ScratchDirectory::remove() noexcept {
  if (path_.empty()) return;
  std::error_code ignored;  // nothing can be done about it here
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace weightfs
