// Every family is written, also one without samples, so that a scrape names all that there are.

#include "fs/runtime/daemon_metrics.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "fs/metrics/metrics_text.hpp"
#include "fs/runtime/health.hpp"

namespace weightfs::fs {
namespace {

using Failures = std::map<std::string, std::uint64_t>;

void add_build(MetricsText& text, const DaemonCounters& counters) {
  text.gauge("weightfs_build_info", "1; the release is a label.");
  text.add({{"version", WEIGHTFS_VERSION}}, std::uint64_t{1});
  text.gauge("weightfs_start_time_seconds", "When the daemon started, since 1970.");
  text.add(counters.start_time);
}

void add_health(MetricsText& text, const DaemonState& state, std::int64_t now) {
  const std::vector<Trouble> troubles = troubles_of(state, now);
  const Health health = health_of(troubles);
  text.gauge("weightfs_health", "1 for the state of the host's health, 0 for the others.");
  for (const Health one : {Health::healthy, Health::degraded, Health::failed}) {
    text.add({{"state", to_string(one)}}, std::uint64_t{health == one});
  }
  std::map<std::string, std::uint64_t> counts;
  for (const std::string_view word :
       {"conflict", "failed", "behind", "waiting", "hook-failed", "missing", "passes-full",
        "leases", "history", "gc-failed", "announce"}) {
    counts.emplace(word, 0);
  }
  for (const Trouble& trouble : troubles) counts[trouble.state]++;
  text.gauge("weightfs_problems", "What weightfs status lists as problems, by its word.");
  for (const auto& [word, count] : counts) text.add({{"problem", word}}, count);
}

void add_versions(MetricsText& text, const DaemonState& state, std::int64_t now) {
  const SyncStatus& sync = state.sync;
  text.gauge(
      "weightfs_version",
      "Versions: what latest shows, what it should show, the newest in the bucket; 0: none.");
  text.add({{"which", "latest"}}, sync.latest);
  text.add({{"which", "followed"}}, sync.followed);
  text.add({{"which", "newest"}}, sync.newest);
  text.gauge("weightfs_lag_versions", "Newer versions than the one that latest shows.");
  text.add(sync.lag_versions());
  text.gauge("weightfs_lag_seconds",
             "How long versions newer than the one that latest shows have been known here.");
  text.add(sync.lag_seconds(now));
  text.gauge("weightfs_max_lag_seconds", "The limit --max-lag, if one was given.");
  if (state.max_lag) text.add(std::chrono::duration<double>(*state.max_lag).count());
  text.gauge("weightfs_versions", "Versions that are shown.");
  text.add(state.versions.size());
  text.gauge("weightfs_versions_partial", "Versions that are being filled, or could not be begun.");
  text.add(sync.partial.size());
  text.gauge("weightfs_versions_unsynced", "Complete versions that may not be on the disk yet.");
  text.add(sync.unsynced.size());
  text.counter("weightfs_versions_lost_total", "Versions that the disk did not take.");
  text.add(sync.lost);
}

void add_sync_metrics(MetricsText& text, const SyncStatus& sync) {
  text.gauge("weightfs_sync_state", "1 for what the sync does, 0 for the others.");
  using State = SyncStatus::State;
  for (const State one : {State::starting, State::fetching, State::current, State::waiting}) {
    text.add({{"state", to_string(one)}}, std::uint64_t{sync.state == one});
  }
  text.gauge("weightfs_bucket_reachable",
             "1 if the bucket answered when it was last asked, and is the one that is followed.");
  text.add(std::uint64_t{sync.offline_since == 0});
  text.gauge("weightfs_last_poll_timestamp_seconds",
             "When the bucket was last polled with success, since 1970; 0: never.");
  text.add(sync.checked_time);
}

void add_bytes(MetricsText& text, const DaemonState& state, const DaemonCounters& counters) {
  text.counter("weightfs_fetched_bytes_total", "Packs and snapshots fetched from the bucket.");
  text.add(state.sync.fetched_bytes);
  text.counter("weightfs_hub_fetched_bytes_total", "Bytes fetched from the Hugging Face Hub.");
  text.add(state.hub_bytes.value_or(0));
  text.counter("weightfs_seeded_bytes_total", "Bytes taken from --seed instead of fetched.");
  text.add(state.seed ? state.seed->taken_bytes : 0);
  text.counter("weightfs_early_bytes_total",
               "Bytes of versions that were here when their manifest came.");
  text.add(state.sync.head_start ? state.sync.head_start->taken_bytes : 0);
  text.counter("weightfs_written_bytes_total", "Bytes of versions written to images.");
  text.add(counters.timings.written_bytes());
  text.counter("weightfs_uploaded_bytes_total", "Bytes uploaded for published hand-overs.");
  text.add(counters.timings.uploaded_bytes());
  text.counter("weightfs_served_bytes_total",
               "Bytes of READs that the daemon answered; passthrough is not seen.");
  text.add(state.serving.served_bytes);
}

template <std::size_t kCount>
void add_times(MetricsText& text, std::string_view label,
               const std::array<NamedHistogram, kCount>& phases) {
  for (const NamedHistogram& one : phases) text.add({{label, one.name}}, one.times);
}

void add_timings(MetricsText& text, const TimingTotals& timings) {
  text.histogram("weightfs_version_seconds", "From a manifest's arrival until latest shows it.");
  text.add({}, timings.versions());
  text.histogram("weightfs_version_phase_seconds", "Phases of that; sync comes after.");
  add_times(text, "phase", timings.version_phases());
  text.histogram("weightfs_build_work_seconds",
                 "Work in the phase build: fetch by the clock, the rest in all threads together.");
  add_times(text, "work", timings.build_work());
  text.histogram("weightfs_hand_over_seconds", "From a hand-over until latest shows it.");
  text.add({}, timings.hand_overs());
  text.histogram("weightfs_hand_over_phase_seconds", "Phases of that.");
  add_times(text, "phase", timings.hand_over_phases());
}

void add_queue(MetricsText& text, const std::optional<WriterState>& writer) {
  text.gauge("weightfs_queue_hand_overs", "Hand-overs that are not versions yet; of a writer.");
  using State = HandOver::State;
  for (const State one : {State::queued, State::uploading, State::waiting, State::committing,
                          State::conflict, State::failed}) {
    if (!writer) break;
    text.add({{"state", to_string(one)}},
             static_cast<std::uint64_t>(std::ranges::count(writer->queue, one, &HandOver::state)));
  }
  text.gauge("weightfs_queue_oldest_timestamp_seconds",
             "When the oldest of these was handed over, since 1970; none: no sample.");
  if (writer && !writer->queue.empty()) text.add(writer->queue.front().time);
  text.counter("weightfs_published_versions_total", "Versions published by this mount.");
  if (writer) text.add(writer->published.versions);
  text.counter("weightfs_published_bytes_total", "Bytes of their files.");
  if (writer) text.add(writer->published.bytes);
  text.counter("weightfs_published_early_bytes_total", "Of these, coded before the hand-over.");
  if (writer) text.add(writer->published.early_bytes);
  text.gauge("weightfs_staging_files", "Files in staging/ and publish/; of a writer.");
  if (writer) text.add(writer->staging.files);
  text.gauge("weightfs_staging_bytes", "Their bytes.");
  if (writer) text.add(writer->staging.bytes);
}

void add_upkeep_metrics(MetricsText& text, const std::optional<WriterState>& writer) {
  text.counter("weightfs_skips_made_total", "Skip deltas made and uploaded; of a writer.");
  if (writer) text.add(writer->skips.made);
  text.counter("weightfs_skips_bytes_total", "Their bytes.");
  if (writer) text.add(writer->skips.bytes);
  const GcState* const gc = writer && writer->gc ? &*writer->gc : nullptr;
  text.counter("weightfs_gc_runs_total", "Runs of --gc that ended without an error.");
  if (gc != nullptr) text.add(gc->runs);
  text.counter("weightfs_gc_removed_bytes_total", "Bytes that --gc removed from the bucket.");
  if (gc != nullptr) text.add(gc->removed_bytes);
  text.counter("weightfs_gc_retired_versions_total", "Versions that --gc retired.");
  if (gc != nullptr) text.add(gc->retired_versions);
}

void add_pass_metrics(MetricsText& text, const PinsState& pins) {
  text.gauge("weightfs_passes", "Passes: loaders that keep a version.");
  text.add(pins.passes.size());
  text.gauge("weightfs_passes_loading", "Of these, those that have not opened all files yet.");
  text.add(
      static_cast<std::uint64_t>(std::ranges::count(pins.passes, true, &PassState::is_loading)));
  text.gauge("weightfs_pins", "Versions pinned by hand.");
  text.add(pins.by_hand.size());
}

void add_hook_metrics(MetricsText& text, const std::vector<HookStatus>& hooks) {
  const auto each = [&](const auto& add) {
    // --hook refuses the same engine twice, but shows of two commands no more than the program.
    std::map<std::pair<std::string, std::string>, unsigned> seen;
    for (const HookStatus& hook : hooks) {
      const unsigned before = seen[{hook.type, hook.target}]++;
      const std::string engine =
          before == 0 ? hook.target : hook.target + " #" + std::to_string(before + 1);
      add(MetricsText::Labels{{"type", hook.type}, {"engine", engine}}, hook);
    }
  };
  text.gauge("weightfs_hook_state", "1 for the state of an engine's hook, 0 for the others.");
  each([&](const MetricsText::Labels& labels, const HookStatus& hook) {
    using State = HookStatus::State;
    for (const State one :
         {State::idle, State::current, State::telling, State::failed, State::unreachable}) {
      MetricsText::Labels all = labels;
      all.emplace_back("state", to_string(one));
      text.add(all, std::uint64_t{hook.state == one});
    }
  });
  text.gauge("weightfs_hook_version",
             "Versions of an engine: what it should have, what it reports or was told; 0: none.");
  each([&](const MetricsText::Labels& labels, const HookStatus& hook) {
    MetricsText::Labels all = labels;
    all.emplace_back("which", "wanted");
    text.add(all, hook.wanted);
    all.back().second = "reported";
    text.add(all, hook.reported.value_or(hook.told));
  });
  text.counter("weightfs_hook_updates_total", "Successful updates of an engine.");
  each([&](const auto& labels, const HookStatus& hook) { text.add(labels, hook.updates); });
  text.counter("weightfs_hook_failures_total",
               "Rounds in which an engine failed, or was not there.");
  each([&](const auto& labels, const HookStatus& hook) { text.add(labels, hook.all_failures); });
  text.gauge("weightfs_hook_pause_seconds", "How long the engine's last update held it up.");
  each([&](const auto& labels, const HookStatus& hook) {
    if (hook.update) text.add(labels, hook.update->pause.count());
  });
}

void add_store(MetricsText& text, const SyncStatus& sync) {
  text.gauge("weightfs_store_image_bytes", "Bytes of all images.");
  text.add(sync.image_bytes);
  text.gauge("weightfs_store_memory_bytes", "Of these, those in memory (--images memory).");
  text.add(sync.memory ? sync.memory->bytes : 0);
  text.gauge("weightfs_store_history_bytes", "Patches to old versions.");
  text.add(sync.history.bytes);
  text.gauge("weightfs_store_history_versions", "Versions that are made without the bucket.");
  text.add(sync.history.versions);
  text.gauge("weightfs_store_history_backlog_versions",
             "Versions whose patches are not taken yet.");
  text.add(sync.history.backlog);
  text.counter("weightfs_deltas_made_total", "Changes as files, made ahead or when asked for.");
  text.add({{"when", "ahead"}}, sync.deltas.ahead);
  text.add({{"when", "on_demand"}}, sync.deltas.on_demand);
}

void add_database(MetricsText& text, const DbFacts& database) {
  text.gauge("weightfs_rocksdb_file_bytes", "Files of the store's RocksDB, patches included.");
  text.add(database.file_bytes);
  text.gauge("weightfs_rocksdb_memtable_bytes", "Its records that are not in files yet.");
  text.add(database.memtable_bytes);
  text.gauge("weightfs_rocksdb_cache_bytes", "Its cache of blocks.");
  text.add(database.cache_bytes);
  text.gauge("weightfs_rocksdb_pending_compaction_bytes", "What compaction is to rewrite.");
  text.add(database.pending_compaction_bytes);
  text.gauge("weightfs_rocksdb_running_compactions", "Compactions under way.");
  text.add(database.running_compactions);
  text.gauge("weightfs_rocksdb_running_flushes", "Flushes under way.");
  text.add(database.running_flushes);
  text.gauge("weightfs_rocksdb_background_errors", "Errors in its threads since it was opened.");
  text.add(database.background_errors);
  text.gauge("weightfs_rocksdb_writable", "0: no room for records, or a write has failed.");
  text.add(std::uint64_t{database.is_writable});
}

void add_cache(MetricsText& text, const CacheState& cache) {
  text.gauge("weightfs_cache_version_bytes", "Bytes of the version that latest shows.");
  text.add(cache.residency.size_bytes);
  text.gauge("weightfs_cache_cached_bytes", "Of these, those in the page cache.");
  text.add(cache.residency.cached_bytes);
  text.gauge("weightfs_cache_room_bytes", "Memory that is there for it; unknown: no sample.");
  if (cache.room) text.add(cache.room->bytes);
}

void add_serving(MetricsText& text, const ServingState& serving) {
  text.gauge("weightfs_open_files", "Open files, by who answers their reads.");
  text.add({{"by", "passthrough"}}, serving.open_passthrough);
  text.add({{"by", "daemon"}}, serving.open_daemon);
  text.gauge("weightfs_waiting_reads", "Reads that wait for bytes from the bucket.");
  text.add(std::uint64_t{serving.waiting_reads});
  text.counter("weightfs_requests_total",
               "Requests of the kernel that were answered, by errno; ok: none.");
  for (const RequestCount& one : serving.requests) {
    text.add({{"op", one.op}, {"code", one.code}}, one.count);
  }
  if (serving.mode == "directory") return;  // of a sync: the kernel asks nobody
  // A series that begins with 5 has not increased: alerts would not see the first errors.
  for (const std::string_view op : {"open", "read"}) {
    for (const std::string_view code : {"EIO", "ENODEV", "ETIMEDOUT"}) {
      const bool has_happened = std::ranges::any_of(serving.requests, [&](const RequestCount& one) {
        return one.op == op && one.code == code;
      });
      if (!has_happened) text.add({{"op", op}, {"code", code}}, std::uint64_t{0});
    }
  }
}

void add_errors(MetricsText& text, const DaemonState& state, const LogCounts& log) {
  text.counter("weightfs_errors_total", "Rounds of the sync and tries to publish that failed.");
  const auto add = [&](std::string_view source, const Failures& failures) {
    for (const auto& [code, count] : failures) {
      text.add({{"source", source}, {"code", code}}, count);
    }
  };
  add("sync", state.sync.failures);
  if (state.writer) add("publish", state.writer->published.failures);
  text.counter("weightfs_log_messages_total", "Messages logged as a warning or an error.");
  text.add({{"level", "warning"}}, log.warnings);
  text.add({{"level", "error"}}, log.errors);
}

}  // namespace

std::string metrics_text(const DaemonState& state, const DaemonCounters& counters,
                         std::int64_t now) {
  MetricsText text;
  add_build(text, counters);
  add_health(text, state, now);
  add_versions(text, state, now);
  add_sync_metrics(text, state.sync);
  add_bytes(text, state, counters);
  add_timings(text, counters.timings);
  add_queue(text, state.writer);
  add_upkeep_metrics(text, state.writer);
  add_pass_metrics(text, state.pins);
  add_hook_metrics(text, state.hooks);
  add_store(text, state.sync);
  add_database(text, counters.database);
  add_cache(text, state.cache);
  add_serving(text, state.serving);
  add_errors(text, state, counters.log);
  return text.text();
}

}  // namespace weightfs::fs
