// What lives how long, from the outside in:
//
//     signals > warmer > repository > directory > store > history > hooks > sync >
//         warmer's thread > control > threads of hooks
//
// The caller's thread brings into the directory what the sync has brought into the store, tells
// hooks and who waits at the control socket, and writes the status.  Hooks hold versions as long as
// there is a sync that asks them; their threads look at the directory and the sync.

#include "fs/directory/sync_service.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "fs/base/coder_choice.hpp"
#include "fs/base/descriptors.hpp"
#include "fs/base/stop_signals.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/cache/warmer.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/control/path.hpp"
#include "fs/control/server.hpp"
#include "fs/control/wait_condition.hpp"
#include "fs/directory/sync_directory.hpp"
#include "fs/hooks/hooks.hpp"
#include "fs/runtime/keeping_guard.hpp"
#include "fs/runtime/locate_repository.hpp"
#include "fs/runtime/status.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/bucket/bucket.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/sync/sync.hpp"
#include "store/sync/version_word.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kSyncEndGrace{8};
constexpr std::chrono::seconds kSyncLook{1};     // at the latest, whether there is news
constexpr std::chrono::seconds kSyncRestate{5};  // at the latest, the status is written again

/// Says that something has changed, from any thread.
class Bell {
 public:
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_all();
  }
  /// Until it was rung, or a stop, or `limit` has passed.  Returns: whether it was rung.
  bool wait(const std::stop_token& stop, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, limit, [this] { return rung_; });
    return std::exchange(rung_, false);
  }

 private:
  std::mutex mutex_;  // guards the next one
  bool rung_ = false;
  std::condition_variable_any changed_;
};

/// A directory, its store and its bucket are three places.
void check_sync_places(const std::filesystem::path& directory, const std::filesystem::path& store,
                       const std::string& url) {
  const std::filesystem::path bucket = directory_of_url(url);
  const std::filesystem::path& outer = is_inside(directory, store) ? store : bucket;
  if (outer.empty() || !is_inside(directory, outer)) return;
  throw Error(ErrorCode::invalid, fmt::format("{} lies inside {}; choose another directory",
                                              directory.string(), outer.string()));
}

/// Hooks at work.
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
    log_to_stderr(options_.once ? LogLevel::warning : LogLevel::info);
    const auto store_path =
        host_.store.empty() ? options_.directory / ".weightfs/store" : host_.store;
    check_sync_places(options_.directory, store_path, host_.url);
    Places places = find_places({host_.url, host_.bucket, store_path}, context_);
    repository_ = std::move(places.repository);
    directory_ = std::make_unique<SyncDirectory>(
        options_.directory, repository_->id(), host_.url, host_.follow.what,
        [this](std::uint64_t version) { return hooks_ != nullptr && hooks_->holds(version); },
        [this](std::uint64_t version) { return store_->image_directory(version); });
    store_ =
        open_store({places.store, repository_->id(), host_.url, host_.limits, directory_->path()})
            .store;
    if (!options_.once) write_sync_command(directory_->path(), host_.command);
    coder_.emplace(host_.gpu);
    History history(*repository_, store_.get());
    Hooks hooks({host_.hooks, host_.url, directory_->path()}, store_->db());
    hooks_ = &hooks;
    Eviction& eviction = store_->eviction();
    const KeepingGuard hooks_guard(eviction, [&](std::uint64_t v) { return hooks.holds(v); });
    const auto guarding = eviction.add_guard(*directory_);
    Sync sync(*store_, history,
              {.follow = host_.follow,
               .prepare =
                   [this](const CatalogVersion& version) {
                     warmer_.prepare(warm_target(version), kPrepareLimit);
                   },
               .coder = coder_->coder(),
               .changed =
                   [this] {
                     bell_.ring();
                     warmer_.notify();
                   },
               .tags = !options_.once});
    const Warmer::Run warming(
        warmer_, [&sync] { return warm_target(*sync.catalog()); }, !options_.once);
    options_.once ? run_once(sync, history) : follow(sync);
  }

 private:
  /// What could be brought in is shown, also if it is not all.  A round takes the versions before a
  /// damaged one for all there is; only the next one meets the damage.
  void run_once(Sync& sync, History& history) {
    std::optional<Error> error;
    try {
      sync.run_once(context_, progress_);
      sync.run_once(context_, progress_);
      require_followed(sync.status(), history);
    } catch (const Error& thrown) {
      error = thrown;
    }
    show(sync);
    write_status(sync);
    if (error) throw Error(*error);
    tell_ready(sync);
  }

  /// Nobody waits for what does not exist, unless nothing does yet.
  void require_followed(const SyncStatus& status, History& history) const {
    if (status.followed > 0 || status.newest == 0) return;
    static_cast<void>(history.get(find_version(host_.follow.what, history, context_), context_));
  }

  void follow(Sync& sync) {
    log_info(fmt::format("weightfs {} pid {} keeps {} up to date with {}", WEIGHTFS_VERSION,
                         getpid(), directory_->path().string(), host_.url));
    show(sync);  // what the store has, before the bucket was asked
    sync.start();
    sync.wait_ready(context_, progress_);
    bell_.wait(context_.stop, std::chrono::milliseconds(0));
    show(sync);
    const auto control = make_control();
    write_status(sync);
    tell_ready(sync);
    const UseOfHooks use(*hooks_, [this, &sync] { return newest_shown(sync); });
    while (!context_.stop.stop_requested()) {
      const bool rung = bell_.wait(context_.stop, kSyncLook);
      if ((rung || !error_.empty()) && !context_.stop.stop_requested()) try_show(sync);
      if (control) control->notify();
      if (!context_.stop.stop_requested()) try_write_status(sync);
    }
    log_info("stopped by a signal");
  }

  void show(const Sync& sync) {
    auto catalog = directory_->show([&sync] { return sync.catalog(); }, context_);
    {
      const std::lock_guard lock(mutex_);
      shown_ = std::move(catalog);
    }
    hooks_->notify();
  }

  /// What cannot be shown now is tried again; what is there stays.
  void try_show(const Sync& sync) {
    try {
      show(sync);
      error_.clear();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) return;
      if (error_ != error.what()) log_warning(fmt::format("sync: {}", error.what()));
      error_ = error.what();
      error_code_ = to_string(error.code());
    }
  }

  /// Without the socket nobody can wait, but everything else works.
  [[nodiscard]] std::unique_ptr<ControlServer> make_control() {
    ControlHandlers handlers;
    handlers.wait = [this](const WaitFor& what, ControlHandlers::WaitState& state) {
      return find_wait_end(what, {{}, {}, shown(), host_.follow.what}, state);
    };
    for (const auto& path : {control_path(store_->path()), store_->path() / "control.sock"}) {
      try {
        auto control = std::make_unique<ControlServer>(path, handlers);
        control_socket_ = path;
        return control;
      } catch (const Error& error) {
        log_warning(
            fmt::format("no control socket, `weightfs wait` does not work: {}", error.what()));
      }
    }
    return nullptr;
  }

  [[nodiscard]] std::shared_ptr<const Catalog> shown() const {
    const std::lock_guard lock(mutex_);
    return shown_;
  }

  /// For hooks.  What the link says, not the catalog that is on its way: an engine is told what is
  /// in place.
  [[nodiscard]] Hooks::Shown newest_shown(const Sync& sync) const {
    const std::uint64_t version = directory_->latest();
    if (version == 0) return {};
    const SyncStatus status = sync.status();
    const bool is_newest = status.state == SyncStatus::State::current && status.followed <= version;
    return {.version = version, .tag = directory_->tag(version), .is_newest = is_newest};
  }

  void tell_ready(const Sync& sync) const {
    if (!ready_) return;
    const SyncStatus status = sync.status();
    ready_({.directory = directory_->path(),
            .version = directory_->latest(),
            .waiting = status.followed == 0,
            .store = store_->path(),
            .pid = getpid(),
            .offline = status.offline_since != 0,
            .gpu_failure = coder_->state().gpu_failure});
  }

  // ---- the status ----

  [[nodiscard]] DaemonState state(const Sync& sync) const {
    DaemonState state{.url = host_.url,
                      .bucket = host_.bucket,
                      .repository = repository_->id(),
                      .mount_point = directory_->path(),
                      .store = store_->path(),
                      .log = {},
                      .control = control_socket_,
                      .pid = getpid(),
                      .versions = directory_->versions(),
                      .sync = sync.status(),
                      .serving = {},
                      .coder = coder_->state(),
                      .hooks = hooks_->status(),
                      .cache = warmer_.state()};
    state.sync.latest = directory_->latest();
    state.serving.mode = "directory";
    if (directory_->has_copies()) {
      state.serving.why = "files are copied: the store lies where they cannot be linked from";
    }
    if (!error_.empty()) {
      state.sync.error = error_;
      state.sync.error_code = error_code_;
      state.sync.error_time = std::time(nullptr);
    }
    return state;
  }

  /// Written when something else than a time has changed, and now and then.
  void write_status(const Sync& sync) {
    const DaemonState now = state(sync);
    DaemonState timeless = now;
    timeless.sync.checked_time = timeless.sync.error_time = 0;
    for (HookStatus& hook : timeless.hooks) hook.error_time = 0;
    timeless.cache.room.reset();
    std::string compared = status_text(timeless, timeless.sync.newest_time);
    if (compared == stated_ && Clock::now() < restate_at_) return;
    directory_->write_status(status_text(now, std::time(nullptr)));
    directory_->write_advice(advice_text(advise(now.cache, now.serving.mode)));
    stated_ = std::move(compared);
    restate_at_ = Clock::now() + kSyncRestate;
  }

  void try_write_status(const Sync& sync) {
    try {
      write_status(sync);
    } catch (const Error& error) {
      if (status_error_ != error.what()) log_warning(fmt::format("status: {}", error.what()));
      status_error_ = error.what();
    }
  }

  const HostOptions& host_;
  const SyncServiceOptions& options_;
  const std::function<void(const SyncReady&)>& ready_;
  const Progress& progress_;
  StopSignals signals_{kSyncEndGrace};
  const Context context_{.stop = signals_.token()};
  Bell bell_;
  Warmer warmer_{{.warm = host_.warm}};
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<SyncDirectory> directory_;
  std::unique_ptr<Store> store_;
  Hooks* hooks_ = nullptr;  // as long as run()
  std::optional<CoderChoice> coder_;
  std::filesystem::path control_socket_;  // empty: there is none
  std::string error_, error_code_;        // of the directory; empty: none
  std::string stated_, status_error_;
  Clock::time_point restate_at_{};

  mutable std::mutex mutex_;  // guards the next one
  std::shared_ptr<const Catalog> shown_ = std::make_shared<const Catalog>();
};

}  // namespace

void run_sync_service(const HostOptions& host, const SyncServiceOptions& options,
                      const std::function<void(const SyncReady&)>& ready,
                      const Progress& progress) {
  std::signal(SIGPIPE, SIG_IGN);  // who reads the log may be gone
  raise_descriptor_limit();
  SyncService(host, options, ready, progress).run();
}

}  // namespace weightfs::fs
