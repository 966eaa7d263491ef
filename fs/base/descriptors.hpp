// Descriptors: how many files this process may have open, and how many of them readers may make it
// hold.
//
// Where the daemon serves files itself it holds a descriptor for each that is open.  If these could
// take all that the process may have, it could not reach its bucket or its store any more.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <utility>

namespace weightfs::fs {

/// Raises the limit of open files (RLIMIT_NOFILE) as far as it goes, at most to 131,072.
/// Returns: what it is now.
std::size_t raise_descriptor_limit() noexcept;

/// What it is now.
std::size_t descriptor_limit() noexcept;

/// The part of `limit` that is for files which others have open: what is left is for bucket, store,
/// database and control socket.
std::size_t descriptors_for_files(std::size_t limit) noexcept;

/// Counts descriptors against a number that is never exceeded.
class DescriptorShare {
 public:
  explicit DescriptorShare(std::size_t count_max) noexcept : count_max_(count_max) {}

  /// Throws Error: io (ENFILE), naming the file, if there is not so much left.
  void take(std::size_t count, const std::filesystem::path& path);
  void give(std::size_t count) noexcept { count_ -= count; }

 private:
  const std::size_t count_max_;
  std::atomic<std::size_t> count_ = 0;
};

/// Descriptors that are counted, until this ends.
class DescriptorClaim {
 public:
  DescriptorClaim() = default;  // none
  /// Throws Error: as DescriptorShare::take.  `share` outlives this.
  DescriptorClaim(DescriptorShare& share, std::size_t count, const std::filesystem::path& path)
      : share_(&share), count_(count) {
    share.take(count, path);
  }
  DescriptorClaim(DescriptorClaim&& other) noexcept
      : share_(std::exchange(other.share_, nullptr)), count_(other.count_) {}
  DescriptorClaim& operator=(DescriptorClaim&& other) noexcept {
    std::swap(share_, other.share_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DescriptorClaim() {
    if (share_ != nullptr) share_->give(count_);
  }

 private:
  DescriptorShare* share_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace weightfs::fs
