#include "fs/passes/latest_lookups.hpp"

#include <algorithm>

namespace weightfs::fs {

/// Requires: mutex_ is held.
void LatestLookups::add(pid_t thread, const Entry& entry) {
  if (thread != 0) lookups_.erase(thread);
  if (lookups_.size() >= kLookupsMax) {
    std::erase_if(lookups_,
                  [&](const auto& item) { return entry.at - item.second.at > kWalkTime; });
  }
  if (lookups_.size() >= kLookupsMax) {
    lookups_.erase(
        std::min_element(lookups_.begin(), lookups_.end(),
                         [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  lookups_.emplace(thread, entry);
}

void LatestLookups::told(pid_t thread, const Walk& walk, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  add(thread, {.walk = walk, .at = now});
}

void LatestLookups::named(std::uint64_t version, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(told_, [now](const auto& item) { return now - item.second > kToldTime; });
  told_[version] = now;
}

std::optional<Walk> LatestLookups::opened(pid_t thread, std::uint64_t version,
                                          Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = lookups_.equal_range(thread);
  const auto found = std::find_if(first, last, [&](const auto& item) {
    const Entry& entry = item.second;
    return !entry.is_refused && !entry.walk.is_look && entry.walk.version == version &&
           now - entry.at <= kWalkTime;
  });
  std::optional<Walk> walk;
  if (found != last) walk = found->second.walk;
  if (thread != 0) {
    lookups_.erase(first, last);
  } else if (walk) {
    lookups_.erase(found);
  }
  return walk;
}

void LatestLookups::refused(pid_t thread, const std::string& link, std::uint64_t version,
                            Clock::time_point now) {
  if (thread == 0) return;  // the next READLINK cannot be attributed
  const std::lock_guard lock(mutex_);
  add(thread, {.walk = {.link = link, .version = version, .is_retry = true},
               .at = now,
               .is_refused = true});
}

std::optional<Walk> LatestLookups::find_before(pid_t thread, const std::string& link,
                                               Clock::time_point now) const {
  if (thread == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto found = lookups_.find(thread);
  if (found == lookups_.end()) return {};
  const Entry& entry = found->second;
  if (entry.walk.link != link || now - entry.at > kWalkTime) return {};
  if (!entry.is_refused && !entry.walk.is_look) return {};
  return entry.walk;
}

bool LatestLookups::was_told(std::uint64_t version, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = told_.find(version);
  return found != told_.end() && now - found->second <= kToldTime;
}

std::size_t LatestLookups::size() const {
  const std::lock_guard lock(mutex_);
  return lookups_.size();
}

}  // namespace weightfs::fs
