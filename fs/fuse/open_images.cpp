#include "fs/fuse/open_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/base/error.hpp"

namespace weightfs::fs {

// The inode number of a file that was removed is given to the next one, so its birth counts too.
std::uint64_t image_number(Inode inode, const LocalFile& file) {
  if (parts_of(inode).kind != InodeKind::version) return 0;
  struct statx found {};
  if (::statx(AT_FDCWD, file.image.c_str(), 0, STATX_INO | STATX_BTIME, &found) != 0) {
    throw_errno(errno, "stat " + file.image.string());
  }
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // spreads bits: 2^64 / the golden ratio
  const auto born =
      static_cast<std::uint64_t>(found.stx_btime.tv_sec) * 1'000'000'000 + found.stx_btime.tv_nsec;
  return std::max<std::uint64_t>(found.stx_ino ^ born * kOdd, 1);
}

OpenImage::OpenImage(const LocalFile& file, std::shared_ptr<PartialVersion> partial)
    : path_(file.image),
      name_(file.path),
      size_bytes_(file.size_bytes),
      partial_(std::move(partial)),
      file_(File::open(file.image, O_RDONLY)) {}

bool OpenImage::ask(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                    std::function<void()> wake) const {
  return partial_ == nullptr || partial_->ask(name_, offset_bytes, size_bytes, std::move(wake));
}

std::size_t OpenImage::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (offset_bytes >= size_bytes_) return 0;
  const std::uint64_t left = size_bytes_ - offset_bytes;
  const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(left, into.size()));
  if (!read_at(file_.fd(), offset_bytes, into.first(wanted), path_)) {
    throw Error(ErrorCode::corrupt, fmt::format("image {} is shorter than the {} bytes of its file",
                                                path_.string(), size_bytes_));
  }
  return wanted;
}

std::shared_ptr<const OpenImage> OpenImages::join(Inode inode) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(inode);
  if (found == held_.end()) return nullptr;
  found->second.opens++;
  return found->second.image;
}

std::shared_ptr<const OpenImage> OpenImages::hold(Inode inode, const LocalFile& file,
                                                  std::shared_ptr<PartialVersion> partial) {
  if (auto joined = join(inode)) return joined;
  DescriptorClaim claim(share_, 1, file.image);
  auto image = std::make_shared<const OpenImage>(
      file, std::move(partial));  // a system call: not under the lock
  const std::lock_guard lock(mutex_);
  Held& held = held_[inode];
  if (held.image == nullptr) {
    held.image = std::move(image);
    held.claim = std::move(claim);
  }
  held.opens++;
  return held.image;
}

void OpenImages::release(Inode inode) noexcept {
  std::shared_ptr<const OpenImage> last;  // closed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(inode);
  if (found == held_.end() || --found->second.opens > 0) return;
  last = std::move(found->second.image);
  held_.erase(found);
}

std::shared_ptr<const OpenImage> OpenImages::find(Inode inode) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(inode);
  return found == held_.end() ? nullptr : found->second.image;
}

}  // namespace weightfs::fs
