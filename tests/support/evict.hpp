// Evict: evicts files from the page cache.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <filesystem>

#include "fs/cache/page_cache.hpp"
#include "store/os/file.hpp"
#include "tests/support/eventually.hpp"

namespace weightfs::test {

/// True for tmpfs, whose only storage is the page cache.
inline bool is_in_memory(const std::filesystem::path& path) {
  struct statfs found {};
  return ::statfs(path.c_str(), &found) == 0 && found.f_type == TMPFS_MAGIC;
}

/// Returns: false if some of the file stays cached for a very long time.
inline bool evict(const std::filesystem::path& path) {
  const File file = File::open(path, O_RDONLY);
  fsync_file(file.fd(), path);
  return eventually([&] {
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
    return fs::mincore_bytes(file.fd(), 0, std::filesystem::file_size(path)) == 0;
  });
}

}  // namespace weightfs::test
