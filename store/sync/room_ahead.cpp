#include "store/sync/room_ahead.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "store/base/context.hpp"

namespace weightfs {
namespace {

using std::chrono::seconds;

constexpr seconds kFirstPause{1};  // while what is to go is in use
constexpr seconds kLongestPause{60};

}  // namespace

std::optional<Evictor::Ahead> make_room_ahead(Store& store, std::uint64_t version,
                                              std::uint64_t there_bytes) {
  const std::vector<std::uint64_t> unsynced = store.images().unsynced_versions();
  if (std::binary_search(unsynced.begin(), unsynced.end(), version)) return std::nullopt;
  return store.evictor().evict_ahead(version, there_bytes);
}

RoomAhead::RoomAhead(Store& store)
    : store_(store),
      thread_({"no room is made ahead for the next version: {}"},
              [this](const Context&, bool is_woken) { return make_or_wait(is_woken); }) {}

void RoomAhead::note_shown(std::uint64_t version) {
  {
    const std::lock_guard lock(mutex_);
    shown_ = version;
  }
  wake();
}

void RoomAhead::note_coming() {
  const std::lock_guard lock(mutex_);
  shown_ = 0;
}

RoomAheadStatus RoomAhead::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

/// What fails is not tried again: the next version makes its own room, and says what is wrong.
Clock::duration RoomAhead::make_or_wait(bool is_woken) {
  pause_ = is_woken ? kFirstPause : std::min(2 * pause_, kLongestPause);
  return make_if_due() == Outcome::in_use ? pause_ : WokenThread::kUntilWoken;
}

RoomAhead::Outcome RoomAhead::make_if_due() {
  std::uint64_t shown = 0;
  {
    const std::lock_guard lock(mutex_);
    shown = shown_;
  }
  if (shown == 0) return Outcome::not_due;
  const Clock::time_point began = Clock::now();
  const std::optional<Evictor::Ahead> made = make_room_ahead(store_, shown);
  if (!made) return Outcome::not_due;

  const std::lock_guard lock(mutex_);
  if (made->versions > 0) {
    status_ = {status_.versions + made->versions, made->last, Clock::now() - began};
  }
  if (made->is_in_use) return Outcome::in_use;
  if (shown_ == shown) shown_ = 0;
  return Outcome::done;
}

}  // namespace weightfs
