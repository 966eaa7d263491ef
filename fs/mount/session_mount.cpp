#include "fs/mount/session_mount.hpp"

#include <cerrno>
#include <utility>

#include "fs/mount/mount_point.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs::fs {

SessionMount::SessionMount(std::filesystem::path path, const std::string& source, Access access)
    : path_(std::move(path)),
      lies_on_dead_(find_mount(path_).has_value()),
      made_(make_mount(path_, source, access)) {
  if (!made_.tree) info_ = find_mount(path_);
}

SessionMount::~SessionMount() {
  try {
    end();
  } catch (const std::exception& error) {
    log_warning(std::string("cannot unmount: ") + error.what());
  }
}

void SessionMount::attach(Replacing how) {
  if (!made_.tree) return;
  attach_mount(made_.tree, path_, how);
  made_.tree = File();
  info_ = find_mount(path_);
}

void SessionMount::end() const {
  if (info_ && find_mount(path_) == info_) {
    int error = try_unmount(path_, false);
    if (error == EBUSY) error = try_unmount(path_, true);  // open passthrough files keep working
    if (error != 0) throw_errno(error, "unmount " + path_.string());
  }
  // A mount that was never attached ends with its descriptor, and the dead one stays.
  if (lies_on_dead_ && !made_.tree) unmount_dead(path_);
}

}  // namespace weightfs::fs
