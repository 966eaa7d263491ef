#include "fs/mount/bind_mounts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "fs/base/kernel_release.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

/// A detached bind mount of `directory`.  On failure an empty File, and errno is set.
File make_detached_bind(const stdfs::path& directory) noexcept {
  File bind(open_tree(AT_FDCWD, directory.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!bind) return bind;
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  if (mount_setattr(bind.fd(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) == 0) return bind;
  const int error = errno;
  bind = File();
  errno = error;
  return bind;
}

std::string explain_bind(int error, const stdfs::path& directory) {
  if (error == EPERM) return "bind mounts need CAP_SYS_ADMIN (run as root)";
  if (error == ENOSYS) {
    return fmt::format(
        "kernel {} cannot create a bind mount that is read-only from the start (needs 5.12 or "
        "newer)",
        kernel_release());
  }
  return fmt::format("the kernel refuses a bind mount of {}: {}", directory.string(),
                     std::strerror(error));
}

/// 42 for "42" and "/x/images/42".
std::optional<std::uint64_t> last_number(const stdfs::path& path) {
  const std::string name = path.filename();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

/// The images may be a file system of their own, hence "/".  A deleted directory was first moved,
/// so its name says nothing; but only a store deletes a directory that is bound below a mount of
/// ours.
bool is_image_directory(const stdfs::path& root, std::uint64_t version) {
  if (root.native().ends_with("//deleted")) return true;
  const stdfs::path parent = root.parent_path();
  return last_number(root) == version && (parent.filename() == "images" || parent == "/");
}

}  // namespace

BindState try_bind(const stdfs::path& directory) {
  if (make_detached_bind(directory)) return {true, ""};
  return {false, explain_bind(errno, directory)};
}

void bind_directory(const stdfs::path& directory, const stdfs::path& over) {
  const File bind = make_detached_bind(directory);
  if (!bind) {
    const int error = errno;
    const bool lacks_right = error == EPERM || error == ENOSYS;
    throw Error(lacks_right ? ErrorCode::permission : ErrorCode::io,
                explain_bind(error, directory));
  }
  if (move_mount(bind.fd(), "", AT_FDCWD, over.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    throw_errno(errno, fmt::format("mount {} over {}", directory.string(), over.string()));
  }
}

int unbind(const stdfs::path& path) noexcept {
  return umount2(path.c_str(), UMOUNT_NOFOLLOW) == 0 ? 0 : errno;
}

int unbind_lazily(const stdfs::path& path) noexcept {
  return umount2(path.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH) == 0 ? 0 : errno;
}

std::optional<std::uint64_t> bound_version(const MountInfo& inner, const MountInfo& mount) {
  if (inner.parent != mount.id || inner.path.parent_path() != mount.path / "versions") return {};
  const auto version = last_number(inner.path);
  return version && is_image_directory(inner.root, *version) ? version : std::nullopt;
}

std::vector<BindMount> find_bind_mounts(const std::vector<MountInfo>& mounts,
                                        const MountInfo& mount) {
  std::vector<BindMount> bound;
  for (const MountInfo& inner : mounts) {
    if (const auto version = bound_version(inner, mount)) {
      bound.push_back({*version, inner.path});
    }
  }
  return bound;
}

}  // namespace weightfs::fs
