// Descriptors: how many files this process may have open, how many of them its readers may use up,
// and that 0, 1 and 2 are never those of another file.
//
// When the daemon serves a file itself it holds a descriptor as long as the file is open.  If
// readers could use up all descriptors, the daemon could no longer reach its bucket or its store.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <utility>

namespace weightfs::fs {

/// Opens /dev/null as each of 0, 1 and 2 that is closed.  Otherwise the next file that is opened
/// gets the number: messages would be written into it, and a daemon would close it.  Requires: no
/// other thread yet.
void fill_standard_descriptors() noexcept;

/// Raises the limit of open files (RLIMIT_NOFILE) to the hard limit, at most to 131,072.  Returns:
/// the new limit.
std::size_t raise_descriptor_limit() noexcept;

/// The current limit.
std::size_t descriptor_limit() noexcept;

/// The share of `limit` for files that readers have open; the rest is for bucket, store, database
/// and control socket.
std::size_t descriptors_for_files(std::size_t limit) noexcept;

/// Counts descriptors; the count never exceeds the maximum.
class DescriptorShare {
 public:
  explicit DescriptorShare(std::size_t count_max) noexcept : count_max_(count_max) {}

  /// Throws Error: io (ENFILE), naming the file, if fewer than `count` are left.
  void take(std::size_t count, const std::filesystem::path& path);
  void give(std::size_t count) noexcept { count_ -= count; }

 private:
  const std::size_t count_max_;
  std::atomic<std::size_t> count_ = 0;
};

/// Holds descriptors of a share until it is destroyed.
class DescriptorClaim {
 public:
  DescriptorClaim() = default;  // holds none
  /// Throws Error: as DescriptorShare::take.  Requires: `share` outlives this.
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
