// Lifetimes, outermost first:
//
//     signals > bound versions > runtime (fs/runtime/runtime.hpp) > pins > deltas > remote files >
//         (staging > queue) > control > gc > announcer > metrics > tree > session > threads of
//         hooks
//
// The session is unmounted first, so that no caller waits for what ends after it, such as a queue
// whose bucket hangs.  Staging and the queue exist only for a writer.  The hooks' threads run while
// there is a session; in bind mode versions are bound while it is served.
//
// The members of Daemon are in this order; run() makes them one after another.

#include "fs/daemon/daemon.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>

#include "fs/base/descriptors.hpp"
#include "fs/base/notify_socket.hpp"
#include "fs/base/stop_signals.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/daemon/bound_versions.hpp"
#include "fs/daemon/control_handlers.hpp"
#include "fs/daemon/publish_first.hpp"
#include "fs/daemon/session_guard.hpp"
#include "fs/fuse/session.hpp"
#include "fs/hooks/hooks.hpp"
#include "fs/metrics/metrics_server.hpp"
#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_point.hpp"
#include "fs/passes/loader_pins.hpp"
#include "fs/passes/open_writers.hpp"
#include "fs/runtime/announcer.hpp"
#include "fs/runtime/control_socket.hpp"
#include "fs/runtime/daemon_metrics.hpp"
#include "fs/runtime/health.hpp"
#include "fs/runtime/keeping_guard.hpp"
#include "fs/runtime/locate_repository.hpp"
#include "fs/runtime/runtime.hpp"
#include "fs/runtime/service_report.hpp"
#include "fs/runtime/status.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/handover/proven_bucket.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/inspect/check_skip.hpp"
#include "store/inspect/delta_files.hpp"
#include "store/local/manual_pins.hpp"
#include "store/materialize/history.hpp"
#include "store/os/lease.hpp"
#include "store/os/memory_room.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/repository/probe.hpp"
#include "store/repository/repository.hpp"
#include "store/skips/skip_maker.hpp"
#include "store/staging/staging.hpp"
#include "store/streaming/remote_files.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kEndGrace = std::chrono::seconds(8);
constexpr auto kFollowInterval = std::chrono::milliseconds(500);

/// A daemon that reads through its own mount would wait for itself.
void check_places(const std::filesystem::path& mount_point, const std::filesystem::path& store,
                  const std::filesystem::path& seed, const std::string& url) {
  const auto refuse = [](const char* what, const std::filesystem::path& inner,
                         const std::filesystem::path& outer) {
    throw Error(ErrorCode::invalid, fmt::format("{} {} lies inside {}; choose another directory",
                                                what, inner.string(), outer.string()));
  };
  const std::filesystem::path bucket = directory_of_url(url);
  if (is_inside(store, mount_point)) refuse("the store", store, mount_point);
  if (!seed.empty() && is_inside(seed, mount_point)) refuse("the seed", seed, mount_point);
  if (is_inside(mount_point, store)) refuse("the mount point", mount_point, store);
  if (!bucket.empty() && is_inside(bucket, mount_point)) refuse("the bucket", bucket, mount_point);
}

// ---- the pieces together ----

class Daemon {
 public:
  Daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
         const Progress& progress)
      : host_(host), options_(options), events_(events), progress_(progress) {}

  void run() {
    mount_point_ = prepare();
    require_fuse(host_.url);
    if (host_.metrics) listener_.emplace(*host_.metrics);
    auto repository = find_places({host_.url, host_.bucket, host_.store}, context_).repository;
    auto store = choose_store(repository->id());
    begin_log(*store);
    bound_.emplace(bound_options(*store));
    if (keeps_in_memory()) store->use_memory([] { return find_memory_room(); });
    runtime_.emplace(host_, std::move(repository), std::move(store), runtime_options());
    if (!options_.writer) queued_ = queued_names(runtime_->store().db());
    begin_pins();
    const auto listening = listen();
    runtime_->sync().start();
    wait_ready();
    if (keeps_in_memory()) runtime_->store().evictor().require_memory();
    begin_files();
    if (options_.writer) begin_writing();
    begin_control();
    begin_metrics();
    serve();
  }

 private:
  [[nodiscard]] bool keeps_in_memory() const { return options_.images == ImagesHome::memory; }

  /// A trainer can save and hand over while the bucket is out of reach.
  void wait_ready() {
    try {
      runtime_->sync().wait_ready(context_, progress_);
    } catch (const Error& error) {
      if (!options_.writer || !may_start_offline(error.code())) throw;
      log_warning(fmt::format("starting without a version: {}", error.what()));
    }
  }

  std::unique_ptr<Store> choose_store(const std::string& id) {
    check_places(mount_point_, host_.store.empty() ? Store::default_path(id) : host_.store,
                 host_.seed, host_.url);
    OpenedStore opened = open_store({host_.store, id, host_.url, host_.limits, mount_point_});
    store_notes_ = std::move(opened.notes);
    return std::move(opened.store);
  }

  /// Returns: the canonical mount point.
  std::filesystem::path prepare() {
    MountPlace place = prepare_mount_point(options_.mount_point, options_.non_empty);
    hidden_note_.clear();
    if (!place.hidden.empty()) {
      hidden_note_ = fmt::format("the contents of {} are hidden until umount: {}",
                                 place.path.string(), shown_names(place.hidden));
    }
    return std::move(place.path);
  }

  void begin_log(const Store& store) {
    if (options_.foreground) {
      log_to_stderr(host_.log);
    } else {
      log_path_ = store.log_path();
      log_to_file(log_path_, host_.log);
    }
    if (events_.logging) events_.logging(log_path_);
    log_info(fmt::format("weightfs {} pid {} mounts {} at {}", WEIGHTFS_VERSION, getpid(),
                         host_.url, mount_point_.string()));
    for (const std::string& note : store_notes_) log_info(note);
  }

  // ---- the pieces, in their order ----

  [[nodiscard]] BoundVersionsOptions bound_options(Store& store) {
    return {.ownership = options_.ownership,
            .bound = [this](const CatalogVersion& version) { pins_->bound(version); },
            .unbound = [this](std::uint64_t version) { pins_->unbound(version); },
            .is_read =
                [&store](std::uint64_t version) {
                  return !nobody_reads(store.images().image_directory(version),
                                       &store.eviction().refused_leases());
                }};
  }

  [[nodiscard]] RuntimeOptions runtime_options() {
    return {.place = mount_point_,
            .guards = {&session_guard_, &*bound_},
            .sync = {.only = options_.only,
                     .with_absent = true,
                     .partial = true,
                     .head_start = !options_.writer && options_.only.empty(),
                     .checking = context_,
                     .checking_progress = progress_}};
  }

  void begin_pins() {
    Store& store = runtime_->store();
    hand_pins_.emplace(store.db());
    pins_.emplace([&sync = runtime_->sync()] { return sync.catalog(); }, *hand_pins_,
                  PassTimes::of(options_.pin_grace));
    pins_guard_.emplace(store.eviction(), [this](std::uint64_t v) { return pins_->keeps(v); });
  }

  /// The warmer's listener is called first.
  [[nodiscard]] CatalogListeners::Listening listen() {
    return runtime_->sync().listen(
        {.prepare = [this](const CatalogVersion& version) { bound_->bring(version.number); },
         .changed =
             [this] {
               bound_->notify();
               runtime_->hooks().notify();
             }});
  }

  void begin_files() {
    const kernels::SharedCoder& coder = runtime_->coder().coder();
    Store& store = runtime_->store();
    deltas_.emplace(store, runtime_->history(), DeltaFilesOptions{.coder = coder, .building = {}});
    // Only versions are made with it, and the sync that makes them ends before the hooks.
    store.wanted_deltas().set_engines([&hooks = runtime_->hooks()](std::uint64_t version) {
      return hooks.wanted_deltas(version);
    });
    remote_files_.emplace(store, runtime_->history(),
                          RemoteFilesOptions{.coder = coder, .retry = options_.serve.read_timeout});
  }

  void prove_bucket(const Context& context) {
    require_put_if_absent_once(runtime_->repository(), runtime_->store(), host_.bucket.endpoint_url,
                               context);
  }

  /// If the bucket cannot be tested now, it is tested before the first publish.
  void prove_bucket_now() {
    try {
      prove_bucket(context_.within(kOpenTimeout));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported || error.code() == ErrorCode::cancelled) throw;
      log_warning(fmt::format("publishing is not possible now: {}", error.what()));
    }
  }

  void begin_writing() {
    prove_bucket_now();
    Store& store = runtime_->store();
    Sync& sync = runtime_->sync();
    staging_.emplace(
        store.db(), store.path() / "staging",
        StagingOptions{
            .make_room =
                [&store](std::uint64_t bytes) { store.evictor().evict_for_free_bytes(bytes); },
            .owner = staging_owner(),
            .mode = options_.writing.staging_mode,
            .has_room =
                [&store](std::uint64_t bytes) { return store.evictor().has_free_bytes(bytes); }});
    queue_.emplace(
        *staging_, store, runtime_->history(),
        QueueOptions{.rebase = options_.writing.rebase,
                     .include = options_.writing.include,
                     .snapshots = options_.writing.snapshots,
                     .part = options_.writing.part,
                     .part_wait = options_.writing.part_wait,
                     .coder = runtime_->coder().coder(),
                     .show = [&sync](std::uint64_t version) { sync.show(version); },
                     .holders = [this](const auto& files) { return describe_holders(files); },
                     .rebase_command = fmt::format("weightfs rebase {}", mount_point_.string()),
                     .prove = [this](const Context& context) { prove_bucket(context); },
                     .at = {}});
    fence_ = newest_seen();
    begin_skips();
  }

  /// Skip deltas are made beside the publishes, and never before one.
  void begin_skips() {
    const std::uint64_t history = host_.history;
    std::string off;
    if (history == 0) off = "--history 0: no older version can be made here";
    if (!options_.writing.skips) off = "--skips no";
    skips_.emplace(runtime_->store(), runtime_->history(),
                   SkipMakerOptions{
                       .off = off, .versions = history, .give_way = [this](const Context& context) {
                         wait_published(*queue_, context);
                       }});
    if (!off.empty()) log_info(fmt::format("skip deltas are not made: {}", off));
    const auto changed = [this] {
      skips_->wake();
      queue_->parent_arrived();
    };
    skips_listening_ =
        runtime_->sync().listen({.changed = changed, .recorded = [this] { skips_->wake(); }});
    skips_->start();
    skips_->wake();
  }

  /// The mounting user, or --uid and --gid.
  [[nodiscard]] Caller staging_owner() const {
    const Ownership& given = options_.ownership;
    return {given.uid != 0 ? given.uid : ::geteuid(), given.gid != 0 ? given.gid : ::getegid()};
  }

  /// See QueueOptions::holders.
  [[nodiscard]] std::string describe_holders(const std::vector<StagedFile>& files) const {
    std::vector<Inode> inodes;
    for (const StagedFile& file : files) inodes.push_back(make_staging_inode(file.id));
    std::string text;
    for (const Holder& holder : find_writers(device_, inodes)) {
      text += fmt::format("{}pid {} ({})", text.empty() ? "" : ", ", holder.pid, holder.command);
    }
    return text;
  }

  [[nodiscard]] Writing writing() {
    return queue_ ? Writing{.staging = &*staging_, .queue = &*queue_} : Writing{};
  }

  void begin_control() {
    Sync& sync = runtime_->sync();
    ControlHandlers handlers = make_control_handlers(sync, writing(), *pins_);
    handlers.diff = diff_handler(runtime_->store(), runtime_->history());
    control_.emplace(runtime_->store().path(), sync, handlers);
    if (host_.announce.is_on) make_announcer();
    if (!queue_) return;
    if (options_.writing.gc.is_on) begin_gc();
    follower_ = std::jthread([this](const std::stop_token& stop) { follow_queue(stop); });
  }

  /// Notifies clients at the socket when the queue has changed.
  void follow_queue(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      queue_->wait_change(Clock::now() + kFollowInterval, stop);
      control_->notify();
      if (gc_) gc_->wake();
    }
  }

  /// From here on there is all that they are taken from.
  void begin_metrics() {
    if (!listener_) return;
    log_info(fmt::format("metrics at {}", to_string(listener_->address())));
    metrics_.emplace(*listener_, [this] {
      return metrics_text(state(), runtime_->counters(), std::time(nullptr));
    });
  }

  void begin_gc() {
    History& history = runtime_->history();
    SkipWork skips;
    if (skips_->status().off.empty()) {
      skips.make = [this](const VersionPair& versions, const Context& context) {
        return make_skip_in_turn(*queue_, runtime_->store(), runtime_->history(), versions,
                                 context);
      };
    }
    skips.check = [&history](const SkipRecord& record, const Context& context) {
      (void)check_skip(history, record, context);
    };
    gc_.emplace(runtime_->repository(), options_.writing.gc,
                BackgroundGc::Sources{.newest = [this] { return runtime_->sync().newest(); },
                                      .is_busy = [this] { return is_publishing(*queue_); },
                                      .skips = std::move(skips)});
  }

  // ---- serving ----

  void serve() {
    serve_mounted();
    if (announcer_) announcer_->stop();  // waits for the bucket, and nobody for the mount by now
  }

  /// Returns when the mount is gone.
  void serve_mounted() {
    const Sync& sync = runtime_->sync();
    const Tree tree([&sync] { return sync.catalog(); }, options_.ownership, options_.writer,
                    [this](const DeltaId& id) { return deltas_->find_facts(id); });
    prepare();  // again: minutes may have passed
    if (!hidden_note_.empty()) log_warning(hidden_note_);
    FuseSession session(tree, session_options());
    const MountRecordFile record(make_record());
    device_ = session.device();
    pins_->set_device(device_);
    const GuardedSession guarded(session_guard_, session);
    if (queue_) queue_->start(fence_);
    serve_until_end(session);
    metrics_.reset();  // what the session has counted goes with it, and no counter goes back
  }

  [[nodiscard]] MountRecord make_record() const {
    MountRecord record{mount_point_, getpid(), command_again(host_.words), control_->path(),
                       host_.words};
    record_environment(record);
    return record;
  }

  [[nodiscard]] FuseSessionOptions session_options() {
    return {.mount_point = mount_point_,
            .source = host_.url,
            .serve = options_.serve.how,
            .store = runtime_->store().path(),
            .status = [this] { return status_text(state(), std::time(nullptr)); },
            .writing = writing(),
            .pins = &*pins_,
            .deltas = &*deltas_,
            .advice = [this] { return advice(); },
            .health = [this] { return health_file_text(state(), std::time(nullptr)); },
            .sync = &runtime_->sync(),
            .remote_files = &*remote_files_,
            .read_timeout = options_.serve.read_timeout,
            .may_bind = !keeps_in_memory()};
  }

  /// Returns: what the service manager is told, as long as there is the session.
  std::unique_ptr<ServiceReport> begin_serving(const FuseSession& session) {
    if (events_.ready) events_.ready(describe(session));
    auto report = std::make_unique<ServiceReport>(
        notify_, [this] { return health_text(troubles_of(state(), std::time(nullptr))); },
        [this] { return liveness_of(mount_point_) == Liveness::alive; });
    runtime_->hooks().start([this] { return newest_shown(); });
    if (announcer_) announcer_->start();
    return report;
  }

  /// Made before the session, whose threads read its state.
  void make_announcer() {
    Sync& sync = runtime_->sync();
    announcer_.emplace(
        runtime_->repository(), runtime_->store().db(), host_.announce,
        Announcer::Sources{.shown = [&sync] { return sync.catalog()->latest; },
                           .hooks = [&hooks = runtime_->hooks()] { return hooks.status(); },
                           .state = [this] { return state(); }});
    announcing_ = sync.listen({.changed = [this] { announcer_->wake(); }});
  }

  /// The mount is served as long as anything may look at it: hooks, the report, and who binds, for
  /// bind mounts are made through it.
  void serve_until_end(FuseSession& session) {
    if (session.wants_binds()) pins_->set_bind_mode();
    std::counting_semaphore<2> ends(0);  // released by a signal and by the session
    const std::stop_callback on_stop(context_.stop, [&ends] { ends.release(); });
    const SessionThread server(session, [&] {
      run_session(session);
      ends.release();
    });
    std::optional<BoundRun> binding;
    if (session.wants_binds()) binding.emplace(*bound_, *session.mount(), runtime_->sync());
    auto report = begin_serving(session);
    ends.acquire();
    signals_.request_stop();  // starts the grace period
    report.reset();
    runtime_->hooks().stop();
  }

  /// The newest version when the mount begins: from then on nobody else may publish.  A store with
  /// a version is shown before the bucket has been polled, so the bucket is polled here.
  std::uint64_t newest_seen() {
    const std::uint64_t known =
        std::max(runtime_->sync().newest(), runtime_->store().manifests().newest().version);
    try {
      return runtime_->history().refresh(known, context_.within(kOpenTimeout));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) throw;
      log_warning(fmt::format("assuming that version {} is the newest: {}", known, error.what()));
      return known;
    }
  }

  /// For hooks: complete versions only.
  [[nodiscard]] Hooks::Shown newest_shown() const {
    const auto catalog = runtime_->sync().catalog();
    const auto found = catalog->versions.find(catalog->latest);
    if (found == catalog->versions.end()) return {};
    return runtime_->shown(catalog->latest, found->second->tag);
  }

  void run_session(FuseSession& session) const {
    try {
      session.run();
      log_info(context_.stop.stop_requested() ? "stopped by a signal" : "unmounted");
    } catch (const std::exception& error) {
      log_error(fmt::format("the mount ends: {}", error.what()));
    }
  }

  [[nodiscard]] MountReady describe(const FuseSession& session) const {
    const ServingState serving = session.serving();
    const Sync& sync = runtime_->sync();
    const SyncStatus status = sync.status();
    return {.mount_point = mount_point_,
            .version = status.latest,
            .serve = serving.mode,
            .why = serving.why,
            .store = runtime_->store().path(),
            .log = log_path_,
            .pid = getpid(),
            .offline = status.offline_since != 0,
            .is_partial = sync.find_partial(status.latest) != nullptr,
            .gpu_failure = runtime_->coder().state().gpu_failure,
            .notes = notes()};
  }

  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> notes = store_notes_;
    if (!hidden_note_.empty()) notes.push_back(hidden_note_);
    return notes;
  }

  // ---- the status ----

  [[nodiscard]] WriterState writer_state() const {
    return {.rebase = options_.writing.rebase,
            .include = options_.writing.include,
            .part = options_.writing.part,
            .queue = queue_->list(),
            .staging = staging_->summary(),
            .early = queue_->early(),
            .published = queue_->published(),
            .ended = queue_->ended(),
            .skips = skips_->status(),
            .gc = gc_ ? std::optional(gc_->state()) : std::nullopt};
  }

  [[nodiscard]] ServingState serving() const {
    ServingState state = session_guard_.serving();
    state.bound = bound_->list();
    return state;
  }

  [[nodiscard]] std::string advice() const {
    return advice_text(advise(runtime_->cache(), session_guard_.serving().mode));
  }

  /// `latest`: as the status says.
  [[nodiscard]] KeptState kept_state(const Catalog& catalog, std::uint64_t latest) const {
    KeptState state{.only = options_.only, .made_bytes = remote_files_->made_bytes()};
    if (const auto version = catalog.find(latest)) {
      state.version_bytes = version->size_bytes();
      state.kept_bytes = version->kept_bytes();
      state.lacks_files = version->lacks_files;
    }
    return state;
  }

  [[nodiscard]] DaemonState state() const {
    DaemonState state = runtime_->state();
    state.log = log_path_;
    state.control = control_->path();
    if (listener_) state.metrics = to_string(listener_->address());
    state.serving = serving();
    state.pins = pins_->list();
    state.queued = queued_;
    if (queue_) state.writer = writer_state();
    if (announcer_) state.announce = announcer_->state();
    const auto catalog = runtime_->sync().catalog();
    for (const auto& [number, version] : catalog->versions) state.versions.push_back(number);
    state.kept = kept_state(*catalog, state.sync.latest);
    return state;
  }

  const HostOptions& host_;
  const MountOptions& options_;
  const DaemonEvents& events_;
  const Progress& progress_;
  const NotifySocket notify_;
  StopSignals signals_{kEndGrace};
  const Context context_{.stop = signals_.token()};
  std::filesystem::path mount_point_;
  std::filesystem::path log_path_;        // empty: stderr
  std::vector<std::string> store_notes_;  // as OpenedStore::notes
  std::string hidden_note_;               // what the mount hides; empty: nothing
  std::vector<std::string> queued_;       // a reader's: hand-overs left by a writer's mount
  std::uint64_t fence_ = 0;               // the queue's, which starts once mounted
  dev_t device_ = 0;                      // the mount's; set before any hand-over

  // Made by run(), in this order.
  std::optional<MetricsListener> listener_;  // with --metrics
  SessionGuard session_guard_;
  std::optional<BoundVersions> bound_;
  std::optional<Runtime> runtime_;
  std::optional<ManualPins> hand_pins_;
  std::optional<LoaderPins> pins_;
  std::optional<KeepingGuard> pins_guard_;
  std::optional<DeltaFiles> deltas_;
  std::optional<RemoteFiles> remote_files_;
  std::optional<Staging> staging_;  // a writer's, like the queue
  std::optional<PublishQueue> queue_;
  std::optional<SkipMaker> skips_;  // a writer's
  CatalogListeners::Listening skips_listening_;
  std::optional<ControlSocket> control_;
  std::optional<BackgroundGc> gc_;      // a writer's with --gc
  std::jthread follower_;               // follows the queue
  std::optional<Announcer> announcer_;  // a reader's with --announce
  CatalogListeners::Listening announcing_;
  std::optional<MetricsServer> metrics_;  // ends first: it asks all others
};

}  // namespace

void run_daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
                const Progress& progress) {
  std::signal(SIGPIPE, SIG_IGN);  // the starting process may be gone before the daemon is ready
  raise_descriptor_limit();
  Daemon(host, options, events, progress).run();
}

}  // namespace weightfs::fs
