#include "fs/status.hpp"

#include <algorithm>

#include "store/json.hpp"

namespace weightfs::fs {
namespace {

Json seconds_or_null(std::int64_t seconds) { return seconds == 0 ? Json(nullptr) : Json(seconds); }

Json error_json(const SyncStatus& sync) {
  if (sync.error.empty()) return nullptr;
  return {{"code", sync.error_code},
          {"message", sync.error},
          {"time", seconds_or_null(sync.error_time)}};
}

Json serving_json(const ServingState& serving) {
  return {{"mode", serving.mode},
          {"why", serving.why},
          {"open_passthrough", serving.open_passthrough},
          {"open_daemon", serving.open_daemon},
          {"daemon_reads", serving.daemon_reads}};
}

}  // namespace

std::string status_text(const DaemonState& state, std::int64_t now) {
  const SyncStatus& sync = state.sync;
  const bool is_behind = sync.newest > sync.latest;
  const Json json{
      {"weightfs", WEIGHTFS_VERSION},
      {"url", state.url},
      {"repository", state.repository},
      {"mountpoint", state.mount_point.string()},
      {"pid", state.pid},
      {"store", state.store.string()},
      {"log", state.log.empty() ? Json(nullptr) : Json(state.log.string())},
      {"version", sync.latest},
      {"newest", sync.newest},
      {"lag_versions", is_behind ? sync.newest - sync.latest : 0},
      {"lag_seconds", is_behind ? std::max<std::int64_t>(now - sync.newest_time, 0) : 0},
      {"state", to_string(sync.state)},
      {"checked", seconds_or_null(sync.checked_time)},
      {"offline_since", seconds_or_null(sync.offline_since)},
      {"error", error_json(sync)},
      {"versions", state.versions},
      {"serve", serving_json(state.serving)},
      {"kernels", to_json(state.coder)},
      {"bytes", {{"images", sync.image_bytes}, {"fetched", sync.fetched_bytes}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weightfs::fs
