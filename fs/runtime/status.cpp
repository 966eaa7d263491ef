#include "fs/runtime/status.hpp"

#include <algorithm>
#include <chrono>

#include "fs/cache/cache_advice.hpp"
#include "fs/runtime/health.hpp"
#include "store/base/json.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {
namespace {

Json path_or_null(const std::filesystem::path& path) {
  return path.empty() ? Json(nullptr) : Json(path.string());
}

Json seconds_or_null(std::int64_t seconds) { return seconds == 0 ? Json(nullptr) : Json(seconds); }

Json error_json(const SyncStatus& sync) {
  if (sync.error.empty()) return nullptr;
  return {{"code", sync.error_code},
          {"message", sync.error},
          {"time", seconds_or_null(sync.error_time)}};
}

/// "waiting": what is followed but does not exist yet.
Json follow_json(const SyncStatus& sync) {
  const bool exists = sync.followed > 0;
  return {{"what", to_string(sync.follow)},
          {"version", exists ? Json(sync.followed) : Json(nullptr)},
          {"waiting", exists ? Json(nullptr) : Json(describe(sync.follow))}};
}

Json serving_json(const ServingState& serving) {
  return {{"mode", serving.mode},
          {"why", serving.why},
          {"bound", serving.bound},
          {"open_passthrough", serving.open_passthrough},
          {"open_daemon", serving.open_daemon},
          {"daemon_reads", serving.daemon_reads},
          {"waiting_reads", serving.waiting_reads}};
}

Json hand_over_json(const HandOver& one) {
  Json error = nullptr;
  if (!one.error.empty()) error = {{"code", one.error_code}, {"message", one.error}};
  return {{"order", one.order},
          {"name", one.name},
          {"tag", one.tag},
          {"state", to_string(one.state)},
          {"phase", one.phase},
          {"done", one.done_bytes},
          {"total", one.total_bytes},
          {"early_bytes", one.early_bytes},
          {"parts", one.parts == 0 ? Json(nullptr) : Json(one.parts)},
          {"missing", one.missing},
          {"version", one.version == 0 ? Json(nullptr) : Json(one.version)},
          {"since", seconds_or_null(one.time)},
          {"error", std::move(error)}};
}

/// "age": seconds since the last change in it.
Json staging_json(const StagingSummary& staging, std::int64_t now) {
  Json tops = Json::array();
  for (const StagingSummary::Top& top : staging.tops) {
    tops.push_back(
        {{"name", top.name},
         {"handed_over", top.is_handed_over},
         {"files", top.files},
         {"bytes", top.bytes},
         {"age", top.changed_time == 0 ? Json(nullptr)
                                       : Json(std::max<std::int64_t>(now - top.changed_time, 0))}});
  }
  return {{"files", staging.files}, {"bytes", staging.bytes}, {"tops", std::move(tops)}};
}

/// Files that have not been handed over yet: what is coded, and what is in the bucket.
Json early_json(const EarlyStatus& early) {
  return {{"waiting_files", early.waiting_files},   {"growing_files", early.growing_files},
          {"coded_files", early.coded_files},       {"coded_bytes", early.coded_bytes},
          {"uploaded_bytes", early.uploaded_bytes}, {"grown_bytes", early.grown_bytes}};
}

/// This mount's.  "early_bytes": bytes of files that were coded before their hand-over.  "last":
/// oldest first.
Json published_json(const WriterState& writer) {
  constexpr std::size_t kLastShown = 8;
  std::vector<Json> last;
  for (auto end = writer.ended.rbegin(); end != writer.ended.rend(); ++end) {
    if (end->how != HandOverEnd::How::published) continue;
    last.push_back({{"name", end->name},
                    {"tag", end->tag},
                    {"version", end->version},
                    {"bytes", end->bytes},
                    {"early_bytes", end->early_bytes}});
    if (last.size() == kLastShown) break;
  }
  std::reverse(last.begin(), last.end());
  return {{"versions", writer.published.versions},
          {"bytes", writer.published.bytes},
          {"early_bytes", writer.published.early_bytes},
          {"last", last}};
}

Json pair_json(const std::optional<VersionPair>& pair) {
  if (!pair) return nullptr;
  return {{"from", pair->from}, {"to", pair->to}};
}

Json pairs_json(const std::vector<VersionPair>& pairs) {
  Json json = Json::array();
  for (const VersionPair& pair : pairs) json.push_back(pair_json(pair));
  return json;
}

/// "made", "bytes": by this mount.
Json skips_json(const SkipMakerStatus& skips) {
  return {{"made", skips.made},
          {"bytes", skips.bytes},
          {"last", pair_json(skips.last)},
          {"making", pair_json(skips.making)},
          {"out_of_reach", pairs_json(skips.out_of_reach)},
          {"failed", pairs_json(skips.failed)},
          {"off", skips.off.empty() ? Json(nullptr) : Json(skips.off)},
          {"error", skips.error.empty() ? Json(nullptr) : Json(skips.error)}};
}

/// null: without --gc.
Json gc_json(const std::optional<GcState>& gc) {
  if (!gc) return nullptr;
  return {{"running", gc->is_running},
          {"gives_way", gc->gives_way},
          {"runs", gc->runs},
          {"last", seconds_or_null(gc->last_time)},
          {"removed", {{"objects", gc->removed_objects}, {"bytes", gc->removed_bytes}}},
          {"retired_versions", gc->retired_versions},
          {"skips_made", gc->skips_made},
          {"waiting", {{"objects", gc->waiting_objects}, {"bytes", gc->waiting_bytes}}},
          {"next_due", seconds_or_null(gc->next_due)},
          {"error", gc->error.empty() ? Json(nullptr) : Json(gc->error)}};
}

/// null: without --announce.
Json announce_json(const std::optional<AnnounceState>& announce) {
  if (!announce) return nullptr;
  return {{"id", announce->id.empty() ? Json(nullptr) : Json(announce->id)},
          {"every", announce->every.count()},
          {"records", announce->records},
          {"last", seconds_or_null(announce->last_time)},
          {"error", announce->error.empty() ? Json(nullptr) : Json(announce->error)}};
}

Json writer_json(const DaemonState& state, std::int64_t now) {
  if (!state.writer) return nullptr;
  Json queue = Json::array();
  for (const HandOver& one : state.writer->queue) queue.push_back(hand_over_json(one));
  const PartChoice& part = state.writer->part;
  const bool is_part = part.is_part();
  return {{"rebase", state.writer->rebase},
          {"include", state.writer->include},
          {"part", is_part ? Json(part.part) : Json(nullptr)},
          {"parts", is_part ? Json(part.parts) : Json(nullptr)},
          {"run", is_part ? Json(part.run) : Json(nullptr)},
          {"queue", std::move(queue)},
          {"early", early_json(state.writer->early)},
          {"published", published_json(*state.writer)},
          {"skips", skips_json(state.writer->skips)},
          {"gc", gc_json(state.writer->gc)},
          {"staging", staging_json(state.writer->staging, now)}};
}

/// Names of all hand-overs that are not yet versions, on both kinds of mounts.
Json queued_json(const DaemonState& state) {
  Json names = state.queued;
  if (state.writer) {
    for (const HandOver& one : state.writer->queue) names.push_back(one.name);
  }
  return names;
}

/// Versions that are being filled.  "here": how many of its bytes are here.
Json partial_json(const SyncStatus& sync) {
  Json json = Json::array();
  for (const auto& [number, progress] : sync.partial) {
    Json error = nullptr;
    if (progress.error) {
      error = {{"code", to_string(progress.error->code())},
               {"message", progress.error->what()},
               {"damaged", progress.is_damaged}};
    }
    json.push_back({{"version", number},
                    {"bytes", progress.bytes},
                    {"here", progress.bytes_here},
                    {"error", std::move(error)}});
  }
  return json;
}

Json number_or_null(std::uint64_t number) { return number == 0 ? Json(nullptr) : Json(number); }

/// null: none has succeeded, or there is only one way.  "reason": why it was not in place.
Json update_json(const std::optional<HookUpdate>& update) {
  if (!update) return nullptr;
  return {{"how", to_string(update->how)},
          {"reason", update->reason.empty() ? Json(nullptr) : Json(update->reason)},
          {"running", update->keeps_running ? "kept" : "recomputed"},
          {"stage_s", update->stage.count()},
          {"pause_s", update->pause.count()},
          {"apply_s", update->apply.count()}};
}

/// "reported": the version that the engine reports, or, if it cannot, the one that it was told.
Json hook_json(const HookStatus& hook) {
  Json error = nullptr;
  if (!hook.error.empty()) error = {{"message", hook.error}, {"time", hook.error_time}};
  return {{"type", hook.type},
          {"target", hook.target},
          {"url", hook.url.empty() ? Json(nullptr) : Json(hook.url)},
          {"state", to_string(hook.state)},
          {"since", seconds_or_null(hook.since)},
          {"wanted", number_or_null(hook.wanted)},
          {"reported", number_or_null(hook.reported.value_or(hook.told))},
          {"failures", hook.failures},
          {"update", update_json(hook.update)},
          {"error", std::move(error)}};
}

Json hooks_json(const std::vector<HookStatus>& hooks) {
  Json all = Json::array();
  for (const HookStatus& hook : hooks) all.push_back(hook_json(hook));
  return all;
}

/// The live processes of a pass.
Json members_json(const std::vector<PassMember>& members) {
  Json json = Json::array();
  for (const PassMember& member : members) {
    json.push_back({{"pid", member.pid == 0 ? Json(nullptr) : Json(member.pid)},
                    {"command", member.command.empty() ? Json(nullptr) : Json(member.command)}});
  }
  return json;
}

/// Pins by hand, then passes.  "session", "link": null for a pin by hand.  "age": seconds since it
/// began.
Json pins_json(const PinsState& pins, std::int64_t now) {
  Json json = Json::array();
  for (const auto& [version, time] : pins.by_hand) {
    json.push_back({{"version", version},
                    {"session", nullptr},
                    {"link", nullptr},
                    {"command", nullptr},
                    {"age", std::max<std::int64_t>(now - time, 0)},
                    {"full", false},
                    {"loading", false},
                    {"members", Json::array()}});
  }
  for (const PassState& pass : pins.passes) {
    json.push_back({{"version", pass.version},
                    {"session", pass.session},
                    {"link", pass.link},
                    {"command", pass.command.empty() ? Json(nullptr) : Json(pass.command)},
                    {"age", std::chrono::floor<std::chrono::seconds>(pass.age).count()},
                    {"full", pass.is_full},
                    {"loading", pass.is_loading},
                    {"members", members_json(pass.members)}});
  }
  return json;
}

/// Uids that get no more passes.
Json full_pins_json(const std::vector<FullTable>& full) {
  Json json = Json::array();
  for (const FullTable& table : full) {
    json.push_back({{"uid", table.uid}, {"refused", table.refused}});
  }
  return json;
}

/// null if the host keeps all files and has them.
Json kept_json(const KeptState& kept) {
  if (kept.only.empty() && kept.kept_bytes == kept.version_bytes && kept.made_bytes == 0)
    return nullptr;
  return {{"only", kept.only},
          {"kept_bytes", kept.kept_bytes},
          {"version_bytes", kept.version_bytes},
          {"made_bytes", kept.made_bytes}};
}

/// null: none was given.
Json seed_json(const std::optional<SeedState>& seed) {
  if (!seed) return nullptr;
  return {{"directory", seed->directory.string()},
          {"files", seed->files},
          {"tensors", seed->tensors},
          {"taken_bytes", seed->taken_bytes}};
}

/// null: it is not known.
Json timing_json(const std::optional<TimingRecord>& timing) {
  return timing ? parse_json(to_json_text(*timing), "a timing") : Json(nullptr);
}

Json version_or_null(std::uint64_t version) { return version == 0 ? Json(nullptr) : Json(version); }

/// null: no room is made ahead.
Json room_ahead_json(const std::optional<RoomAheadStatus>& room) {
  if (!room) return nullptr;
  return {{"versions", room->versions},
          {"last", version_or_null(room->last)},
          {"last_ms", std::chrono::duration<double, std::milli>(room->last_took).count()}};
}

/// null: nothing is made before its version is known.
Json head_start_json(const std::optional<HeadStartStatus>& start) {
  if (!start) return nullptr;
  return {{"waiting_bytes", start->waiting_bytes},
          {"taken_bytes", start->taken_bytes},
          {"due_in_ms", start->due_in ? Json(start->due_in->count()) : Json(nullptr)}};
}

Json images_json(const SyncStatus& sync) {
  const Json head_start = head_start_json(sync.head_start);
  if (!sync.memory) {
    return {{"home", "disk"},
            {"room_ahead", room_ahead_json(sync.room_ahead)},
            {"head_start", head_start}};
  }
  return {{"home", "memory"},
          {"head_start", head_start},
          {"memory_bytes", sync.memory->bytes},
          {"memory_versions", sync.memory->versions},
          {"base", version_or_null(sync.memory->base)},
          {"base_renewals", sync.memory->renewals.count},
          {"base_renewed", version_or_null(sync.memory->renewals.last)}};
}

/// Changes as files, since the daemon was started.
Json deltas_json(const DeltaTable::Counters& deltas) {
  return {{"ahead", deltas.ahead},
          {"on_demand", deltas.on_demand},
          {"given_up", deltas.given_up},
          {"served_ahead", deltas.served}};
}

/// "first": the oldest version that is made without the bucket.  "off": why no patches are taken.
Json history_json(const PatchHistory& history) {
  Json levels = Json::array();
  for (const PatchHistory::Level& level : history.levels) {
    levels.push_back({{"level", to_string(level.level)},
                      {"spans", level.spans},
                      {"bytes", level.bytes},
                      {"first", version_or_null(level.first)},
                      {"last", version_or_null(level.last)}});
  }
  const PatchCounters& written = history.written;
  const auto amplification = [&] {
    const auto taken = static_cast<double>(written.taken_bytes);
    return (taken + static_cast<double>(written.folded_bytes)) / taken;
  };
  return {{"levels", levels},
          {"first", version_or_null(history.first)},
          {"versions", history.versions},
          {"bytes", history.bytes},
          {"bytes_max", history.bytes_max ? Json(*history.bytes_max) : Json(nullptr)},
          {"recorded", version_or_null(history.recorded)},
          {"backlog", history.backlog},
          {"path_bytes", history.path_bytes},
          {"spans_fresh", history.counted.fresh},
          {"spans_from_images", history.counted.from_images},
          {"given_up", history.counted.given_up},
          {"taken_bytes", written.taken_bytes},
          {"folded_bytes", written.folded_bytes},
          {"write_amplification", written.taken_bytes == 0 ? Json(nullptr) : Json(amplification())},
          {"off", history.off.empty() ? Json(nullptr) : Json(history.off)},
          {"error", history.error.empty() ? Json(nullptr) : Json(history.error)}};
}

/// Seconds; null: there is no limit.
Json max_lag_json(const std::optional<std::chrono::milliseconds>& most) {
  return most ? Json(std::chrono::duration<double>(*most).count()) : Json(nullptr);
}

Json problems_json(const std::vector<Trouble>& troubles) {
  Json json = Json::array();
  for (const Trouble& one : troubles) {
    json.push_back({{"health", to_string(one.health)},
                    {"state", one.state},
                    {"what", one.subject.empty() ? Json(nullptr) : Json(one.subject)},
                    {"message", one.message}});
  }
  return json;
}

}  // namespace

std::string status_text(const DaemonState& state, std::int64_t now) {
  const SyncStatus& sync = state.sync;
  const std::vector<Trouble> troubles = troubles_of(state, now);
  const Json json{
      {"weightfs", WEIGHTFS_VERSION},
      {"url", state.url},
      {"bucket", to_json(state.bucket)},
      {"repository", state.repository},
      {"mountpoint", state.mount_point.string()},
      {"pid", state.pid},
      {"store", state.store.string()},
      {"log", path_or_null(state.log)},
      {"control", path_or_null(state.control)},
      {"metrics", state.metrics.empty() ? Json(nullptr) : Json(state.metrics)},
      {"version", sync.latest},
      {"newest", sync.newest},
      {"follow", follow_json(sync)},
      {"lag_versions", sync.lag_versions()},
      {"lag_seconds", sync.lag_seconds(now)},
      {"max_lag", max_lag_json(state.max_lag)},
      {"health", health_text(troubles)},
      {"state", state_of(state, troubles)},
      {"problems", problems_json(troubles)},
      {"checked", seconds_or_null(sync.checked_time)},
      {"rhythm_ms", sync.rhythm ? Json(sync.rhythm->count()) : Json(nullptr)},
      {"offline_since", seconds_or_null(sync.offline_since)},
      {"error", error_json(sync)},
      {"versions", state.versions},
      {"kept", kept_json(state.kept)},
      {"seed", seed_json(state.seed)},
      {"partial", partial_json(sync)},
      {"images", images_json(sync)},
      {"history", history_json(sync.history)},
      {"deltas", deltas_json(sync.deltas)},
      {"unsynced", sync.unsynced},
      {"lost", sync.lost},
      {"timing",
       {{"latest", timing_json(state.latest_timing)},
        {"hand_over", timing_json(state.hand_over_timing)}}},
      {"serve", serving_json(state.serving)},
      {"kernels", to_json(state.coder)},
      {"pins", pins_json(state.pins, now)},
      {"pins_full", full_pins_json(state.pins.full)},
      {"writer", writer_json(state, now)},
      {"announce", announce_json(state.announce)},
      {"queued", queued_json(state)},
      {"hooks", hooks_json(state.hooks)},
      {"cache", cache_json(state.cache, state.serving.mode)},
      {"bytes",
       {{"images", sync.image_bytes},
        {"fetched", sync.fetched_bytes},
        {"hub", state.hub_bytes.value_or(0)}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string health_file_text(const DaemonState& state, std::int64_t now) {
  return health_text(troubles_of(state, now)) + "\n";
}

}  // namespace weightfs::fs
