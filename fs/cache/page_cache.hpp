// Page cache: how much of a version's images it holds, and how to read the rest into it.
//
// Large folios make a warm image as fast as a fresh one.  Populating a mapping with MADV_HUGEPAGE
// gives folios of 2 MiB whatever the device's readahead is; they are scanned at 32 GB/s.
// posix_fadvise(WILLNEED) and readahead(2) give single pages: 8 GB/s (docs/BENCHMARKS.md).
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
  std::uint64_t cached_bytes = 0;  // of size_bytes
  bool is_exact = true;            // false: large files were only sampled

  [[nodiscard]] bool is_whole() const noexcept { return cached_bytes >= size_bytes; }
  /// 0 to 100, rounded down. 100: everything is cached, except what a sample may have missed.
  [[nodiscard]] unsigned percent() const noexcept;
};

/// Uses cachestat(2).  Where that gives no answer (Linux before 6.5, a container's filter,
/// overlayfs) it uses mincore(2), on at most 128 MiB of each file: larger files are sampled.  A
/// file that cannot be opened counts as not cached.
Residency residency_of(const std::vector<CachedFile>& files);

/// Bytes of [offset, offset + size) that are in the page cache. cachestat_bytes also counts pages
/// that are still being read from disk; it returns nullopt if the kernel gives no answer.
std::optional<std::uint64_t> cachestat_bytes(int fd, std::uint64_t offset, std::uint64_t size);
std::uint64_t mincore_bytes(int fd, std::uint64_t offset, std::uint64_t size);

/// mincore_bytes of a whole file, estimated from a sample if the file is large; then `is_exact`
/// becomes false.
std::uint64_t sampled_bytes(int fd, std::uint64_t size, bool& is_exact);

/// Reads [offset, offset + size) into the page cache; returns when it is there.
///
/// Requires: `offset` is a multiple of 4 MiB. `path` names the file in messages.
/// Throws Error: io.
void read_ahead(int fd, const std::filesystem::path& path, std::uint64_t offset,
                std::uint64_t size);

}  // namespace weightfs::fs
