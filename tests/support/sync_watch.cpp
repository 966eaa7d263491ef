#include "tests/support/sync_watch.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <utility>

#include "store/os/file.hpp"

namespace weightfs::test {
namespace {

std::mutex mutex;  // held while the one that lives is called: threads of RocksDB sync at any time
std::condition_variable changed;  // what is held
SyncWatch* living = nullptr;

std::string path_of(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
}

void wait_if_held(int fd) {
  std::unique_lock lock(mutex);
  if (living == nullptr) return;
  const std::string path = path_of(fd);
  changed.wait(lock, [&] { return living == nullptr || !living->holds(path); });
}

/// Whether it is to fail: then errno says with what.
bool is_to_fail(int fd, bool is_whole) {
  wait_if_held(fd);
  const std::lock_guard lock(mutex);
  const int error = living == nullptr ? 0 : living->note(fd, is_whole);
  if (error != 0) errno = error;
  return error != 0;
}

}  // namespace

SyncWatch::SyncWatch(std::string failing, int error) : failing_(std::move(failing)), error_(error) {
  const std::lock_guard lock(mutex);
  living = this;
}

SyncWatch::~SyncWatch() {
  const std::lock_guard lock(mutex);
  living = nullptr;
  changed.notify_all();
}

void SyncWatch::hold(std::string in_path) {
  const std::lock_guard lock(mutex);
  held_ = std::move(in_path);
  is_reached_ = false;
}

void SyncWatch::release() {
  const std::lock_guard lock(mutex);
  held_.clear();
  changed.notify_all();
}

bool SyncWatch::is_reached() {
  constexpr std::chrono::seconds kLimit{60};
  std::unique_lock lock(mutex);
  return changed.wait_for(lock, kLimit, [&] { return is_reached_; });
}

bool SyncWatch::holds(const std::string& path) {
  if (held_.empty() || path.find(held_) == std::string::npos) return false;
  if (!is_reached_) changed.notify_all();
  is_reached_ = true;
  return true;
}

bool SyncWatch::has_seen(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return seen_.contains(path);
}

int SyncWatch::note(int fd, bool is_whole) {
  const std::string path = path_of(fd);
  const std::lock_guard lock(mutex_);
  if (is_whole) seen_.insert(path);
  const bool fails = !failing_.empty() && path.find(failing_) != std::string::npos;
  const bool is_first = fails && told_.insert(path).second;
  return is_first || (fails && !is_lost_write(error_)) ? error_ : 0;
}

}  // namespace weightfs::test

/// The C library's, for this whole program.
extern "C" int fsync(int fd) {
  if (!weightfs::test::is_to_fail(fd, true)) return static_cast<int>(::syscall(SYS_fsync, fd));
  return -1;
}

extern "C" int fdatasync(int fd) {
  if (!weightfs::test::is_to_fail(fd, true)) return static_cast<int>(::syscall(SYS_fdatasync, fd));
  return -1;
}

extern "C" int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
  constexpr unsigned kWaits = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
  if ((flags & kWaits) == 0 || !weightfs::test::is_to_fail(fd, false))
    return static_cast<int>(::syscall(SYS_sync_file_range, fd, offset, size, flags));
  return -1;
}
