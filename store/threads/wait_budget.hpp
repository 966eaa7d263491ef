// Wait budget: limits how long the calls of one user may wait, so that one user cannot block
// others.
//
// The kernel holds locks of the whole mount until a rename into publish/ is answered. A user who
// renames many directories that are still being written would therefore block everybody's renames
// for the sum of the waits.  So each user has a budget of waiting time, refilled at a quarter of
// real time.  Of simultaneous calls the first gets all that is left.
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class WaitBudget {
 public:
  /// `most`: the full budget of a user.
  explicit WaitBudget(Clock::duration most) : most_(most) {}

  /// One wait of a user: from begin() to its end.
  class Turn {
   public:
    Turn(WaitBudget& budget, uid_t user) : budget_(budget), user_(user) {
      left_ = budget.take(user, begin_);
    }
    ~Turn() {
      const Clock::time_point now = Clock::now();
      budget_.give_back(user_, std::max(left_ - (now - begin_), Clock::duration::zero()), now);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// It may wait until then.
    [[nodiscard]] Clock::time_point until() const noexcept { return begin_ + left_; }

   private:
    WaitBudget& budget_;
    const uid_t user_;
    const Clock::time_point begin_ = Clock::now();
    Clock::duration left_{};
  };

  // ---- for Turn, and for tests with a clock of their own ----

  /// Takes all that the user has left.  Returns: how much that is.
  Clock::duration take(uid_t user, Clock::time_point now);
  void give_back(uid_t user, Clock::duration unused, Clock::time_point now);

  [[nodiscard]] std::size_t user_count() const;  // that are remembered

 private:
  struct Account {
    Clock::duration has{};
    Clock::time_point at{};  // of `has`
    unsigned turns = 0;      // that have taken and not given back
  };
  [[nodiscard]] Clock::duration balance(const Account& account, Clock::time_point now) const;

  const Clock::duration most_;
  // Guards the next member; held only briefly.
  mutable RankedMutex mutex_{LockRank::leaf, "WaitBudget::mutex_"};
  std::map<uid_t, Account> accounts_;
};

}  // namespace weightfs
