#include "store/local/eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "store/os/lease.hpp"

namespace weightfs {
namespace {

constexpr auto kWaitAgain = std::chrono::hours(1);  // the deadline may be infinite

}  // namespace

// ---- reservations ----

void Eviction::Reservation::give_up() noexcept {
  if (Eviction* const eviction = std::exchange(eviction_, nullptr)) {
    eviction->give_up(version_, claim_);
  }
}

Eviction::Reservation Eviction::reserve(std::uint64_t version, Claim claim,
                                        const Context& context) {
  std::unique_lock lock(mutex_);
  while (!settled_.wait_until(lock, context.stop,
                              std::min(context.deadline, Clock::now() + kWaitAgain),
                              [&] { return state_of(version) != State::going; })) {
    context.check(fmt::format("waiting for the images of version {} to be removed", version));
  }
  return add(version, claim);
}

std::optional<Eviction::Reservation> Eviction::try_reserve(std::uint64_t version, Claim claim) {
  const std::lock_guard lock(mutex_);
  if (state_of(version) == State::going) return std::nullopt;
  return add(version, claim);
}

Eviction::Reservation Eviction::add(std::uint64_t version, Claim claim) {
  Entry& entry = entries_[version];
  (claim == Claim::stays ? entry.stays : entry.in_use)++;
  entry.was_reserved = true;
  return {*this, version, claim};
}

void Eviction::give_up(std::uint64_t version, Claim claim) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(version);
  (claim == Claim::stays ? found->second.stays : found->second.in_use)--;
  forget_if_idle(version);
}

void Eviction::forget_if_idle(std::uint64_t version) noexcept {
  const auto found = entries_.find(version);
  if (found == entries_.end()) return;
  if (found->second.state == State::shown && !found->second.is_reserved()) entries_.erase(found);
}

void Eviction::wait_settled(std::uint64_t version, const Context& context) {
  std::unique_lock lock(mutex_);
  while (!settled_.wait_until(lock, context.stop,
                              std::min(context.deadline, Clock::now() + kWaitAgain),
                              [&] { return state_of(version) == State::shown; })) {
    context.check(fmt::format("waiting for the eviction of version {} to be decided", version));
  }
}

// ---- states ----

Eviction::State Eviction::state_of(std::uint64_t version) const {
  const auto found = entries_.find(version);
  return found == entries_.end() ? State::shown : found->second.state;
}

bool Eviction::is_hidden(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return state_of(version) != State::shown;
}

bool Eviction::stays(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(version);
  return found != entries_.end() && found->second.stays > 0;
}

std::optional<Eviction::Departure> Eviction::leave(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[version];
  if (entry.is_reserved() || entry.state != State::shown) return std::nullopt;
  entry.state = State::leaving;
  entry.was_reserved = false;
  return Departure(*this, version);
}

bool Eviction::Departure::settle(bool is_unused) {
  {
    const std::lock_guard lock(eviction_->mutex_);
    Entry& entry = eviction_->entries_[version_];
    if (is_unused && !entry.was_reserved) {
      entry.state = State::going;
      return true;
    }
  }
  std::exchange(eviction_, nullptr)->show(version_);
  return false;
}

Eviction::Departure::~Departure() {
  if (eviction_ != nullptr) eviction_->show(version_);
}

void Eviction::show(std::uint64_t version) noexcept {
  const std::lock_guard lock(mutex_);
  entries_[version].state = State::shown;
  forget_if_idle(version);
  settled_.notify_all();
}

// ---- evict ----

Eviction::Guarding Eviction::add_guard(VersionGuard& guard) {
  const std::lock_guard one(evict_mutex_);
  guards_.push_back(&guard);
  return {*this, guard};
}

void Eviction::Guarding::end() noexcept {
  Eviction* const eviction = std::exchange(eviction_, nullptr);
  if (eviction == nullptr) return;
  const std::lock_guard one(eviction->evict_mutex_);
  std::erase(eviction->guards_, guard_);
}

void Eviction::set_changed(std::function<void()> changed) {
  const std::lock_guard one(evict_mutex_);
  changed_ = std::move(changed);
}

void Eviction::tell_changed() {
  const std::lock_guard one(evict_mutex_);
  if (changed_) changed_();
}

bool Eviction::is_kept(std::uint64_t version) const {
  return std::ranges::any_of(guards_, [&](VersionGuard* guard) { return guard->keeps(version); });
}

bool Eviction::withdraw(std::uint64_t version) const {
  auto guard = guards_.begin();
  const auto restore_before = [&] {
    while (guard != guards_.begin()) (*--guard)->restore(version);
  };
  try {
    while (guard != guards_.end() && (*guard)->withdraw(version)) ++guard;
  } catch (...) {
    ++guard;  // that one may have closed some of its ways
    restore_before();
    throw;
  }
  if (guard == guards_.end()) return true;
  restore_before();
  return false;
}

bool Eviction::is_unused(std::uint64_t version, const Files& files) const {
  const auto releases = [&](VersionGuard* guard) { return guard->release(version); };
  return !is_kept(version) && std::ranges::all_of(guards_, releases) && files.nobody_reads();
}

void Eviction::restore(std::uint64_t version) const {
  for (VersionGuard* guard : guards_) guard->restore(version);
}

bool Eviction::evict(std::uint64_t version, const Files& files) {
  const std::lock_guard one(evict_mutex_);
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(version);
    if (found != entries_.end() && found->second.is_reserved()) return false;
  }
  if (is_kept(version)) return false;
  if (!withdraw(version)) return false;
  try {
    // What is mapped is found by its leases alone.  It must not vanish, even for a moment.
    if (files.nobody_reads() && remove_hidden(version, files)) return true;
  } catch (...) {
    if (changed_) changed_();
    restore(version);
    throw;
  }
  restore(version);
  return false;
}

bool Eviction::remove_hidden(std::uint64_t version, const Files& files) {
  auto departure = leave(version);
  if (!departure) return false;
  if (changed_) changed_();
  if (departure->settle(is_unused(version, files))) {
    files.remove();
    return true;
  }
  if (changed_) changed_();
  return false;
}

}  // namespace weightfs
