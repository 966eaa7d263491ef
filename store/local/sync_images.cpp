#include "store/local/sync_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSliceBytes = 16u << 20;  // how soon it can stop
constexpr long kLostMark = 1;                     // ns; images have times of whole seconds

/// What lies below a directory, it and its parent too: files first, then directories, deepest
/// first.
struct Tree {
  explicit Tree(const fs::path& root) {
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      (entry.is_directory() ? directories : files).push_back(entry.path());
    }
    std::reverse(directories.begin(), directories.end());
    directories.push_back(root);
    directories.push_back(root.parent_path());
  }

  std::vector<fs::path> files, directories;
};

bool is_marked(const File& file) {
  struct stat found {};
  return ::fstat(file.fd(), &found) == 0 && found.st_mtim.tv_nsec == kLostMark;
}

/// As far as the disk lets it: if it takes no mark, it takes no other file either.
void mark_lost(const File& file) {
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) return;
  const timespec times[2] = {found.st_atim, {found.st_mtim.tv_sec, kLostMark}};
  static_cast<void>(::futimens(file.fd(), times));
}

[[noreturn]] void throw_lost(const fs::path& path, int error) {
  throw Error(ErrorCode::io, fmt::format("the disk did not take {}: {}", path.string(),
                                         std::generic_category().message(error)));
}

/// Returns: false if it was stopped.
bool sync_file(const fs::path& path, const std::function<bool()>& is_stopped) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  if (is_marked(file)) throw_lost(path, EIO);
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) throw_errno(errno, "stat " + path.string());
  constexpr unsigned kWriteAndWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const auto size = static_cast<std::uint64_t>(found.st_size);
  for (std::uint64_t at = 0; at < size; at += kSliceBytes) {
    if (is_stopped && is_stopped()) return false;
    const int failed = ::sync_file_range(file.fd(), static_cast<off64_t>(at),
                                         static_cast<off64_t>(kSliceBytes), kWriteAndWait);
    // Where there is no such call fsync alone does it.
    const bool is_lost = failed != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT);
    if (!is_lost) continue;
    const int error = errno;
    mark_lost(file);
    throw_lost(path, error);
  }
  if (is_stopped && is_stopped()) return false;
  if (::fsync(file.fd()) == 0) return true;
  const int error = errno;
  mark_lost(file);
  throw_lost(path, error);
}

}  // namespace

SyncedImages sync_images(ImageTable& images, std::uint64_t version,
                         const std::function<bool()>& is_stopped) {
  const std::uint64_t generation = images.generation(version);
  if (generation == 0) return SyncedImages::gone;
  try {
    const Tree tree(images.image_directory(version));
    for (const fs::path& path : tree.files) {
      if (!sync_file(path, is_stopped)) return SyncedImages::stopped;
    }
    for (const fs::path& path : tree.directories) fsync_directory(path);
  } catch (const fs::filesystem_error& error) {
    if (images.generation(version) != generation) return SyncedImages::gone;
    throw Error(ErrorCode::io, error.what());
  } catch (const Error&) {
    // Its files may have been removed while they were looked at.
    if (images.generation(version) != generation) return SyncedImages::gone;
    throw;
  }
  try {
    // Files may have been added, or all of it made anew.
    if (!images.mark_synced(version, generation)) return SyncedImages::gone;
  } catch (const Error& error) {
    log_warning(fmt::format("version {} is on the disk, but cannot be recorded as such: {}",
                            version, error.what()));
    return SyncedImages::unrecorded;
  }
  return SyncedImages::synced;
}

void sync_all_images(ImageTable& images) {
  std::vector<std::uint64_t> versions = images.unsynced_versions();
  std::reverse(versions.begin(), versions.end());
  for (const std::uint64_t version : versions) {
    try {
      static_cast<void>(sync_images(images, version));
    } catch (const Error& error) {
      log_error(fmt::format("version {} is lost: {}", version, error.what()));
      images.remove_images(version);
    }
  }
}

void sync_image(const fs::path& path, const Context& context) {
  const std::string what = "syncing " + path.string();
  const auto check = [&] {
    context.check(what);
    return false;
  };
  static_cast<void>(sync_file(path, check));
}

}  // namespace weightfs
