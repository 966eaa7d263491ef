#include "fs/mount/mount_point.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "fs/base/child_call.hpp"
#include "fs/mount/bind_mounts.hpp"
#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_users.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::chrono::seconds kLivenessTimeout{5};
/// How long unmount() waits for a user that it cannot name, and how often it looks.
constexpr std::chrono::seconds kPasserByTimeout{1};
constexpr std::chrono::milliseconds kPasserByPause{20};
constexpr std::size_t kNamesShown = 3;

[[noreturn]] void refuse_mounted(const stdfs::path& path, const MountInfo& mount) {
  const std::string name = path.string();
  if (mount.type == kMountType) {
    throw Error(ErrorCode::exists,
                fmt::format("{} is already a weightfs mount of {}; to end it: weightfs umount {}",
                            name, mount.source, name));
  }
  throw Error(ErrorCode::busy,
              fmt::format("{} is a mount point of another file system ({} of type {}); choose an "
                          "empty directory",
                          name, mount.source, mount.type));
}

/// A lazy unmount takes along everything that is mounted inside, so that must be ours.
void refuse_foreign_inside(const MountInfo& mount) {
  for (const MountInfo& inner : mounts_inside(read_mounts(), mount)) {
    if (bound_version(inner, mount)) continue;
    throw Error(ErrorCode::busy,
                fmt::format("a file system ({} of type {}) is mounted inside {}, at {}; unmount it "
                            "first",
                            inner.source, inner.type, mount.path.string(), inner.path.string()));
  }
}

/// Whether there is another weightfs directly below.
bool covers_weightfs(const MountInfo& mount) {
  const std::vector<MountInfo> mounts = read_mounts();
  return std::any_of(mounts.begin(), mounts.end(), [&](const MountInfo& other) {
    return other.id == mount.parent && other.path == mount.path && other.type == kMountType;
  });
}

[[noreturn]] void refuse_used(const stdfs::path& path) {
  throw Error(ErrorCode::busy, fmt::format("{} is used by {}; stop it, or umount --lazy",
                                           path.string(), describe_users(users_of(path))));
}

[[noreturn]] void refuse_not_allowed(const stdfs::path& path) {
  if (geteuid() == 0) {
    throw Error(ErrorCode::permission,
                fmt::format("cannot unmount {}: root may not here; it takes CAP_SYS_ADMIN in the "
                            "user namespace that the mount was made in",
                            path.string()));
  }
  throw Error(ErrorCode::permission,
              fmt::format("uid {} may not unmount {}: whoever mounted it may, by fusermount3, and "
                          "root: sudo weightfs umount {}",
                          geteuid(), path.string(), path.string()));
}

/// Does not walk into a mount whose daemon does not answer: its bind mounts are unmounted together
/// with it, unless a process uses them.
/// Returns: 0, or the errno.
int unmount_all(const MountInfo& mount, Answering answering) {
  constexpr int kTries = 3;  // the daemon may have bound a version again
  int error = 0;
  for (int i = 0; i < kTries; i++) {
    const auto bound = find_bind_mounts(read_mounts(), mount);
    if (bound.empty() && i > 0) return error;
    if (!bound.empty() && (answering == Answering::no || is_dead(mount.path))) {
      return users_of(mount.path).empty() ? try_unmount(mount.path, true) : EBUSY;
    }
    for (const BindMount& one : bound) {
      if (unbind(one.path) == EBUSY) return EBUSY;
    }
    error = try_unmount(mount.path, false);
    if (error != EBUSY) return error;
  }
  return error;
}

/// Whoever walks a path into the mount, or copies this mount namespace, makes it busy for a moment
/// and is not to be found: that is waited for.  Whoever has something open there is not.
/// Returns: 0, or the errno.
int unmount_when_left(const MountInfo& mount, Answering answering) {
  const auto limit = std::chrono::steady_clock::now() + kPasserByTimeout;
  while (true) {
    const int error = unmount_all(mount, answering);
    if (error != EBUSY || std::chrono::steady_clock::now() >= limit) return error;
    if (!users_of(mount.path).empty()) return error;
    std::this_thread::sleep_for(kPasserByPause);
  }
}

[[noreturn]] void refuse_silent(const stdfs::path& path, const MountInfo& mount) {
  throw Error(
      ErrorCode::timed_out,
      fmt::format(
          "{0} is already a weightfs mount of {1}, and its daemon does not answer (stopped or "
          "starved?); resume or kill the daemon, or unmount it: weightfs umount {0}",
          path.string(), mount.source));
}

/// Throws unless it is a dead mount of ours that contains only mounts of ours.
void require_dead(const stdfs::path& path, const MountInfo& mount) {
  if (mount.type != kMountType) refuse_mounted(path, mount);
  switch (liveness_of(path)) {
    case Liveness::dead:
      return refuse_foreign_inside(mount);
    case Liveness::silent:
      refuse_silent(path, mount);
    case Liveness::alive:
      refuse_mounted(path, mount);
  }
}

std::vector<std::string> list_names(File directory) {
  std::vector<std::string> names;
  const int fd = fcntl(directory.fd(), F_DUPFD_CLOEXEC, 3);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fd < 0 ? nullptr : fdopendir(fd), closedir);
  while (const dirent* entry = stream ? readdir(stream.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The names in the directory that a mount hides, read through a clone of the surrounding mount,
/// which does not include what is mounted on it.  Empty if the clone cannot be made.
std::vector<std::string> names_below_mount(const stdfs::path& path) {
  const File around(
      open_tree(AT_FDCWD, path.parent_path().c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  File directory(around ? openat(around.fd(), path.filename().c_str(),
                                 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                        : -1);
  return directory ? list_names(std::move(directory)) : std::vector<std::string>();
}

std::vector<std::string> list_mount_point(const stdfs::path& path) {
  const std::string name = path.string();
  std::error_code failed;
  const auto type = stdfs::symlink_status(path, failed).type();
  if (type == stdfs::file_type::not_found) {
    throw Error(ErrorCode::not_found,
                fmt::format("the mount point {} does not exist; mkdir -p {}", name, name));
  }
  if (failed) throw_errno(failed.value(), "stat the mount point " + name);
  if (type != stdfs::file_type::directory) {
    throw Error(ErrorCode::invalid, fmt::format("the mount point {} is not a directory", name));
  }
  return list_names(File::open(path, O_RDONLY | O_DIRECTORY));
}

}  // namespace

Liveness liveness_of(const stdfs::path& path) {
  // stat(2) might answer with cached attributes.
  const auto stat_now = [](const char* name, int) {
    struct statx attributes {};
    const int failed = statx(AT_FDCWD, name, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &attributes);
    return failed != 0 ? errno : 0;
  };
  const auto answer = call_in_child(stat_now, path, kLivenessTimeout);
  if (!answer) return Liveness::silent;
  const bool is_gone = answer->error == ENOTCONN || answer->error == ECONNABORTED;
  return is_gone ? Liveness::dead : Liveness::alive;
}

bool is_dead(const stdfs::path& path) { return liveness_of(path) == Liveness::dead; }

void unmount_dead(const stdfs::path& canonical) {
  for (auto mount = topmost_at(canonical); mount && mount->type == kMountType && is_dead(canonical);
       mount = topmost_at(canonical)) {
    refuse_foreign_inside(*mount);
    if (const int error = try_unmount(canonical, true); error != 0) {
      throw_errno(error, "unmount the dead weightfs at " + canonical.string());
    }
  }
}

MountPlace prepare_mount_point(const stdfs::path& path, NonEmpty non_empty) {
  MountPlace place{canonical_mount_point(path), {}};
  const bool replaces = geteuid() == 0;
  std::optional<MountInfo> mount;
  while ((mount = topmost_at(place.path))) {
    require_dead(place.path, *mount);
    const bool is_last = !covers_weightfs(*mount);
    if (replaces && is_last) break;
    if (const int error = try_unmount(place.path, true); error != 0) {
      throw_errno(error, "unmount the dead weightfs at " + place.path.string());
    }
  }
  place.hidden = mount ? names_below_mount(place.path) : list_mount_point(place.path);
  if (place.hidden.empty() || non_empty == NonEmpty::allowed) return place;
  throw Error(
      ErrorCode::invalid,
      fmt::format(
          "the mount point {} is not empty: it contains {}. Files saved there while nothing "
          "was mounted were not published: move them away, or mount with --nonempty, which "
          "hides them until umount",
          place.path.string(), shown_names(place.hidden)));
}

std::string shown_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); i++) {
    text += (i == 0 ? "" : ", ") + escape_name(names[i]);
  }
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
}

void unmount(const stdfs::path& path, bool lazy, Answering answering) {
  const stdfs::path canonical = canonical_mount_point(path);
  const auto mount = topmost_at(canonical);
  if (!mount || mount->type != kMountType) {
    throw Error(ErrorCode::not_found,
                fmt::format("no weightfs is mounted at {}", canonical.string()));
  }
  refuse_foreign_inside(*mount);
  const int error = lazy ? try_unmount(canonical, true) : unmount_when_left(*mount, answering);
  if (error == EBUSY) refuse_used(canonical);
  if (error == EPERM) refuse_not_allowed(canonical);
  if (error != 0) throw_errno(error, "unmount " + canonical.string());
  unmount_dead(canonical);  // the dead mounts below it
}

}  // namespace weightfs::fs
