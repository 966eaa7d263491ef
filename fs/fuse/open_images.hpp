// Open images: descriptors of the images that the daemon reads itself, one for each open inode.
// Those of files that stream in are read as far as they are here.
//
// An image is opened with the first open of its inode and closed with the last RELEASE, so that no
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

/// One image, open for reading.
class OpenImage {
 public:
  /// `partial`: of a file that streams in; else nullptr.
  /// Throws Error: see throw_errno.
  explicit OpenImage(const LocalFile& file, std::shared_ptr<PartialVersion> partial = nullptr);

  /// Whether a range may be read(); it is asked for if not.  See PartialVersion::ask.
  bool ask(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::function<void()> wake) const;

  [[nodiscard]] bool is_streaming() const noexcept { return partial_ != nullptr; }

  /// Reads as much of `into` as lies below the end of the file as the version has it.
  ///
  /// Returns: how many bytes; 0 at the end.
  /// Requires: ask() said yes.
  /// Throws Error: io; corrupt if the image is shorter than that: never fewer bytes instead.
  std::size_t read(std::uint64_t offset_bytes, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  std::string name_;  // in its version
  std::uint64_t size_bytes_;
  std::shared_ptr<PartialVersion> partial_;
  File file_;
};

class OpenImages {
 public:
  /// `share`: pays for the descriptors; outlives this.
  explicit OpenImages(DescriptorShare& share) noexcept : share_(share) {}

  /// Counts one open of the inode; the first one opens the image, which all of them share.
  /// Throws Error: as OpenImage; io (ENFILE) if too many are open; nothing was counted.
  std::shared_ptr<const OpenImage> hold(Inode inode, const LocalFile& file,
                                        std::shared_ptr<PartialVersion> partial = nullptr);

  /// Counts one RELEASE; the last one closes the image.  Unknown inodes are ignored.
  void release(Inode inode) noexcept;

  /// nullptr if the inode is not held.
  [[nodiscard]] std::shared_ptr<const OpenImage> find(Inode inode) const;

 private:
  struct Held {
    std::shared_ptr<const OpenImage> image;
    std::uint64_t opens = 0;
    DescriptorClaim claim;
  };
  // Counts one more open of an inode that is held; nullptr if it is not.
  std::shared_ptr<const OpenImage> join(Inode inode);

  DescriptorShare& share_;
  mutable RankedMutex mutex_{LockRank::leaf, "OpenImages::mutex_"};
  std::map<Inode, Held> held_;
};

}  // namespace weightfs::fs
