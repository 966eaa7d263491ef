#include "fs/fuse/open_files.hpp"

#include <utility>

namespace weightfs::fs {

std::uint64_t OpenFiles::add(std::shared_ptr<const OpenFile> file) {
  const std::lock_guard lock(mutex_);
  files_.emplace(last_ + 1, std::move(file));
  return ++last_;
}

std::shared_ptr<const OpenFile> OpenFiles::find(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(handle);
  return found == files_.end() ? nullptr : found->second;
}

void OpenFiles::remove(std::uint64_t handle) noexcept {
  std::shared_ptr<const OpenFile> removed;  // released and deleted without the lock
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(handle);
    if (found == files_.end()) return;
    removed = std::move(found->second);
    files_.erase(found);
  }
  removed->release();
}

}  // namespace weightfs::fs
