// RoomAhead: makes room for the next version before it comes, in a thread of its own.
//
//     note_shown(N)      wake(): N is on the disk      note_coming(): N+1 makes its own room
//     ----------------------|----------------------------|---------------------------------->
//                           evict_ahead(N) .. again while what is to go is in use
//
// To free the pages and blocks of a large file takes as long as to write a good part of one.  After
// the flip nobody waits for that; and what was freed is used again by the next version.
//
// Before the version is on the disk nothing goes: after a power cut an older one may be all there
// is.  What Evictor::evict_ahead() leaves here because it is in use is asked for again, with
// growing pauses.  The thread has the priority of the others: whoever needs room meanwhile waits
// for it.
//
// Threads: all calls may run in parallel, make_if_due() one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/evictor.hpp"
#include "store/local/store.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

/// Makes the room that the version after `version` needs (Evictor::evict_ahead()), if that is on
/// the disk; nullopt: it is not yet.
/// `there_bytes`: of the next one, that lie on the disk already and are counted nowhere.
/// Throws Error: io, corrupt.
std::optional<Evictor::Ahead> make_room_ahead(Store& store, std::uint64_t version,
                                              std::uint64_t there_bytes = 0);

/// What was done by the thread.
struct RoomAheadStatus {
  std::uint64_t versions = 0;            // that went ahead
  std::uint64_t last = 0;                // of them; 0: none did
  std::chrono::nanoseconds last_took{};  // when that went
};

class RoomAhead {
 public:
  /// Keeps the reference.  Requires: images are on the disk only.
  explicit RoomAhead(Store& store);

  void start() { thread_.start(); }
  /// Waits while a version is being removed.
  void stop() { thread_.stop(); }

  /// `latest` has moved to a version that was made here.
  void note_shown(std::uint64_t version);
  /// A version may be on the disk.  Quick.
  void wake() { thread_.wake(); }
  /// The next version is being brought.
  void note_coming();

  enum class Outcome { not_due, done, in_use };
  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Throws Error: io, corrupt.
  Outcome make_if_due();

  [[nodiscard]] RoomAheadStatus status() const;

 private:
  Clock::duration make_or_wait(bool is_woken);

  Store& store_;
  mutable RankedMutex mutex_{LockRank::leaf, "RoomAhead::mutex_"};  // guards the next two
  std::uint64_t shown_ = 0;  // for whose successor there is no room yet; 0: none
  RoomAheadStatus status_;
  std::chrono::seconds pause_{};  // while what is to go is in use; used by the thread only
  WokenThread thread_;
};

}  // namespace weightfs
