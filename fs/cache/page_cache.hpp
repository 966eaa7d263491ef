// Page cache: how much of a version's images is in it, and how to bring the rest in.
//
// Large folios are what makes a warm image as fast as a fresh one: a mapping with MADV_HUGEPAGE
// that is populated gets folios of 2 MiB whatever the device's readahead is, and is scanned at 32
// GB/s. After posix_fadvise(WILLNEED) or readahead(2) the folios are single pages: 8 GB/s
// (docs/BENCHMARKS.md).
//
// Threads: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace weightfs::fs {

/// A regular file of a version.
struct CachedFile {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
};

struct Residency {
  std::uint64_t size_bytes = 0;
  std::uint64_t cached_bytes = 0;  // of these
  bool is_exact = true;            // false: of large files only a sample was looked at

  [[nodiscard]] bool is_whole() const noexcept { return cached_bytes >= size_bytes; }
  /// 0 to 100, rounded down: 100 is all of it, or all but what a sample does not show.
  [[nodiscard]] unsigned percent() const noexcept;
};

/// Asks cachestat(2); where it does not say (Linux before 6.5, a container's filter, overlayfs),
/// mincore(2), for 128 MiB of each file: what is larger is sampled.
/// A file that cannot be opened counts as not cached.
Residency residency_of(const std::vector<CachedFile>& files);

/// Bytes of [offset, offset + size) that are in the page cache.
/// cachestat_bytes: also what is still on its way from the disk; nullopt if the kernel does not
/// say.
std::optional<std::uint64_t> cachestat_bytes(int fd, std::uint64_t offset, std::uint64_t size);
std::uint64_t mincore_bytes(int fd, std::uint64_t offset, std::uint64_t size);

/// What mincore_bytes says of a whole file, from a sample if it is large.
/// `is_exact` becomes false if it was.
std::uint64_t sampled_bytes(int fd, std::uint64_t size, bool& is_exact);

/// Reads [offset, offset + size) into the page cache, and returns when it is there.
///
/// Requires: `offset` is a multiple of 4 MiB.  `path` names the file in messages.
/// Throws Error: io.
void read_ahead(int fd, const std::filesystem::path& path, std::uint64_t offset,
                std::uint64_t size);

}  // namespace weightfs::fs
