#include "store/sync/room_ahead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/log.hpp"

namespace weightfs {
namespace {

using std::chrono::seconds;

constexpr seconds kFirstPause{1};  // while what is to go is in use
constexpr seconds kLongestPause{60};

}  // namespace

RoomAhead::~RoomAhead() { stop(); }

void RoomAhead::start() {
  if (thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void RoomAhead::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void RoomAhead::note_shown(std::uint64_t version) {
  {
    const std::lock_guard lock(mutex_);
    shown_ = version;
  }
  wake();
}

void RoomAhead::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  changed_.notify_all();
}

void RoomAhead::note_coming() {
  const std::lock_guard lock(mutex_);
  shown_ = 0;
}

RoomAheadStatus RoomAhead::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void RoomAhead::run(const std::stop_token& stop) {
  bool waits_for_use = false;
  seconds pause = kFirstPause;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto woken = [this] { return is_woken_; };
      if (!waits_for_use) changed_.wait(lock, stop, woken);
      if (waits_for_use) changed_.wait_for(lock, stop, pause, woken);
      if (stop.stop_requested()) return;
      pause = is_woken_ ? kFirstPause : std::min(2 * pause, kLongestPause);
      is_woken_ = false;
    }
    try {
      waits_for_use = make_if_due() == Outcome::in_use;
      logged_.clear();
    } catch (const std::exception& error) {
      // The next version makes its own room, and says what is wrong.
      waits_for_use = false;
      if (logged_ == error.what()) continue;
      logged_ = error.what();
      log_warning(fmt::format("no room is made ahead for the next version: {}", logged_));
    }
  }
}

RoomAhead::Outcome RoomAhead::make_if_due() {
  std::uint64_t shown = 0;
  {
    const std::lock_guard lock(mutex_);
    shown = shown_;
  }
  const std::vector<std::uint64_t> unsynced = store_.images().unsynced_versions();
  if (shown == 0 || std::binary_search(unsynced.begin(), unsynced.end(), shown))
    return Outcome::not_due;
  const Clock::time_point began = Clock::now();
  const Evictor::Ahead made = store_.evictor().evict_ahead(shown);

  const std::lock_guard lock(mutex_);
  if (made.versions > 0) {
    status_ = {status_.versions + made.versions, made.last, Clock::now() - began};
  }
  if (made.is_in_use) return Outcome::in_use;
  if (shown_ == shown) shown_ = 0;
  return Outcome::done;
}

}  // namespace weightfs
