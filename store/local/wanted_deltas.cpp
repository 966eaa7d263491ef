#include "store/local/wanted_deltas.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace weightfs {
namespace {

constexpr std::size_t kMadeKept = 2;

}  // namespace

void WantedDeltas::set_engines(FindWanted find_wanted) {
  const std::lock_guard lock(mutex_);
  find_wanted_ = std::move(find_wanted);
}

/// Only what a pass would have made says that the next one is wanted.
void WantedDeltas::note_opened(const DeltaId& id) {
  const std::lock_guard lock(mutex_);
  const bool could_be_made =
      id.versions.is_step() || std::ranges::find(made_, id.versions) != made_.end();
  std::uint64_t& opened = opened_[id.with_old ? 1 : 0];
  if (could_be_made) opened = std::max(opened, id.versions.to);
}

void WantedDeltas::note_made(VersionPair span) {
  const std::lock_guard lock(mutex_);
  made_.push_back(span);
  if (made_.size() > kMadeKept) made_.pop_front();
}

std::vector<DeltaId> WantedDeltas::of(VersionPair span) const {
  FindWanted find_wanted;
  {
    const std::lock_guard lock(mutex_);
    find_wanted = find_wanted_;
  }
  const std::vector<DeltaId> of_engines =
      find_wanted ? find_wanted(span.to) : std::vector<DeltaId>();
  std::vector<DeltaId> wanted;
  for (const bool with_old : {false, true}) {
    const DeltaId id{span, with_old};
    const bool is_engines = std::ranges::find(of_engines, id) != of_engines.end();
    if (is_engines || is_wanted_by_readers(span, with_old)) wanted.push_back(id);
  }
  return wanted;
}

bool WantedDeltas::is_wanted_by_readers(VersionPair span, bool with_old) const {
  const std::lock_guard lock(mutex_);
  // The older of the two newest versions, as far as this process made them.
  std::uint64_t oldest = span.from;
  if (!made_.empty()) oldest = made_.size() == 1 ? made_.front().from : made_.front().to;
  const std::uint64_t opened = opened_[with_old ? 1 : 0];
  return opened != 0 && opened >= std::min(oldest, span.from);
}

void WantedDeltas::put_unfinished(std::unique_ptr<UnfinishedDelta> delta) {
  const std::lock_guard lock(mutex_);
  unfinished_.push_back(std::move(delta));
}

std::vector<std::unique_ptr<UnfinishedDelta>> WantedDeltas::take_unfinished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(unfinished_, {});
}

}  // namespace weightfs
