// Open images: descriptors of the images that the daemon reads itself, one for each open inode.
// Files that are still streaming are read as far as they are present.
//
// An image is opened by the first open of its inode and closed by the last RELEASE, so no
// descriptor of the daemon keeps an image in use, or its space occupied, longer than its readers
// do.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "fs/base/descriptors.hpp"
#include "fs/base/inode.hpp"
#include "fs/fuse/file_kind.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/streaming/partial_version.hpp"

namespace weightfs::fs {

/// A number for the file that a version's bytes come from now, which no other file ever gets.  0
/// for other inodes: a delta goes and is made again while it is read, with the same bytes. Throws
/// Error: see throw_errno.
std::uint64_t image_number(Inode inode, const LocalFile& file);

/// One image, open for reading.
class OpenImage {
 public:
  /// `partial`: for a file that is still streaming; otherwise nullptr.
  /// Throws Error: see throw_errno.
  explicit OpenImage(const LocalFile& file, std::shared_ptr<PartialVersion> partial = nullptr);

  /// Whether a range may be read(); if not, it is requested.  See PartialVersion::ask.
  bool ask(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::function<void()> wake) const;

  [[nodiscard]] bool is_streaming() const noexcept { return partial_ != nullptr; }

  /// Fills `into`, as far as the version's size of the file allows.
  ///
  /// Returns: how many bytes; 0 at the end.
  /// Requires: ask() returned true.
  /// Throws Error: io; corrupt if the image is shorter than that size, rather than returning fewer
  /// bytes.
  std::size_t read(std::uint64_t offset_bytes, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  std::string name_;  // within its version
  std::uint64_t size_bytes_;
  std::shared_ptr<PartialVersion> partial_;
  File file_;
};

class OpenImages {
 public:
  /// `share`: the descriptors are taken from it; outlives this.
  explicit OpenImages(DescriptorShare& share) noexcept : share_(share) {}

  /// Counts one open of the inode; the first opens the image, which all opens share.
  /// Throws Error: as OpenImage; io (ENFILE) if too many are open.  Nothing is counted then.
  std::shared_ptr<const OpenImage> hold(Inode inode, const LocalFile& file,
                                        std::shared_ptr<PartialVersion> partial = nullptr);

  /// Counts one RELEASE; the last one closes the image.  Unknown inodes are ignored.
  void release(Inode inode) noexcept;

  /// Returns: nullptr if the inode is not held.
  [[nodiscard]] std::shared_ptr<const OpenImage> find(Inode inode) const;

 private:
  struct Held {
    std::shared_ptr<const OpenImage> image;
    std::uint64_t opens = 0;
    DescriptorClaim claim;
  };
  // Counts one more open of an inode that is held; nullptr if it is not held.
  std::shared_ptr<const OpenImage> join(Inode inode);

  DescriptorShare& share_;
  mutable RankedMutex mutex_{LockRank::leaf, "OpenImages::mutex_"};
  std::map<Inode, Held> held_;
};

}  // namespace weightfs::fs
