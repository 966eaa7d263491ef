#include "store/publish/publish_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <exception>
#include <string>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr int kOwnStoresMax = 64;

/// nullptr if another process holds it.
std::unique_ptr<Store> open_unless_held(const std::filesystem::path& path,
                                        std::string_view repository, std::string_view url,
                                        StoreLimits limits) {
  try {
    return Store::open(path, repository, url, limits);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::busy) throw;
    log_info(error.what());
    return nullptr;
  }
}

/// Path + ".publish" + `suffix`.
std::filesystem::path beside(const std::filesystem::path& path, std::string_view suffix) {
  return path.string() + ".publish" + std::string(suffix);
}

/// The process that made "<store>.publish-<pid>" or "<store>.publish-<pid>-<k>"; 0 for other names.
pid_t owner_of(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return 0;
  pid_t pid = 0;
  const char* begin = name.data() + prefix.size();
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(begin, end, pid);
  if (parsed.ec != std::errc() || pid <= 0) return 0;
  return parsed.ptr == end || *parsed.ptr == '-' ? pid : 0;
}

bool is_dead(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

/// Removes a store whose owner is gone.  The lock decides: a process of another PID namespace looks
/// dead from here, but holds its lock.
void remove_abandoned(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path / "lock")) {
    std::filesystem::remove(path);  // killed before it had a lock; only succeeds on an empty
                                    // directory
    return;
  }
  const File lock = File::open(path / "lock", O_RDWR);
  if (::flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) return;
  std::filesystem::remove_all(path);
  log_info(fmt::format("removed {}, the store of a publish that was killed", path.string()));
}

/// Best effort: what cannot be removed does no harm.
void remove_all_abandoned(const std::filesystem::path& path) {
  const std::string prefix = beside(path, "-").filename().string();
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), unreadable)) {
    const pid_t owner = owner_of(entry.path().filename().string(), prefix);
    if (owner == 0 || !is_dead(owner)) continue;
    try {
      remove_abandoned(entry.path());
    } catch (const std::exception& error) {
      log_warning(fmt::format("cannot remove {}: {}", entry.path().string(), error.what()));
    }
  }
}

/// Absolute and without a trailing '/', so that sibling names can be made by appending.
std::filesystem::path without_slash(const std::filesystem::path& given) {
  const auto path = std::filesystem::absolute(given).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

PublishStore PublishStore::open(const std::filesystem::path& given, std::string_view repository,
                                std::string_view url, StoreLimits limits) {
  const std::filesystem::path path = without_slash(given);
  remove_all_abandoned(path);
  PublishStore result;
  for (const auto& candidate : {path, beside(path, "")}) {
    result.store_ = open_unless_held(candidate, repository, url, limits);
    if (result.store_) return result;
  }
  // Containers that share the directory may have the same pid.
  for (int k = 0; k < kOwnStoresMax; k++) {
    const std::string number = k == 0 ? "" : fmt::format("-{}", k);
    const auto own = beside(path, fmt::format("-{}{}", ::getpid(), number));
    result.store_ = open_unless_held(own, repository, url, limits);
    if (!result.store_) continue;
    result.remove_ = own;
    return result;
  }
  throw Error(ErrorCode::busy,
              fmt::format("{} and {} private stores beside it are in use; give another --store",
                          path.string(), kOwnStoresMax));
}

PublishStore::~PublishStore() {
  if (!store_) return;
  store_.reset();
  if (remove_.empty()) return;
  try {
    std::filesystem::remove_all(remove_);
  } catch (const std::exception& error) {
    log_caught("cannot remove the store of this publish", error);
  }
}

}  // namespace weightfs
