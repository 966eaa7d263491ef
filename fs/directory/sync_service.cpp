// Lifetimes, outermost first:
//
//     signals > directory > runtime (fs/runtime/runtime.hpp) > announcer > control > threads of
//         hooks
//
// The caller's thread brings into the directory what the sync has brought into the store, notifies
// hooks and clients at the control socket, and writes the status; while it brings something, which
// may take long, another thread writes it: a status that is old means that this process hangs.  The
// hooks' threads read the directory and the state of the sync, and the announcer's thread the state
// of all of it.

#include "fs/directory/sync_service.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "fs/base/descriptors.hpp"
#include "fs/base/notify_socket.hpp"
#include "fs/base/stop_signals.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/control/server.hpp"
#include "fs/control/wait_condition.hpp"
#include "fs/directory/sync_directory.hpp"
#include "fs/hooks/hooks.hpp"
#include "fs/metrics/metrics_server.hpp"
#include "fs/runtime/announcer.hpp"
#include "fs/runtime/control_socket.hpp"
#include "fs/runtime/daemon_metrics.hpp"
#include "fs/runtime/health.hpp"
#include "fs/runtime/locate_repository.hpp"
#include "fs/runtime/runtime.hpp"
#include "fs/runtime/service_report.hpp"
#include "fs/runtime/status.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/version_word.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kSyncEndGrace{8};
constexpr std::chrono::seconds kSyncLook{1};  // the longest time between checks for changes
// The longest time between writes of the status; who looks takes an old one for a hang
// (kStatedLimit of fs/commands/status.cpp).
constexpr std::chrono::seconds kSyncRestate{3};

/// Signals a change, from any thread.
class Bell {
 public:
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_all();
  }
  /// Waits until it is rung, or for a stop, or until `limit` has passed.
  /// Returns: whether it was rung.
  bool wait(const std::stop_token& stop, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, limit, [this] { return rung_; });
    return std::exchange(rung_, false);
  }

 private:
  RankedMutex mutex_{LockRank::leaf, "Bell::mutex_"};  // guards the field below
  bool rung_ = false;
  std::condition_variable_any changed_;
};

/// Calls something every kSyncLook, from a thread of its own, as long as it lives.
class Pulse {
 public:
  explicit Pulse(std::function<void()> beat)
      : beat_(std::move(beat)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      never_.wait(stop, kSyncLook);
      if (!stop.stop_requested()) beat_();
    }
  }

  const std::function<void()> beat_;
  Bell never_;
  std::jthread thread_;  // last: stopped first
};

/// The directory, its store and its bucket must be separate.
void check_sync_places(const std::filesystem::path& directory, const std::filesystem::path& store,
                       const std::string& url) {
  const std::filesystem::path bucket = directory_of_url(url);
  const std::filesystem::path& outer = is_inside(directory, store) ? store : bucket;
  if (outer.empty() || !is_inside(directory, outer)) return;
  throw Error(ErrorCode::invalid, fmt::format("{} lies inside {}; choose another directory",
                                              directory.string(), outer.string()));
}

/// Runs the hooks as long as it lives.
class UseOfHooks {
 public:
  UseOfHooks(Hooks& hooks, std::function<Hooks::Shown()> find_newest) : hooks_(hooks) {
    hooks_.start(std::move(find_newest));
  }
  ~UseOfHooks() { hooks_.stop(); }
  UseOfHooks(const UseOfHooks&) = delete;
  UseOfHooks& operator=(const UseOfHooks&) = delete;

 private:
  Hooks& hooks_;
};

class SyncService {
 public:
  SyncService(const HostOptions& host, const SyncServiceOptions& options,
              const std::function<void(const SyncReady&)>& ready, const Progress& progress)
      : host_(host), options_(options), ready_(ready), progress_(progress) {}

  void run() {
    LogOptions log = host_.log;
    if (options_.once) log.least = std::max(log.least, LogLevel::warning);
    log_to_stderr(log);
    if (host_.metrics) listener_.emplace(*host_.metrics);
    const auto store_path =
        host_.store.empty() ? options_.directory / ".weightfs/store" : host_.store;
    check_sync_places(options_.directory, store_path, host_.url);
    Places places = find_places({host_.url, host_.bucket, store_path}, context_);
    const std::string id = places.repository->id();
    directory_.emplace(
        options_.directory, id, host_.url, host_.follow.what,
        [this](std::uint64_t version) { return runtime_ && runtime_->hooks().holds(version); },
        [this](std::uint64_t version) {
          return runtime_->store().images().image_directory(version);
        });
    auto store = open_store({places.store, id, host_.url, host_.limits, directory_->path()}).store;
    if (!options_.once) write_sync_command(directory_->path(), command_again(host_.words));
    runtime_ = std::make_unique<Runtime>(host_, std::move(places.repository), std::move(store),
                                         RuntimeOptions{.place = directory_->path(),
                                                        .warms = !options_.once,
                                                        .guards = {&*directory_},
                                                        .sync = {.tags = !options_.once,
                                                                 .head_start = !options_.once,
                                                                 .checking = context_,
                                                                 .checking_progress = progress_}});
    options_.once ? run_once() : follow();
  }

 private:
  /// Shows what could be fetched, even if that is not all.  A round regards the versions before a
  /// damaged one as all there is; only the next round meets the damage.
  void run_once() {
    std::optional<Error> error;
    stating()();
    std::optional<Pulse> pulse(std::in_place, stating());
    try {
      Sync& sync = runtime_->sync();
      sync.run_once(context_, progress_);
      sync.run_once(context_, progress_);
      require_followed(sync.status());
    } catch (const Error& thrown) {
      error = thrown;
    }
    try {
      show();
    } catch (const Error& thrown) {
      if (!error) error = thrown;
    }
    runtime_->sync().sync_images();
    record_noted();
    pulse.reset();
    try_write_status([this] { return state(); });
    if (error) throw Error(*error);
    tell_ready();
  }

  /// The history is worth no failure.
  void record_noted() {
    try {
      runtime_->sync().record_noted(context_);
    } catch (const Error& failure) {
      if (failure.code() == ErrorCode::cancelled) return;
      log_warning(fmt::format("the history is not kept: {}", failure.what()));
    }
  }

  /// Throws if what is followed does not exist, unless the repository is empty.
  void require_followed(const SyncStatus& status) const {
    if (status.followed > 0 || status.newest == 0) return;
    History& history = runtime_->history();
    static_cast<void>(history.get(find_version(host_.follow.what, history, context_), context_));
  }

  void follow() {
    log_info(fmt::format("weightfs {} pid {} keeps {} up to date with {}", WEIGHTFS_VERSION,
                         getpid(), directory_->path().string(), host_.url));
    Sync& sync = runtime_->sync();
    const auto listening = sync.listen({.changed = [this] { bell_.ring(); }});
    if (host_.announce.is_on) make_announcer();
    show_first();
    ControlSocket control(runtime_->store().path(), sync, control_handlers());
    {
      const std::lock_guard lock(mutex_);
      control_socket_ = control.path();
    }
    try_write_status([this] { return state(); });
    tell_ready();
    const ServiceReport report(
        notify_, [this] { return health(); },
        [this] {
          (void)runtime_->sync().status();  // waits for ever if a thread holds its lock for ever
          return true;
        });
    const UseOfHooks use(runtime_->hooks(), [this] { return newest_shown(); });
    if (announcer_) announcer_->start();
    while (!context_.stop.stop_requested()) {
      const bool rung = bell_.wait(context_.stop, kSyncLook);
      if ((rung || !error_.empty()) && !context_.stop.stop_requested()) try_show();
      control.notify();
      if (!context_.stop.stop_requested()) try_write_status([this] { return state(); });
    }
    log_info("stopped by a signal");
    if (announcer_) announcer_->stop();
  }

  /// Returns when there is something to show, or nothing to wait for.
  void show_first() {
    stating()();  // that of the process before is old
    const Pulse pulse(stating());
    show_latest();  // what the store has, before the bucket is polled
    begin_metrics();
    Sync& sync = runtime_->sync();
    sync.start();
    sync.wait_ready(context_, progress_);
    bell_.wait(context_.stop, std::chrono::milliseconds(0));
    show_latest();
  }

  /// Before the thread of the metrics begins, which asks it.
  void make_announcer() {
    announcer_.emplace(
        runtime_->repository(), runtime_->store().db(), host_.announce,
        Announcer::Sources{.shown = [this] { return directory_->latest(); },
                           .hooks = [&hooks = runtime_->hooks()] { return hooks.status(); },
                           .state = [this] { return shown_state(); }});  // also while it is busy
  }

  /// The first version may take long to fetch: that is shown.
  void begin_metrics() {
    if (!listener_) return;
    log_info(fmt::format("metrics at {}", to_string(listener_->address())));
    metrics_.emplace(*listener_, [this] {
      return metrics_text(shown_state(), runtime_->counters(), std::time(nullptr));
    });
  }

  /// Returns: the error of a version other than `latest`.
  std::optional<Error> show_what_can_be() {
    auto shown = directory_->show([this] { return runtime_->sync().catalog(); }, context_);
    {
      const std::lock_guard lock(mutex_);
      shown_ = std::move(shown.catalog);
    }
    runtime_->hooks().notify();
    if (announcer_) announcer_->wake();
    return shown.error;
  }

  void show() {
    if (const auto error = show_what_can_be()) throw Error(*error);
  }

  /// At the start only an error of `latest` ends it; others are retried.
  void show_latest() {
    if (const auto error = show_what_can_be()) return note_error(*error);
    set_error("", "");
  }

  /// If the directory cannot be updated now, that is retried; what is there stays.
  void try_show() {
    try {
      const Pulse pulse(stating());
      show();
      set_error("", "");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::cancelled) note_error(error);
    } catch (const std::exception& error) {  // no memory, or no thread
      note_error(Error(ErrorCode::io, error.what()));
    }
  }

  void note_error(const Error& error) {
    if (error_ != error.what()) log_warning(fmt::format("sync: {}", error.what()));
    set_error(error.what(), to_string(error.code()));
  }

  void set_error(std::string_view message, std::string_view code) {
    const std::lock_guard lock(mutex_);
    error_ = message;
    error_code_ = code;
  }

  [[nodiscard]] ControlHandlers control_handlers() {
    ControlHandlers handlers;
    handlers.wait = [this](const WaitFor& what, ControlHandlers::WaitState& state) {
      return find_wait_end(what, {{}, {}, shown(), host_.follow.what}, state);
    };
    handlers.diff = diff_handler(runtime_->store(), runtime_->history());
    return handlers;
  }

  [[nodiscard]] std::shared_ptr<const Catalog> shown() const {
    const std::lock_guard lock(mutex_);
    return shown_;
  }

  /// For hooks.  Reads the link, not the new catalog: an engine is told what is in place.
  [[nodiscard]] Hooks::Shown newest_shown() const {
    const std::uint64_t version = directory_->latest();
    if (version == 0) return {};
    return runtime_->shown(version, directory_->tag(version));
  }

  void tell_ready() const {
    if (!ready_) return;
    const SyncStatus status = runtime_->sync().status();
    ready_({.directory = directory_->path(),
            .version = directory_->latest(),
            .waiting = status.followed == 0,
            .store = runtime_->store().path(),
            .pid = getpid(),
            .offline = status.offline_since != 0,
            .gpu_failure = runtime_->coder().state().gpu_failure});
  }

  // ---- the status ----

  [[nodiscard]] DaemonState state() const {
    DaemonState state = shown_state();
    state.versions = directory_->versions();
    if (directory_->has_copies()) {
      state.serving.why = "files are copied: they cannot be hard-linked from the store";
    }
    return state;
  }

  /// Without what the directory only says when no version is brought into it; from any thread.
  [[nodiscard]] DaemonState shown_state() const {
    DaemonState state = runtime_->state();
    if (listener_) state.metrics = to_string(listener_->address());
    const std::uint64_t latest = directory_->latest();
    state.versions = versions_with(latest);
    state.sync.latest = latest;
    state.sync.behind_since = behind_since(latest);
    state.serving.mode = "directory";
    if (state.refused_leases.empty()) state.refused_leases = directory_->refused_leases();
    if (announcer_) state.announce = announcer_->state();
    const std::lock_guard lock(mutex_);
    state.control = control_socket_;
    if (!error_.empty()) {
      state.sync.error = error_;
      state.sync.error_code = error_code_;
      state.sync.error_time = std::time(nullptr);
    }
    return state;
  }

  /// What is shown.  `latest` is whole there, also if it is not in the store (a lost one).
  [[nodiscard]] std::vector<std::uint64_t> versions_with(std::uint64_t latest) const {
    const auto catalog = shown();  // show() may replace it meanwhile
    std::set<std::uint64_t> versions;
    for (const auto& [number, version] : catalog->versions) versions.insert(number);
    if (latest != 0) versions.insert(latest);
    return {versions.begin(), versions.end()};
  }

  /// The first answer for a `latest` counts: Sync forgets when it has seen a version, as many come.
  [[nodiscard]] std::int64_t behind_since(std::uint64_t latest) const {
    const std::int64_t since = runtime_->sync().behind_since(latest);
    const std::lock_guard lock(mutex_);
    if (behind_.latest != latest || behind_.since == 0) behind_ = {latest, since};
    return behind_.since;
  }

  /// For a Pulse, while the caller's thread is busy: only one of the two writes at a time.
  [[nodiscard]] std::function<void()> stating() {
    return [this] { try_write_status([this] { return shown_state(); }); };
  }

  /// Written when anything but a time has changed, and now and then.
  void write_status(const DaemonState& now) {
    {
      const std::lock_guard lock(mutex_);
      health_ = health_text(troubles_of(now, std::time(nullptr)));
    }
    DaemonState timeless = now;
    timeless.sync.checked_time = timeless.sync.error_time = 0;
    for (HookStatus& hook : timeless.hooks) hook.error_time = 0;
    timeless.cache.room.reset();
    if (timeless.announce) timeless.announce = AnnounceState{.error = timeless.announce->error};
    std::string compared = status_text(timeless, timeless.sync.newest_time);
    if (compared == stated_ && Clock::now() < restate_at_) return;
    directory_->write_status(status_text(now, std::time(nullptr)));
    directory_->write_health(health_file_text(now, std::time(nullptr)));
    directory_->write_advice(advice_text(advise(now.cache, now.serving.mode)));
    stated_ = std::move(compared);
    restate_at_ = Clock::now() + kSyncRestate;
  }

  /// For the service report, whose thread must not wait for a directory that is being filled.
  [[nodiscard]] std::string health() const {
    const std::lock_guard lock(mutex_);
    return health_;
  }

  void try_write_status(const std::function<DaemonState()>& find_state) {
    try {
      write_status(find_state());
    } catch (const std::exception& error) {
      if (status_error_ != error.what()) log_warning(fmt::format("status: {}", error.what()));
      status_error_ = error.what();
      directory_->note_alive();
    }
  }

  const HostOptions& host_;
  const SyncServiceOptions& options_;
  const std::function<void(const SyncReady&)>& ready_;
  const Progress& progress_;
  const NotifySocket notify_;
  StopSignals signals_{kSyncEndGrace};
  const Context context_{.stop = signals_.token()};
  Bell bell_;
  std::optional<MetricsListener> listener_;  // with --metrics
  std::optional<SyncDirectory> directory_;
  std::unique_ptr<Runtime> runtime_;
  std::optional<Announcer> announcer_;  // with --announce
  std::string stated_, status_error_;   // of who writes the status: the caller's thread or a Pulse,
  Clock::time_point restate_at_{};      // and never both

  // Guards the fields below; the caller's thread, which alone changes all but `health_` and
  // `behind_`, reads without it.
  mutable RankedMutex mutex_{LockRank::leaf, "SyncService::mutex_"};
  std::filesystem::path control_socket_;  // empty: there is none
  std::string error_, error_code_;        // the directory's; empty: none
  std::string health_;
  mutable struct {
    std::uint64_t latest = 0;
    std::int64_t since = 0;  // 0: it is not known to be behind
  } behind_;
  std::shared_ptr<const Catalog> shown_ = std::make_shared<const Catalog>();
  std::optional<MetricsServer> metrics_;  // last: ended first
};

}  // namespace

void run_sync_service(const HostOptions& host, const SyncServiceOptions& options,
                      const std::function<void(const SyncReady&)>& ready,
                      const Progress& progress) {
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the log may be gone
  raise_descriptor_limit();
  SyncService(host, options, ready, progress).run();
}

}  // namespace weightfs::fs
