#include "store/sync/image_syncer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <utility>

#include "store/base/context.hpp"
#include "store/base/log.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/priority.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kHeldFilesMax = 256;            // of all versions
constexpr std::size_t kDescriptorShare = 32;          // of the process's limit: one in so many
constexpr std::chrono::seconds kUnrecordedPause{10};  // there was no room for a record

/// Readers need descriptors too.
std::size_t held_files_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<std::size_t>(kHeldFilesMax, limit.rlim_cur / kDescriptorShare);
}

/// At most `count`; those that cannot be opened are not held.
std::vector<File> hold_files(const std::filesystem::path& directory, std::size_t count) {
  std::vector<File> held;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    if (held.size() >= count) break;
    if (entry->is_directory(error)) continue;
    File file(::open(entry->path().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (file) held.push_back(std::move(file));
  }
  return held;
}

}  // namespace

ImageSyncer::ImageSyncer(Store& store, Listener listener)
    : store_(store), listener_(std::move(listener)), guarding_(store.eviction().add_guard(*this)) {}

ImageSyncer::~ImageSyncer() {
  guarding_.end();
  stop();
}

void ImageSyncer::start() {
  wake();
  if (thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void ImageSyncer::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void ImageSyncer::wake() {
  const std::vector<std::uint64_t> unsynced = store_.images().unsynced_versions();
  for (const std::uint64_t version : unsynced) {
    const std::uint64_t generation = store_.images().generation(version);
    if (is_known(version, generation)) continue;
    std::vector<File> held = hold_files(store_.images().image_directory(version), may_hold());
    if (is_known(version, generation)) continue;
    const std::lock_guard lock(mutex_);
    due_[version] = {generation, std::move(held)};
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(let_go_, [&](const auto& entry) {
    return !std::binary_search(unsynced.begin(), unsynced.end(), entry.first);
  });
}

std::size_t ImageSyncer::may_hold() {
  const std::lock_guard lock(mutex_);
  std::size_t held = 0;
  for (const auto& [version, due] : due_) held += due.held.size();
  return held_files_max() - std::min(held, held_files_max());
}

/// It is due already, or was let go.
bool ImageSyncer::is_known(std::uint64_t version, std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  const auto let_go = let_go_.find(version);
  if (let_go != let_go_.end() && let_go->second == generation) return true;
  const auto due = due_.find(version);
  return due != due_.end() && due->second.generation == generation;
}

void ImageSyncer::sync_all() {
  wake();
  for (;;) {
    std::unique_lock lock(mutex_);
    if (due_.empty()) return;
    const std::uint64_t version = std::prev(due_.end())->first;
    lock.unlock();
    if (!try_to_sync(version, {})) return;
  }
}

// ---- the thread ----

void ImageSyncer::run(const std::stop_token& stop) {
  take_lowest_priority();
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [this] { return !due_.empty(); });
    if (stop.stop_requested()) return;
    const std::uint64_t version = std::prev(due_.end())->first;
    lock.unlock();
    if (try_to_sync(version, stop)) continue;
    lock.lock();
    changed_.wait_for(lock, stop, kUnrecordedPause, [] { return false; });
  }
}

bool ImageSyncer::try_to_sync(std::uint64_t version, const std::stop_token& stop) noexcept {
  try {
    return sync(version, stop);
  } catch (const std::exception& error) {  // no memory to say what went wrong
    log_caught("syncing images", error);
    const std::lock_guard lock(mutex_);
    current_ = 0;
    changed_.notify_all();
    return false;
  }
}

/// Returns: false if it must be tried again later.
bool ImageSyncer::sync(std::uint64_t version, const std::stop_token& stop) {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = due_.find(version);
    if (found == due_.end()) return true;
    generation = found->second.generation;
    current_ = version;
  }
  const auto is_stopped = [&] {
    if (stop.stop_requested()) return true;
    const std::lock_guard lock(mutex_);
    return !due_.contains(version);
  };
  try {
    const SyncedImages result = sync_images(store_.images(), version, is_stopped);
    if (result == SyncedImages::synced && listener_.synced) listener_.synced(version);
    end(version, generation, result != SyncedImages::unrecorded);
    return result != SyncedImages::unrecorded;
  } catch (const Error& error) {
    end(version, generation, true);
    lose(version, generation, error, stop);
  } catch (const std::exception& error) {  // no memory, mostly: the disk has said nothing
    log_warning(fmt::format("version {} is not synced yet: {}", version, error.what()));
    end(version, generation, false);
    return false;
  }
  return true;
}

/// What has come to the version meanwhile stays due.
void ImageSyncer::end(std::uint64_t version, std::uint64_t generation, bool is_done) {
  const std::lock_guard lock(mutex_);
  const auto due = due_.find(version);
  if (is_done && due != due_.end() && due->second.generation == generation) due_.erase(due);
  current_ = 0;
  changed_.notify_all();
}

/// Who makes a version holds the lock of the images, and may be making just this one again; it
/// removes what is here itself then.
void ImageSyncer::lose(std::uint64_t version, std::uint64_t generation, const Error& error,
                       const std::stop_token& stop) {
  if (!store_.images().forget_images(version, generation)) return wake();  // made anew meanwhile
  try {
    if (listener_.lost) listener_.lost(version, error);
    log_error(
        fmt::format("version {} is lost and hidden: {}; it is rebuilt", version, error.what()));
  } catch (const std::exception& untold) {  // no memory: the next round shows the catalog
    log_caught("telling that a version is lost", untold);
  }
  try {
    const ImagesLock removes = store_.images().lock_images(Context{stop, Clock::time_point::max()});
  } catch (const Error&) {
    // Stopped: files without a record are removed when the store is opened.
  }
  if (listener_.removed) listener_.removed();
}

// ---- for the eviction ----

bool ImageSyncer::withdraw(std::uint64_t version) {
  const std::uint64_t generation = store_.images().generation(version);
  std::unique_lock lock(mutex_);
  let_go_[version] = generation;
  due_.erase(version);
  changed_.wait(lock, [&] { return current_ != version; });
  return true;
}

void ImageSyncer::restore(std::uint64_t version) {
  {
    const std::lock_guard lock(mutex_);
    let_go_.erase(version);
  }
  wake();
}

}  // namespace weightfs
