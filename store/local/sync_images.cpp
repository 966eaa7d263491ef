#include "store/local/sync_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/local/image_times.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

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

/// As far as the disk lets it: if it takes no mark, it takes no other file either.
void mark_lost(const File& file) {
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) return;
  const timespec times[2] = {found.st_atim, {found.st_mtim.tv_sec, kLostMark}};
  static_cast<void>(::futimens(file.fd(), times));
}

[[noreturn]] void throw_lost(const fs::path& path, std::string_view why) {
  throw LostWrite(ErrorCode::io, fmt::format("the disk did not take {}: {}", path.string(), why));
}

void sync_directory(const fs::path& path) {
  const File directory = File::open(path, O_RDONLY | O_DIRECTORY);
  try {
    fsync_file(directory.fd(), path);
  } catch (const LostWrite& lost) {
    throw_lost(path, lost.what());
  }
}

/// Returns: false if it was stopped.
bool sync_file(const fs::path& path, const std::function<bool()>& is_stopped) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) throw_errno(errno, "stat " + path.string());
  if (is_marked_lost(found)) throw_lost(path, "which was found before");
  try {
    return sync_in_slices(file.fd(), path, [&] { return !is_stopped || !is_stopped(); });
  } catch (const LostWrite& lost) {
    mark_lost(file);
    throw_lost(path, lost.what());
  }
}

/// Whether a version with this error is not what was made.  That the host has no descriptors or no
/// memory says nothing of it.
bool is_loss(const std::exception& cause) {
  if (dynamic_cast<const LostWrite*>(&cause) != nullptr) return true;
  if (const auto* error = dynamic_cast<const Error*>(&cause))
    return error->code() == ErrorCode::not_found;
  const auto* error = dynamic_cast<const fs::filesystem_error*>(&cause);
  return error != nullptr && error->code() == std::errc::no_such_file_or_directory;
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
    for (const fs::path& path : tree.directories) sync_directory(path);
  } catch (const std::exception& error) {
    // Its files may have been removed while they were looked at.
    if (images.generation(version) != generation) return SyncedImages::gone;
    if (is_loss(error)) throw Error(ErrorCode::io, error.what());
    log_warning(fmt::format("version {} is not on the disk yet: {}", version, error.what()));
    return SyncedImages::unrecorded;
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

void sync_all_images(ImageTable& images, const std::function<bool()>& is_stopped) {
  std::vector<std::uint64_t> versions = images.unsynced_versions();
  std::reverse(versions.begin(), versions.end());
  for (const std::uint64_t version : versions) {
    try {
      if (sync_images(images, version, is_stopped) == SyncedImages::stopped) return;
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
