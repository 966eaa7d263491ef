#include "fs/runtime/health.hpp"

#include <fmt/format.h>

namespace weightfs::fs {
namespace {

using Troubles = std::vector<Trouble>;

void add_hand_overs(const DaemonState& state, HandOver::State wanted, Troubles& troubles) {
  if (!state.writer) return;
  for (const HandOver& one : state.writer->queue) {
    if (one.state != wanted) continue;
    troubles.push_back({std::string(to_string(wanted)), one.name, one.error});
  }
}

void add_hooks(const DaemonState& state, Troubles& troubles) {
  for (const HookStatus& hook : state.hooks) {
    if (hook.state != HookStatus::State::failed && hook.state != HookStatus::State::unreachable) {
      continue;
    }
    const std::string engine = fmt::format("{} {}", hook.type, hook.target);
    troubles.push_back({"hook-failed", engine,
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
      {"missing", describe(sync.follow),
       fmt::format("{} does not exist yet in {}: {}", describe(sync.follow), state.url, there_is)});
}

}  // namespace

Troubles troubles_of(const DaemonState& state) {
  Troubles troubles;
  add_hand_overs(state, HandOver::State::conflict, troubles);
  add_hand_overs(state, HandOver::State::failed, troubles);
  if (!state.sync.error.empty()) troubles.push_back({"waiting", "", state.sync.error});
  add_hooks(state, troubles);
  add_followed(state, troubles);
  return troubles;
}

std::string health_of(const DaemonState& state, const Troubles& troubles) {
  return troubles.empty() ? std::string(to_string(state.sync.state)) : troubles.front().state;
}

}  // namespace weightfs::fs
