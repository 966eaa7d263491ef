#include "store/local/small_files.hpp"

#include <system_error>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs {

SmallFiles::SmallFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

std::filesystem::path SmallFiles::path_of(const Sha256& sha256) const {
  return directory_ / to_hex(sha256);
}

void SmallFiles::keep(const Sha256& sha256, std::string_view bytes) {
  make_directories(directory_, 0700);
  write_file(path_of(sha256), bytes, 0600);
}

void SmallFiles::keep_only(const std::set<Sha256>& wanted) {
  std::set<std::filesystem::path> paths;
  for (const Sha256& sha256 : wanted) paths.insert(path_of(sha256));
  std::vector<std::filesystem::path> unwanted;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory_, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!paths.contains(entry->path())) unwanted.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw_errno(error.value(), "list " + directory_.string());
  }
  for (const std::filesystem::path& path : unwanted) {
    std::filesystem::remove(path, error);
    if (error) throw_errno(error.value(), "remove " + path.string());
  }
}

}  // namespace weightfs
