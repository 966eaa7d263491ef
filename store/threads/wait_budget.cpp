#include "store/threads/wait_budget.hpp"

namespace weightfs {
namespace {

constexpr int kShare = 4;  // refilled at a quarter of real time

}  // namespace

Clock::duration WaitBudget::balance(const Account& account, Clock::time_point now) const {
  return std::min(most_, account.has + (now - account.at) / kShare);
}

Clock::duration WaitBudget::take(uid_t user, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  // Users with a full budget need no record.
  std::erase_if(accounts_, [&](const auto& entry) {
    return entry.second.turns == 0 && balance(entry.second, now) == most_;
  });
  Account& account = accounts_.try_emplace(user, Account{most_, now, 0}).first->second;
  const Clock::duration taken = balance(account, now);
  account.has = Clock::duration::zero();
  account.at = now;
  account.turns++;
  return taken;
}

void WaitBudget::give_back(uid_t user, Clock::duration unused, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_.at(user);
  account.turns--;
  account.has = std::min(most_, balance(account, now) + unused);
  account.at = now;
}

std::size_t WaitBudget::user_count() const {
  const std::lock_guard lock(mutex_);
  return accounts_.size();
}

}  // namespace weightfs
