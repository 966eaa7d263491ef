// Image files: how the files of a version are made on this host, whoever fills them.
//
//     directories     of all files, first
//     link            to a file of the base that has the same bytes; there is nothing to fill then
//     reserve         room for the others
//     seal            mode, time and fsync, when a file is whole
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "store/format/chunk_batches.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

/// Makes the directories that the files of a version lie in, below `root`, which exists.  `files`:
/// those of the layout that are made; without any: all.
/// Returns: all of them, `root` too: what is to be synced in the end.
std::vector<std::filesystem::path> make_image_directories(const Plan& plan,
                                                          const std::filesystem::path& root,
                                                          const FileSet& files = {});

/// Gives the base's file that has the same bytes a second name, `path`.  A small file is compared
/// with its hash first.  A weights file is not, since reading it may take long; if its attributes
/// show that somebody wrote to it, it is not linked but made anew, which compares every chunk.
/// Returns: false if the file must be made instead: there is none, it is damaged, or it cannot be
/// linked (another file system, too many links, ...).
bool link_equal_file(const Plan& plan, const LayoutFile& file, const std::filesystem::path& path);
bool link_equal_blob(const Plan& plan, const BlobRef& blob, const std::filesystem::path& path);

/// The hash of a small file; nullopt if it is not there, no regular file of this size, or cannot be
/// read.
std::optional<Sha256> hash_of_small_file(const std::filesystem::path& path,
                                         std::uint64_t size_bytes);

/// Bytes of the files and blobs that can be linked: they take no room of their own.
std::uint64_t linked_bytes(const Plan& plan);

/// Gives a new file its size, in one extent where the file system can.
/// Throws Error: no_space, io.
void reserve_image(int fd, std::uint64_t size_bytes, const std::filesystem::path& path);

struct ImageSeal {
  unsigned mode = 0444;
  std::int64_t time = 0;  // of modification
  bool sync = true;
};

/// Gives a file that is written its mode and time, and makes it durable.
void seal_image(int fd, const std::filesystem::path& path, const ImageSeal& seal);

}  // namespace weightfs
