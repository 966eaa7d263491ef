#include "store/local/discard.hpp"

#include <fmt/format.h>

#include <system_error>

#include "store/base/log.hpp"
#include "store/base/sha256.hpp"

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

}  // namespace

void discard(const fs::path& path, const fs::path& temporary) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return;
  make_removable(path);
  fs::path away = temporary / ("removed-" + random_hex(8));
  fs::rename(path, away, error);
  if (error) away = path;
  fs::remove_all(away, error);
  if (error) {
    log_warning(fmt::format("cannot remove {}: {}", away.string(), error.message()));
  }
}

}  // namespace weightfs
