#include "fs/cache/warmer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fs/base/errno.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"
#include "store/os/priority.hpp"

namespace weightfs::fs {
namespace {

using Warming = CacheState::Warming;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kMeasuredFor{1};
constexpr int kMeasuringShare = 20;  // measuring takes at most 1/20 of the time
constexpr std::chrono::hours kLookMax{1};
constexpr std::uint64_t kAheadBytes = 4u << 20;      // one read: bounds the time to stop
constexpr std::uint64_t kAskRoomBytes = 256u << 20;  // read before memory is checked again

}  // namespace

WarmTarget warm_target(const CatalogVersion& version) {
  WarmTarget target{version.number, {}};
  for (const CatalogEntry& entry : version.entries) {
    if (entry.is_directory || entry.size_bytes == 0 || entry.image != ImageState::complete)
      continue;
    target.files.push_back({version.directory / entry.path, entry.size_bytes});
  }
  return target;
}

WarmTarget warm_target(const Catalog& catalog) {
  const auto found = catalog.versions.find(catalog.latest);
  return found == catalog.versions.end() ? WarmTarget{} : warm_target(*found->second);
}

std::string_view to_string(CacheState::Warming warming) noexcept {
  switch (warming) {
    case Warming::idle:
      return "idle";
    case Warming::reading:
      return "reading";
    case Warming::no_room:
      return "no_room";
    case Warming::failed:
      return "failed";
    case Warming::off:
      return "off";
  }
  return "failed";
}

Warmer::Warmer(WarmerOptions options) : options_(std::move(options)) {}

Warmer::Run::Run(Warmer& warmer, std::function<WarmTarget()> find_shown, bool reads)
    : warmer_(warmer) {
  {
    const std::lock_guard lock(warmer.mutex_);
    warmer.find_shown_ = std::move(find_shown);
    warmer.is_running_ = reads;
  }
  if (!reads) return;
  thread_ = std::jthread([&warmer](const std::stop_token& stop) { warmer.run(stop); });
}

Warmer::Run::~Run() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  const std::lock_guard lock(warmer_.mutex_);
  warmer_.find_shown_ = nullptr;
  warmer_.is_running_ = false;
}

// ---- the thread ----

void Warmer::run(const std::stop_token& stop) {
  take_lowest_priority();
  Rhythm rhythm{options_.look};
  while (!stop.stop_requested()) {
    {
      const std::lock_guard lock(mutex_);
      seen_notices_ = notices_;
    }
    try {
      look(rhythm, stop);
    } catch (const std::exception& error) {  // no memory: it looks again after a pause
      log_failure("page cache", error);
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, rhythm.pause, [this] { return notices_ != seen_notices_; });
  }
}

void Warmer::look(Rhythm& rhythm, const std::stop_token& stop) {
  const WarmTarget target = find_target();
  const bool is_new = target.version != rhythm.last;
  if (target.version == 0 || (!is_new && Clock::now() < rhythm.due)) return;
  if (is_new) rhythm.pause = options_.look;
  const bool was_cold = warm(target, stop);
  if (!is_new && was_cold) rhythm.pause = std::min<milliseconds>(rhythm.pause * 2, kLookMax);
  rhythm.last = target.version;
  rhythm.due = Clock::now() + rhythm.pause;
}

/// The version about to be shown takes precedence over the one that is shown.
WarmTarget Warmer::find_target() const {
  std::unique_lock lock(mutex_);
  const WarmTarget ahead = ahead_;
  const auto find_shown = find_shown_;
  lock.unlock();
  WarmTarget shown = find_shown();
  return ahead.version > shown.version ? ahead : shown;
}

/// Returns: whether there was something to read.
bool Warmer::warm(const WarmTarget& target, const std::stop_token& stop) {
  if (options_.warm == Warm::off) {
    settle(target, Warming::off);
    return false;
  }
  try {
    const Residency before = residency_of(target.files);
    if (before.is_whole()) {
      settle(target, Warming::idle);
      return false;
    }
    settle(target, Warming::reading);
    settle(target, read(target, before, stop));
  } catch (const std::exception& error) {
    if (logged_ != error.what()) log_warning(fmt::format("page cache: {}", error.what()));
    logged_ = error.what();
    settle(target, Warming::failed, error.what());
  }
  return true;
}

/// Also reads what is cached, which costs little: it may still be on its way from the disk.
Warming Warmer::read(const WarmTarget& target, const Residency& before,
                     const std::stop_token& stop) {
  const Clock::time_point began = Clock::now();
  std::uint64_t read_bytes = 0;
  std::uint64_t ask_room_at = 0;
  for (const CachedFile& one : target.files) {
    const File file = File::open(one.path, O_RDONLY | O_NOFOLLOW);
    for (std::uint64_t at = 0; at < one.size_bytes; at += kAheadBytes) {
      if (!is_wanted(target, stop)) return Warming::idle;
      const std::uint64_t part = std::min(one.size_bytes - at, kAheadBytes);
      if (read_bytes >= ask_room_at) {
        if (!has_room(target, before.size_bytes)) return Warming::no_room;
        ask_room_at += kAskRoomBytes;
      }
      read_ahead(file.fd(), one.path, at, part);
      read_bytes += part;
    }
  }
  const std::chrono::duration<double> took = Clock::now() - began;
  log_info(fmt::format("version {}: read {} of {} into the page cache in {:.1f} s", target.version,
                       human_bytes(before.size_bytes - before.cached_bytes),
                       human_bytes(before.size_bytes), took.count()));
  return Warming::idle;
}

/// Logged once for each version, since the numbers change at every check.
bool Warmer::has_room(const WarmTarget& target, std::uint64_t size_bytes) {
  const auto room = options_.find_room();
  if (room && size_bytes <= room->bytes) return true;
  const std::string key = fmt::format("no room for version {}", target.version);
  if (room && logged_ != key) log_warning(no_room_text(target.version, size_bytes, *room));
  logged_ = key;
  return false;
}

/// If a notice does not change the target, reading goes on; otherwise run() takes the new target.
bool Warmer::is_wanted(const WarmTarget& target, const std::stop_token& stop) {
  if (stop.stop_requested()) return false;
  std::uint64_t notices = 0;
  {
    const std::lock_guard lock(mutex_);
    if (notices_ == seen_notices_) return true;
    notices = notices_;
  }
  if (find_target().version != target.version) return false;
  const std::lock_guard lock(mutex_);
  seen_notices_ = notices;
  return true;
}

void Warmer::settle(const WarmTarget& target, Warming warming, std::string error) {
  {
    const std::lock_guard lock(mutex_);
    settled_ = target.version;
    warming_ = warming;
    error_ = std::move(error);
    measured_until_ = {};
  }
  changed_.notify_all();
}

// ---- any thread ----

void Warmer::notify() {
  {
    const std::lock_guard lock(mutex_);
    notices_++;
  }
  changed_.notify_all();
}

/// Checks the page cache itself first: a fresh version is in it already, and must not wait for a
/// thread of low priority.
void Warmer::prepare(WarmTarget target, milliseconds limit) {
  if (options_.warm == Warm::off || residency_of(target.files).is_whole()) return;
  std::unique_lock lock(mutex_);
  if (!is_running_) return;
  const std::uint64_t version = target.version;
  ahead_ = std::move(target);
  notices_++;
  settled_ = 0;
  changed_.notify_all();
  changed_.wait_for(lock, limit,
                    [&] { return settled_ == version && warming_ != Warming::reading; });
}

CacheState Warmer::state() const {
  std::unique_lock lock(mutex_);
  const auto find_shown = find_shown_;
  const auto with_warming = [this](CacheState state) {
    if (options_.warm == Warm::off) {
      state.warming = Warming::off;
    } else if (settled_ == state.version) {
      state.warming = warming_;
      state.error = error_;
    }
    return state;
  };
  if (!find_shown) return with_warming({});
  lock.unlock();
  const WarmTarget shown = find_shown();
  lock.lock();
  const bool is_known = measured_.version == shown.version;
  if (is_known && Clock::now() < measured_until_) return with_warming(measured_);
  lock.unlock();
  const Clock::time_point began = Clock::now();
  CacheState now;
  now.version = shown.version;
  if (shown.version != 0) now.residency = residency_of(shown.files);
  now.room = options_.find_room();
  lock.lock();
  measured_ = now;
  const Clock::time_point ended = Clock::now();
  measured_until_ =
      ended + std::max<Clock::duration>(kMeasuredFor, kMeasuringShare * (ended - began));
  return with_warming(now);
}

}  // namespace weightfs::fs
