#include "fs/daemon/bound_versions.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/local/image_times.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

// The kernel removes a bind mount when its name is hidden for a moment; it is made again at the
// next check.  Not sooner: a user who unmounts everything by hand must not find new bind mounts.
constexpr std::chrono::seconds kBindLookInterval{5};

// A file of an image with a single name belongs to this version alone.
bool is_own(const CatalogEntry& entry, const struct stat& found) {
  return entry.is_directory || found.st_nlink == 1;
}

void set_attributes(const CatalogEntry& entry, const std::filesystem::path& path, std::int64_t time,
                    const Ownership& ownership) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) throw_errno(errno, "stat " + path.string());
  if (is_marked_lost(found)) {
    throw Error(ErrorCode::io, "the disk did not take " + path.string());
  }
  if (found.st_uid != ownership.uid || found.st_gid != ownership.gid) {
    if (::fchown(file.fd(), ownership.uid, ownership.gid) != 0)
      throw_errno(errno, "set the owner of " + path.string());
  }
  const mode_t mode = (entry.is_directory ? 0777U : 0666U) & ~ownership.umask;
  if ((found.st_mode & 07777) != mode && ::fchmod(file.fd(), mode) != 0)
    throw_errno(errno, "set the mode of " + path.string());
  if (!is_own(entry, found) || (found.st_mtim.tv_sec == time && found.st_mtim.tv_nsec == 0)) return;
  if (!entry.is_directory && was_written_to(found)) return;  // its time is what tells that
  const timespec times[2] = {{time, 0}, {time, 0}};
  if (::futimens(file.fd(), times) != 0) throw_errno(errno, "set the time of " + path.string());
}

}  // namespace

void set_image_attributes(const CatalogVersion& version, const Ownership& ownership) {
  for (const CatalogEntry& entry : version.entries) {
    set_attributes(entry, version.directory / entry.path, version.time, ownership);
  }
}

// ---- the thread ----

BoundVersions::BoundVersions(BoundVersionsOptions options) : options_(std::move(options)) {}

BoundVersions::~BoundVersions() { stop(); }

void BoundVersions::start(const MountInfo& mount,
                          std::function<std::shared_ptr<const Catalog>()> catalog) {
  {
    const std::lock_guard work(work_mutex_);
    mount_ = mount;
    catalog_ = std::move(catalog);
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  look();
  const std::lock_guard lock(mutex_);
  if (!stopped_) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void BoundVersions::stop() {
  std::jthread ended;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    ended = std::move(thread_);
  }
  if (ended.joinable()) {
    ended.request_stop();
    ended.join();
  }
  const std::lock_guard last(work_mutex_);  // waits for what another thread has begun
}

void BoundVersions::notify() {
  {
    const std::lock_guard lock(mutex_);
    notified_ = true;
  }
  changed_.notify_all();
}

void BoundVersions::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, kBindLookInterval, [this] { return notified_; });
      notified_ = false;
    }
    if (!stop.stop_requested()) look();
  }
}

/// Makes the bind mounts match the catalog.
void BoundVersions::look() {
  const std::unique_lock work(work_mutex_, kPatience);
  if (!work) return notify();
  try {
    refresh();
    const auto catalog = catalog_();
    unbind_gone(*catalog);
    bind_missing(*catalog);
  } catch (const std::exception& error) {
    log_warning(fmt::format("cannot bind versions: {}", error.what()));
  }
}

/// Newest first: `latest` is read most.
void BoundVersions::bind_missing(const Catalog& catalog) {
  for (auto at = catalog.versions.rbegin(); at != catalog.versions.rend(); ++at) {
    if (may_bind(at->first)) bind(*at->second);
  }
}

/// Also what the disk lost: it is made again in another directory, whoever reads the lost one.
void BoundVersions::unbind_gone(const Catalog& catalog) {
  for (const std::uint64_t version : list()) {
    const auto found = catalog.versions.find(version);
    if (found != catalog.versions.end() && is_bound_from(*found->second)) continue;
    if (end(version) == EBUSY) leave_to_readers(version);
  }
  std::erase_if(said_, [&](const auto& item) { return !catalog.versions.contains(item.first); });
  const std::lock_guard lock(mutex_);
  std::erase_if(withdrawn_,
                [&](std::uint64_t version) { return !catalog.versions.contains(version); });
}

// ---- one version; these require work_mutex_ ----

bool BoundVersions::has_started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

bool BoundVersions::may_bind(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return is_there_ && !stopped_ && !bound_.contains(version) && !withdrawn_.contains(version);
}

void BoundVersions::bind(const CatalogVersion& version) {
  if (!version.has_all_files()) return;
  try {
    set_image_attributes(version, options_.ownership);
    if (options_.bound) options_.bound(version);  // first: no OPEN may be missed
    bind_directory(version.directory, path_of(version.number));
    said_.erase(version.number);
  } catch (const std::exception& error) {
    if (options_.unbound) options_.unbound(version.number);
    warn(version.number, error.what());
    return;
  }
  refresh();
}

/// Returns: as unbind(); EBUSY also if another mount covers it.
int BoundVersions::end(std::uint64_t version) {
  const std::filesystem::path path = path_of(version);
  const std::vector<MountInfo> mounts = read_mounts();
  const auto topmost = topmost_mount(mounts, path);
  if (topmost && !bound_version(*topmost, mount_)) return EBUSY;
  const int error = topmost ? unbind(path) : ENOENT;
  if (error == EBUSY) return error;
  {
    const std::lock_guard lock(mutex_);
    bound_.erase(version);
  }
  if (options_.unbound) options_.unbound(version);
  return error;
}

/// If it cannot be told: it is.
bool BoundVersions::is_bound_from(const CatalogVersion& version) const {
  struct stat bound {
  }, image{};
  if (::stat(path_of(version.number).c_str(), &bound) != 0) return true;
  if (::stat(version.directory.c_str(), &image) != 0) return true;
  return bound.st_dev == image.st_dev && bound.st_ino == image.st_ino;
}

/// What is open stays so; new readers no longer find it.
void BoundVersions::leave_to_readers(std::uint64_t version) {
  const std::filesystem::path path = path_of(version);
  const auto topmost = topmost_mount(read_mounts(), path);
  if (!topmost || !bound_version(*topmost, mount_) || unbind_lazily(path) != 0) return;
  log_warning(
      fmt::format("version {} is gone while it is read: who has a file of it open keeps "
                  "what is in memory",
                  version));
  {
    const std::lock_guard lock(mutex_);
    bound_.erase(version);
  }
  if (options_.unbound) options_.unbound(version);
}

/// Reads from the kernel what is bound.  A mount that was unmounted lazily is still served, but its
/// path may lead to another mount by now.
void BoundVersions::refresh() {
  const std::vector<MountInfo> mounts = read_mounts();
  std::set<std::uint64_t> found;
  for (const BindMount& mount : find_bind_mounts(mounts, mount_)) {
    found.insert(mount.version);
  }
  const auto topmost = topmost_mount(mounts, mount_.path);
  const std::lock_guard lock(mutex_);
  bound_ = std::move(found);
  is_there_ = topmost && topmost->id == mount_.id;
}

void BoundVersions::warn(std::uint64_t version, const std::string& message) {
  std::string& said = said_[version];
  if (said == message) return;
  said = message;
  log_warning(
      fmt::format("version {} is not bound and is served by the daemon: {}", version, message));
}

std::filesystem::path BoundVersions::path_of(std::uint64_t version) const {
  return mount_.path / version_target(version);
}

// ---- called by others ----

void BoundVersions::bring(std::uint64_t version) noexcept {
  if (!has_started()) return;
  try {
    const std::unique_lock work(work_mutex_, kPatience);
    const auto catalog = catalog_();
    const auto found = catalog->versions.find(version);
    if (!work || found == catalog->versions.end()) return;
    refresh();
    if (may_bind(version)) bind(*found->second);
  } catch (const std::exception& error) {
    log_warning(fmt::format("cannot bind version {}: {}", version, error.what()));
  }
}

bool BoundVersions::keeps(std::uint64_t version) {
  return is_bound(version) && options_.is_read && options_.is_read(version);
}

bool BoundVersions::withdraw(std::uint64_t version) {
  if (!has_started()) return true;
  const std::unique_lock work(work_mutex_, kPatience);
  if (!work) return false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    withdrawn_.insert(version);
  }
  if (!is_bound(version) || end(version) != EBUSY) return true;
  restore(version);
  return false;
}

void BoundVersions::restore(std::uint64_t version) {
  {
    const std::lock_guard lock(mutex_);
    withdrawn_.erase(version);
  }
  notify();
}

bool BoundVersions::is_bound(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return bound_.contains(version);
}

std::vector<std::uint64_t> BoundVersions::list() const {
  const std::lock_guard lock(mutex_);
  return {bound_.begin(), bound_.end()};
}

}  // namespace weightfs::fs
