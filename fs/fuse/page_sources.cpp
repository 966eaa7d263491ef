#include "fs/fuse/page_sources.hpp"

#include <algorithm>
#include <mutex>

namespace weightfs::fs {
namespace {

constexpr std::uint64_t kUnknown = 0;

}  // namespace

bool PageSources::take(Inode inode, std::uint64_t image) {
  const std::lock_guard lock(mutex_);
  if (image == 0) return inode > forgotten_up_to_ && !images_.contains(inode);
  if (images_.size() >= most_ && !images_.contains(inode)) {
    forgotten_up_to_ = std::max(forgotten_up_to_, images_.begin()->first);
    images_.erase(images_.begin());
  }
  const auto found = images_.try_emplace(inode, inode <= forgotten_up_to_ ? kUnknown : image).first;
  return found->second == image;
}

void PageSources::note(Inode inode, std::uint64_t image) noexcept {
  if (image == 0) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = images_.find(inode); found != images_.end()) found->second = image;
}

}  // namespace weightfs::fs
