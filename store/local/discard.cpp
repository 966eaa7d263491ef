#include "store/local/discard.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <system_error>
#include <vector>

#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// Only root can remove the contents of a read-only directory.
void make_removable(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(directory, ignored))) return;
  fs::permissions(directory, fs::perms::owner_all, fs::perm_options::add, ignored);
  fs::directory_iterator entry(directory, ignored);
  for (; !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    make_removable(entry->path());
  }
}

constexpr std::uintmax_t kLargeBytes = 16u << 20;
constexpr unsigned kThreads = 4;

/// To free the pages and blocks of a large file takes the kernel a while (256 MiB: 44 ms), and of
/// several files side by side no longer.  Whoever waits for this room is about to use it.
void remove_large_files(const fs::path& directory) {
  std::vector<fs::path> large;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const bool is_file = fs::is_regular_file(entry->symlink_status(ignored));
    if (is_file && entry->file_size(ignored) >= kLargeBytes) large.push_back(entry->path());
  }
  if (large.size() < 2) return;
  try {
    parallel_for(large.size(), kThreads, {}, [&](std::size_t i) {
      std::error_code ignored;  // what is left is removed, or named, by whoever called
      fs::remove(large[i], ignored);
    });
  } catch (const std::exception& no_thread) {
    log_debug(fmt::format("large files are removed one by one: {}", no_thread.what()));
  }
}

}  // namespace

void discard(const fs::path& path, const fs::path& temporary) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return;
  make_removable(path);
  fs::path away = temporary / ("removed-" + random_hex(8));
  fs::rename(path, away, error);
  if (error) away = path;
  remove_large_files(away);
  fs::remove_all(away, error);
  if (error) {
    log_warning(fmt::format("cannot remove {}: {}", away.string(), error.message()));
  }
}

}  // namespace weightfs
