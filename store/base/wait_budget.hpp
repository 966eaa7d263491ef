// Wait budget: how long the calls of one user may wait, so that nobody can keep others waiting.
//
// The kernel holds locks of the whole mount for as long as a rename into publish/ is not answered:
// whoever renames directories that are still written to, many at a time, would stop everybody's
// renames for the sum of their waits.  So each user has so much waiting; a quarter of the time that
// passes is added, up to that.  Of calls at the same time the first has all there is.
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
  /// `most`: that a user can have.
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

  /// Takes what the user has.  Returns: how much that is.
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
  // Guards the next; held for moments.
  mutable RankedMutex mutex_{LockRank::leaf, "WaitBudget::mutex_"};
  std::map<uid_t, Account> accounts_;
};

}  // namespace weightfs
