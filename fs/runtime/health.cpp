#include "fs/runtime/health.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fs/base/text_table.hpp"

namespace weightfs::fs {
namespace {

using Troubles = std::vector<Trouble>;

constexpr std::uint64_t kHookFailuresMax = 3;  // in a row; then somebody must act

void add_hand_overs(const DaemonState& state, HandOver::State wanted, Health health,
                    Troubles& troubles) {
  if (!state.writer) return;
  for (const HandOver& one : state.writer->queue) {
    // One that waits for its turn has no error; one that is lost may not say why.
    const bool is_trouble = wanted != HandOver::State::waiting || !one.error.empty();
    if (one.state != wanted || !is_trouble) continue;
    troubles.push_back({health, std::string(to_string(wanted)), one.name, one.error});
  }
}

void add_sync(const SyncStatus& sync, Troubles& troubles) {
  if (sync.error.empty()) return;
  const Health health = sync.latest == 0 ? Health::failed : Health::degraded;
  troubles.push_back({health, "waiting", "", sync.error});
}

/// A host that follows a tag or a number shows an older version on purpose.
void add_lag(const DaemonState& state, std::int64_t now, Troubles& troubles) {
  const SyncStatus& sync = state.sync;
  if (!state.max_lag || sync.follow.kind != Follow::Kind::latest) return;
  const double most = std::chrono::duration<double>(*state.max_lag).count();
  const auto add = [&](std::string message) {
    troubles.push_back({Health::failed, "behind", "",
                        fmt::format("{} (--max-lag {:g})", std::move(message), most)});
  };
  if (const std::int64_t lag = sync.lag_seconds(now); static_cast<double>(lag) > most) {
    add(fmt::format("{} is shown, and for {} s there have been later ones, up to {}",
                    sync.latest == 0 ? "no version" : fmt::format("version {}", sync.latest), lag,
                    sync.newest));
  } else if (sync.offline_since != 0 && static_cast<double>(now - sync.offline_since) > most) {
    add(fmt::format("the bucket has not been reached for {} s", now - sync.offline_since));
  }
}

void add_hooks(const DaemonState& state, Troubles& troubles) {
  for (const HookStatus& hook : state.hooks) {
    if (hook.state != HookStatus::State::failed && hook.state != HookStatus::State::unreachable) {
      continue;
    }
    const Health health = hook.failures >= kHookFailuresMax ? Health::failed : Health::degraded;
    troubles.push_back({health, "hook-failed", fmt::format("{} {}", hook.type, hook.target),
                        hook.error.empty() ? std::string(to_string(hook.state)) : hook.error});
  }
}

/// Before the bucket has been polled it is not known what exists.
void add_followed(const DaemonState& state, Troubles& troubles) {
  const SyncStatus& sync = state.sync;
  const bool is_known = sync.state == SyncStatus::State::current;
  if (!is_known || sync.followed > 0 || sync.follow.kind == Follow::Kind::latest) return;
  const std::string there_is = sync.newest == 0
                                   ? "it has no version yet"
                                   : fmt::format("its newest version is {}", sync.newest);
  troubles.push_back(
      {Health::degraded, "missing", describe(sync.follow),
       fmt::format("{} does not exist yet in {}: {}", describe(sync.follow), state.url, there_is)});
}

void add_passes(const DaemonState& state, Troubles& troubles) {
  for (const FullTable& table : state.pins.full) {
    troubles.push_back({Health::degraded, "passes-full", fmt::format("uid {}", table.uid),
                        fmt::format("it has as many loaders as can be kept apart; {} more were "
                                    "given the newest version, file by file",
                                    table.refused)});
  }
}

void add_upkeep(const DaemonState& state, Troubles& troubles) {
  if (!state.refused_leases.empty()) {
    troubles.push_back({Health::degraded, "leases", "", state.refused_leases});
  }
  const std::string& history = state.sync.history.error;
  if (!history.empty()) {
    troubles.push_back(
        {Health::degraded, "history", "", fmt::format("no patches are taken: {}", history)});
  }
  if (state.writer && state.writer->gc && !state.writer->gc->error.empty()) {
    troubles.push_back(
        {Health::degraded, "gc-failed", "",
         fmt::format("--gc failed, and is tried again: {}", state.writer->gc->error)});
  }
  if (state.announce && !state.announce->error.empty()) {
    troubles.push_back({Health::degraded, "announce", "",
                        fmt::format("this reader is not announced (PUT on readers/*): {}",
                                    state.announce->error)});
  }
}

std::string text_of(const Trouble& trouble) {
  const bool is_named = trouble.subject.empty() || trouble.message.starts_with(trouble.subject);
  return is_named ? trouble.message : fmt::format("{}: {}", trouble.subject, trouble.message);
}

}  // namespace

std::string_view to_string(Health health) noexcept {
  switch (health) {
    case Health::healthy:
      return "healthy";
    case Health::degraded:
      return "degraded";
    case Health::failed:
      return "failed";
  }
  return "";
}

Troubles troubles_of(const DaemonState& state, std::int64_t now) {
  Troubles troubles;
  add_hand_overs(state, HandOver::State::conflict, Health::failed, troubles);
  add_hand_overs(state, HandOver::State::failed, Health::failed, troubles);
  add_lag(state, now, troubles);
  add_sync(state.sync, troubles);
  add_hand_overs(state, HandOver::State::waiting, Health::degraded, troubles);
  add_hooks(state, troubles);
  add_followed(state, troubles);
  add_passes(state, troubles);
  add_upkeep(state, troubles);
  std::ranges::stable_sort(troubles, std::ranges::greater{}, &Trouble::health);
  return troubles;
}

Health health_of(const Troubles& troubles) noexcept {
  return troubles.empty() ? Health::healthy : troubles.front().health;
}

std::string state_of(const DaemonState& state, const Troubles& troubles) {
  return troubles.empty() ? std::string(to_string(state.sync.state)) : troubles.front().state;
}

std::string health_text(const Troubles& troubles) {
  std::string text(to_string(health_of(troubles)));
  if (troubles.empty()) return text;
  text += ": " + text_of(troubles.front());
  if (troubles.size() > 1) text += fmt::format("; and {} more", troubles.size() - 1);
  return printable(text);
}

}  // namespace weightfs::fs
