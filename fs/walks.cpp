#include "fs/walks.hpp"

#include <algorithm>

namespace weightfs::fs {

void Walks::make_room(Clock::time_point now) {
  if (walks_.size() < kWalksMax) return;
  std::erase_if(walks_, [now](const auto& item) { return now - item.second.at > kWalkTime; });
  if (walks_.size() < kWalksMax) return;
  walks_.erase(std::min_element(walks_.begin(), walks_.end(), [](const auto& a, const auto& b) {
    return a.second.at < b.second.at;
  }));
}

void Walks::told(pid_t thread, std::uint64_t version, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (thread != 0) walks_.erase(thread);
  make_room(now);
  walks_.emplace(thread, Walk{version, now});
  std::erase_if(told_, [now](const auto& item) { return now - item.second > kToldTime; });
  told_[version] = now;
}

bool Walks::opened(pid_t thread, std::uint64_t version, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = walks_.equal_range(thread);
  const auto walk = std::find_if(first, last, [&](const auto& item) {
    return item.second.version == version && now - item.second.at <= kWalkTime;
  });
  const bool is_walk = walk != last;
  if (thread != 0) {
    walks_.erase(first, last);
  } else if (is_walk) {
    walks_.erase(walk);
  }
  return is_walk;
}

bool Walks::was_told(std::uint64_t version, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = told_.find(version);
  return found != told_.end() && now - found->second <= kToldTime;
}

std::size_t Walks::size() const {
  const std::lock_guard lock(mutex_);
  return walks_.size();
}

}  // namespace weightfs::fs
