// Image files: how the files of a version are created on this host, whoever fills them.
//
//     directories     for all files, first
//     link            to a file of the base with the same bytes; then there is nothing to fill
//     reserve         room for the others
//     seal            mode, time and fsync, when a file is complete
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "store/format/chunk_batches.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/repository.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

/// Makes the directories that contain the version's files, below `root`, which exists.  `files`:
/// the files of the layout to be made; empty: all.
/// Returns: all of these directories including `root`, which must be synced in the end.
std::vector<std::filesystem::path> make_image_directories(const Plan& plan,
                                                          const std::filesystem::path& root,
                                                          const FileSet& files = {});

/// Hard-links the base's file with the same bytes as `path`.  A small file is hashed first.  A
/// weights file is not, since reading it may take long; if its attributes show that it was written
/// to, it is not linked but rebuilt, which compares every chunk.
/// Returns: false if the file must be built instead: there is no such file, it is damaged, or it
/// cannot be linked (another file system, too many links, ...).
bool link_equal_file(const Plan& plan, const LayoutFile& file, const std::filesystem::path& path);
bool link_equal_blob(const Plan& plan, const BlobRef& blob, const std::filesystem::path& path);

/// Writes the bytes of the base's equal small file to `fd`, the empty file at `path`: where it
/// cannot be linked, as between disk and memory.  With patches also those of a file that the store
/// has kept.  Returns: false if there is none that is right.
bool copy_equal_blob(const Plan& plan, const BlobRef& blob, int fd,
                     const std::filesystem::path& path);

/// Whether copy_equal_blob() has all small files of the plan's version.
bool has_equal_blobs(const Plan& plan);

/// The hash of a small file; nullopt if it does not exist, is not a regular file of this size, or
/// cannot be read.
std::optional<Sha256> hash_of_small_file(const std::filesystem::path& path,
                                         std::uint64_t size_bytes);

/// Total size of the files and blobs that can be linked, which need no room of their own.  `into`:
/// a directory on the file system where they will be.
std::uint64_t linked_bytes(const Plan& plan, const std::filesystem::path& into);

/// Gives a new file its size, in one extent where the file system can.
/// Throws Error: no_space, io.
void reserve_image(int fd, std::uint64_t size_bytes, const std::filesystem::path& path);

/// Fetches a small file and writes it to `fd`, the file at `path`.  `meter` may be null.
/// Throws ObjectError: not_found, corrupt; Error: no_space, io, unavailable, cancelled.
void write_blob(Repository& repository, const BlobRef& blob, int fd,
                const std::filesystem::path& path, const Context& context, BuildMeter* meter);

struct ImageSeal {
  unsigned mode = 0444;
  std::int64_t time = 0;  // modification time
  bool sync = true;
};

/// Gives a written file its mode and time, and makes it durable.
void seal_image(int fd, const std::filesystem::path& path, const ImageSeal& seal);

}  // namespace weightfs
