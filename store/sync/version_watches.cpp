#include "store/sync/version_watches.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace weightfs {
namespace {

/// Forgets the lowest versions.
template <typename Table>
void trim(Table& table) {
  while (table.size() > VersionWatches::kWatchesMax) table.erase(table.begin());
}

}  // namespace

void VersionWatches::note_poll(Clock::time_point begin, std::uint64_t newest) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (newest > newest_) {
    std::optional<Clock::duration> unseen;
    if (last_poll_) unseen = now - *last_poll_;
    seen_.insert_or_assign(newest, Seen{now, unseen});
    trim(seen_);
    newest_ = newest;
  }
  last_poll_ = begin;
}

VersionWatch VersionWatches::watch(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = seen_.lower_bound(version);
  if (found == seen_.end()) return VersionWatch(version);
  VersionWatch watch(version, found->second.time);
  watch.timing.unseen = found->second.unseen;
  return watch;
}

void VersionWatches::note_latest(std::uint64_t latest, std::int64_t newest_time) {
  const std::lock_guard lock(mutex_);
  if (behind_ && behind_->first == latest) return;
  const auto before = std::exchange(behind_, std::nullopt);
  auto behind = find_seen_after(latest);
  if (!behind) return;
  const bool is_known = before && before->second.since == behind->since;
  if (is_known) behind->published = before->second.published;
  if (!is_known && !behind->is_exact) behind->published = newest_time;
  behind_.emplace(latest, *behind);
}

std::optional<VersionWatches::Behind> VersionWatches::find_behind(std::uint64_t latest) const {
  const std::lock_guard lock(mutex_);
  if (behind_ && behind_->first == latest) return behind_->second;
  return find_seen_after(latest);
}

/// Requires: the mutex is held.
std::optional<VersionWatches::Behind> VersionWatches::find_seen_after(std::uint64_t latest) const {
  const auto found = seen_.upper_bound(latest);
  if (found == seen_.end()) return std::nullopt;
  return Behind{.since = found->second.time, .is_exact = found->second.unseen.has_value()};
}

void VersionWatches::note_shown(VersionWatch& watch) {
  if (watch.timing.has_origin()) record(watch);
}

void VersionWatches::note_streamed(VersionWatch& watch) {
  if (!watch.timing.has_origin()) return;
  watch.timing.is_streamed = true;
  {
    const std::lock_guard lock(mutex_);
    streamed_.insert_or_assign(watch.timing.version, watch);
    trim(streamed_);
  }
  note_filled();  // it may have been complete before it was in the table
}

void VersionWatches::note_filled() {
  std::vector<VersionWatch> filled;
  {
    const std::vector<std::uint64_t> complete = store_.images().complete_versions();
    const std::lock_guard lock(mutex_);
    for (auto entry = streamed_.begin(); entry != streamed_.end();) {
      const bool is_filled = std::binary_search(complete.begin(), complete.end(), entry->first);
      if (is_filled) filled.push_back(entry->second);
      entry = is_filled ? streamed_.erase(entry) : std::next(entry);
    }
  }
  for (VersionWatch& watch : filled) {
    watch.lap(&VersionTiming::build);
    record(watch);
  }
}

void VersionWatches::record(VersionWatch& watch) {
  const std::uint64_t version = watch.timing.version;
  watch.timing.work = watch.meter->read();
  store_.timings().put(watch.timing);
  {
    const std::lock_guard lock(mutex_);
    unsynced_.insert_or_assign(version, watch.lap_began());
    trim(unsynced_);
  }
  const std::vector<std::uint64_t> unsynced = store_.images().unsynced_versions();
  const bool is_unsynced = std::binary_search(unsynced.begin(), unsynced.end(), version);
  // Then nobody else will say so.
  if (!is_unsynced && store_.images().is_complete(version)) note_synced(version);
}

void VersionWatches::note_synced(std::uint64_t version) {
  Clock::duration sync{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = unsynced_.find(version);
    if (found == unsynced_.end()) return;
    sync = Clock::now() - found->second;
    unsynced_.erase(found);
  }
  store_.timings().set_synced(version, sync);
}

}  // namespace weightfs
