#include "fs/fuse/page_sources.hpp"

#include <mutex>
#include <utility>

namespace weightfs::fs {

bool PageSources::is_same(Inode inode, std::uint64_t image) {
  if (image == 0) return true;
  const std::lock_guard lock(mutex_);
  if (images_.size() >= most_ && !images_.contains(inode)) {
    images_.clear();
    has_forgotten_ = true;
  }
  const auto [found, is_new] = images_.try_emplace(inode, image);
  if (is_new) return !has_forgotten_;
  return std::exchange(found->second, image) == image;
}

}  // namespace weightfs::fs
