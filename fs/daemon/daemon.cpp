// What lives how long, from the outside in:
//
//     signals > repository > store > warmer > pins > history > hooks > sync > warmer's thread >
//         deltas > rest > (staging > queue) > control > tree > session > (bound versions) >
//         threads of hooks
//
// The session is unmounted first, so that no caller waits for what ends after it: not for a queue
// whose bucket hangs.  Staging and the queue are a writer's.  Hooks hold versions as long as there
// is a sync, and ask and tell while there is a session.  Bound versions are there in bind mode.

#include "fs/daemon/daemon.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>
#include <semaphore>
#include <shared_mutex>
#include <thread>

#include "fs/base/coder_choice.hpp"
#include "fs/base/descriptors.hpp"
#include "fs/base/stop_signals.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/cache/warmer.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/control/path.hpp"
#include "fs/daemon/bound_versions.hpp"
#include "fs/daemon/control_handlers.hpp"
#include "fs/fuse/session.hpp"
#include "fs/hooks/hooks.hpp"
#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_point.hpp"
#include "fs/passes/loader_pins.hpp"
#include "fs/passes/open_writers.hpp"
#include "fs/runtime/keeping_guard.hpp"
#include "fs/runtime/locate_repository.hpp"
#include "fs/runtime/status.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/bucket/bucket.hpp"
#include "store/handover/proven_bucket.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/inspect/delta_files.hpp"
#include "store/local/manual_pins.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/remote_files.hpp"
#include "store/os/lease.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/repository/probe.hpp"
#include "store/repository/repository.hpp"
#include "store/staging/staging.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kEndGrace = std::chrono::seconds(8);
constexpr auto kFollowInterval = std::chrono::milliseconds(500);

/// A daemon that reads through its own mount waits for itself.
void check_places(const std::filesystem::path& mount_point, const std::filesystem::path& store,
                  const std::string& url) {
  const auto refuse = [](const char* what, const std::filesystem::path& inner,
                         const std::filesystem::path& outer) {
    throw Error(ErrorCode::invalid, fmt::format("{} {} lies inside {}; choose another directory",
                                                what, inner.string(), outer.string()));
  };
  const std::filesystem::path bucket = directory_of_url(url);
  if (is_inside(store, mount_point)) refuse("the store", store, mount_point);
  if (is_inside(mount_point, store)) refuse("the mount point", mount_point, store);
  if (!bucket.empty() && is_inside(bucket, mount_point)) refuse("the bucket", bucket, mount_point);
}

// ---- the session, as other threads see it ----

/// The eviction asks the session who reads, but is there before it and after it.  What is open is
/// kept, not only refused when it is hidden: it is not to vanish for the moment that a look at its
/// readers takes.
class SessionLink final : public VersionGuard {
 public:
  void begin(const FuseSession& session) {
    const std::lock_guard lock(mutex_);
    session_ = &session;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    session_ = nullptr;
    ended_ = true;
  }

  [[nodiscard]] bool keeps(std::uint64_t version) override { return !is_unused(version); }
  [[nodiscard]] bool release(std::uint64_t version) override { return is_unused(version); }

  [[nodiscard]] ServingState serving() const {
    const std::lock_guard lock(mutex_);
    return session_ != nullptr ? session_->serving() : ServingState{};
  }

 private:
  [[nodiscard]] bool is_unused(std::uint64_t version) const {
    const std::lock_guard lock(mutex_);
    return session_ != nullptr ? session_->is_unused(version) : !ended_;
  }

  mutable std::mutex mutex_;
  const FuseSession* session_ = nullptr;
  bool ended_ = false;
};

/// The same for what is bound, which there is in bind mode only.  A call may take as long as one of
/// BoundVersions, and Use ends after it.
class BindLink final : public VersionGuard {
 public:
  /// What is bound is there as long as this lives.
  class Use {
   public:
    Use(BindLink& link, BoundVersions& bound) : link_(link) { link_.set(&bound); }
    ~Use() { link_.set(nullptr); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    BindLink& link_;
  };

  void notify() const {
    const std::shared_lock lock(mutex_);
    if (bound_ != nullptr) bound_->notify();
  }
  void bring(std::uint64_t version) const {
    const std::shared_lock lock(mutex_);
    if (bound_ != nullptr) bound_->bring(version);
  }
  [[nodiscard]] bool withdraw(std::uint64_t version) override {
    const std::shared_lock lock(mutex_);
    return bound_ == nullptr || bound_->withdraw(version);
  }
  void restore(std::uint64_t version) override {
    const std::shared_lock lock(mutex_);
    if (bound_ != nullptr) bound_->restore(version);
  }
  [[nodiscard]] bool keeps(std::uint64_t version) override {
    const std::shared_lock lock(mutex_);
    return bound_ != nullptr && bound_->keeps(version);
  }
  [[nodiscard]] std::vector<std::uint64_t> list() const {
    const std::shared_lock lock(mutex_);
    return bound_ != nullptr ? bound_->list() : std::vector<std::uint64_t>{};
  }

 private:
  void set(BoundVersions* bound) {
    const std::unique_lock lock(mutex_);
    bound_ = bound;
  }

  mutable std::shared_mutex mutex_;
  BoundVersions* bound_ = nullptr;
};

/// Serves a session in a thread of its own.
class SessionThread {
 public:
  SessionThread(FuseSession& session, std::function<void()> body)
      : session_(session), thread_(std::move(body)) {}
  ~SessionThread() { session_.stop(); }  // then it joins
  SessionThread(const SessionThread&) = delete;
  SessionThread& operator=(const SessionThread&) = delete;

 private:
  FuseSession& session_;
  std::jthread thread_;
};

/// The sync tells who waits at the control socket, which is there for a part of its time.
class ControlLink {
 public:
  /// The server is there as long as this lives; it may be null.
  class Use {
   public:
    Use(ControlLink& link, ControlServer* server) : link_(link) { link_.set(server); }
    ~Use() { link_.set(nullptr); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ControlLink& link_;
  };

  void notify() {
    const std::lock_guard lock(mutex_);
    if (server_ != nullptr) server_->notify();
  }

 private:
  void set(ControlServer* server) {
    const std::lock_guard lock(mutex_);
    server_ = server;
  }

  std::mutex mutex_;
  ControlServer* server_ = nullptr;
};

// ---- the pieces together ----

class Daemon {
 public:
  Daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
         const Progress& progress)
      : host_(host), options_(options), events_(events), progress_(progress) {}

  void run() {
    mount_point_ = prepare();
    require_fuse(host_.url);
    repository_ = find_places({host_.url, host_.bucket, host_.store}, context_).repository;
    choose_store();
    begin_log();
    coder_.emplace(host_.gpu);
    if (!options_.writer) queued_ = queued_names(store_->db());
    History history(*repository_, store_.get());
    Hooks hooks({host_.hooks, host_.url, mount_point_}, store_->db());
    hooks_ = &hooks;
    Eviction& eviction = store_->eviction();
    const auto session_guarding = eviction.add_guard(link_);
    const auto bind_guarding = eviction.add_guard(bind_link_);
    const KeepingGuard hooks_guard(eviction, [&](std::uint64_t v) { return hooks.holds(v); });
    Sync sync(*store_, history,
              {.follow = host_.follow,
               .prepare =
                   [this](const CatalogVersion& version) {
                     warmer_.prepare(warm_target(version), kPrepareLimit);
                     bind_link_.bring(version.number);
                   },
               .coder = coder_->coder(),
               .changed =
                   [this] {
                     control_link_.notify();
                     bind_link_.notify();
                     hooks_->notify();
                     warmer_.notify();
                   },
               .only = options_.only,
               .with_absent = true,
               .partial = true});
    const Warmer::Run warming(warmer_, [&sync] { return warm_target(*sync.catalog()); });
    hand_pins_.emplace(store_->db());
    pins_.emplace([&sync] { return sync.catalog(); }, *hand_pins_,
                  PassTimes::of(options_.pin_grace));
    const KeepingGuard pins_guard(eviction, [this](std::uint64_t v) { return pins_->keeps(v); });
    sync.start();
    wait_ready(sync);
    DeltaFiles deltas(*store_, history, {.coder = coder_->coder(), .building = {}});
    deltas_ = &deltas;
    RemoteFiles rest(*store_, history,
                     {.coder = coder_->coder(), .retry = options_.serve.read_timeout});
    rest_ = &rest;
    if (options_.writer) {
      serve_writer(history, sync);
    } else {
      serve(sync, {}, 0);
    }
  }

 private:
  /// A trainer can save, and hand over, while the bucket is out of reach.
  void wait_ready(Sync& sync) const {
    try {
      sync.wait_ready(context_, progress_);
    } catch (const Error& error) {
      if (!options_.writer || !may_start_offline(error.code())) throw;
      log_warning(fmt::format("starting without a version: {}", error.what()));
    }
  }

  void choose_store() {
    const std::string id = repository_->id();
    check_places(mount_point_, host_.store.empty() ? Store::default_path(id) : host_.store,
                 host_.url);
    OpenedStore opened = open_store({host_.store, id, host_.url, host_.limits, mount_point_});
    store_ = std::move(opened.store);
    store_note_ = std::move(opened.note);
  }

  /// Returns: the canonical mount point.
  std::filesystem::path prepare() {
    MountPlace place = prepare_mount_point(options_.mount_point, options_.non_empty);
    hidden_note_.clear();
    if (!place.hidden.empty()) {
      hidden_note_ = fmt::format("what lies in {} is hidden until umount: {}", place.path.string(),
                                 shown_names(place.hidden));
    }
    return std::move(place.path);
  }

  [[nodiscard]] std::filesystem::path log_path() const {
    return options_.foreground ? std::filesystem::path() : store_->log_path();
  }

  void begin_log() const {
    if (options_.foreground) {
      log_to_stderr(LogLevel::info);
    } else {
      log_to_file(log_path(), LogLevel::info);
    }
    if (events_.logging) events_.logging(log_path());
    log_info(fmt::format("weightfs {} pid {} mounts {} at {}", WEIGHTFS_VERSION, getpid(),
                         host_.url, mount_point_.string()));
    if (!store_note_.empty()) log_info(store_note_);
  }

  void prove_bucket(const Context& context) const {
    require_put_if_absent_once(*repository_, *store_, host_.bucket.endpoint_url, context);
  }

  /// A bucket that cannot be asked now is asked before the first publish.
  void prove_bucket_now() const {
    try {
      prove_bucket(context_.within(kOpenTimeout));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported || error.code() == ErrorCode::cancelled) throw;
      log_warning(fmt::format("nothing can be published now: {}", error.what()));
    }
  }

  void serve_writer(History& history, Sync& sync) {
    prove_bucket_now();
    const auto make_room = [this](std::uint64_t bytes) {
      store_->evictor().evict_for_free_bytes(bytes);
    };
    Staging staging(
        store_->db(), store_->path() / "staging",
        {.make_room = make_room, .owner = staging_owner(), .mode = options_.writing.staging_mode});
    PublishQueue queue(staging, *store_, history,
                       {.rebase = options_.writing.rebase,
                        .include = options_.writing.include,
                        .coder = coder_->coder(),
                        .show = [&sync](std::uint64_t version) { sync.show(version); },
                        .holders = [this](const auto& files) { return describe_holders(files); },
                        .rebase_command = fmt::format("weightfs rebase {}", mount_point_.string()),
                        .prove = [this](const Context& context) { prove_bucket(context); },
                        .at = {}});
    serve(sync, {&staging, &queue}, newest_seen(history, sync));
    queue.stop();
  }

  /// Who mounts, or whom --uid and --gid name.
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

  /// Without the socket nobody can wait, but everything else works.
  [[nodiscard]] std::unique_ptr<ControlServer> make_control(Sync& sync, const Writing& writing) {
    for (const auto& path : {control_path(store_->path()), store_->path() / "control.sock"}) {
      try {
        auto control =
            std::make_unique<ControlServer>(path, make_control_handlers(sync, writing, *pins_));
        control_socket_ = path;
        return control;
      } catch (const Error& error) {
        log_warning(
            fmt::format("no control socket, `weightfs wait` does not work: {}", error.what()));
      }
    }
    return nullptr;
  }

  /// Tells who waits at the socket when the queue has changed.
  void follow_queue(const PublishQueue& queue, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      queue.wait_change(Clock::now() + kFollowInterval, stop);
      control_link_.notify();
    }
  }

  void serve(Sync& sync, Writing writing, std::uint64_t fence) {
    const auto control = make_control(sync, writing);
    const ControlLink::Use use(control_link_, control.get());
    std::jthread follower;
    if (control && writing.queue != nullptr) {
      follower =
          std::jthread([&](const std::stop_token& stop) { follow_queue(*writing.queue, stop); });
    }
    serve_mount(sync, writing, fence);
  }

  /// `fence`: of the queue, which begins when the mount is there.
  void serve_mount(Sync& sync, Writing writing, std::uint64_t fence) {
    const Tree tree([&sync] { return sync.catalog(); }, options_.ownership, options_.writer,
                    [this](std::uint64_t version) { return deltas_->find_facts(version); });
    prepare();  // minutes may have passed
    if (!hidden_note_.empty()) log_warning(hidden_note_);
    FuseSession session(tree, {.mount_point = mount_point_,
                               .source = host_.url,
                               .serve = options_.serve.how,
                               .store = store_->path(),
                               .status = [this, &sync, writing] { return status(sync, writing); },
                               .writing = writing,
                               .pins = &*pins_,
                               .deltas = deltas_,
                               .advice = [this] { return advice(); },
                               .sync = &sync,
                               .rest = rest_,
                               .read_timeout = options_.serve.read_timeout});
    const MountRecordFile record({mount_point_, getpid(), host_.command, control_socket_});
    device_ = session.device();
    pins_->set_device(device_);
    link_.begin(session);
    if (writing.queue != nullptr) writing.queue->start(fence);
    if (session.wants_binds()) {
      serve_bound(sync, session);
    } else {
      const std::stop_callback on_stop(context_.stop, [&session] { session.stop(); });
      begin_serving(sync, session);
      run_session(session);
      hooks_->stop();
    }
    signals_.request_stop();
    link_.end();
  }

  void begin_serving(const Sync& sync, const FuseSession& session) {
    if (events_.ready) events_.ready(describe(sync, session));
    hooks_->start([&sync] { return newest_shown(sync); });
  }

  /// What is bound is bound through the mount, which must be served for that, also at the end.
  void serve_bound(const Sync& sync, FuseSession& session) {
    BoundVersions bound({.mount = *session.mount(),
                         .ownership = options_.ownership,
                         .catalog = [&sync] { return sync.catalog(); },
                         .bound = [this](const CatalogVersion& version) { pins_->bound(version); },
                         .unbound = [this](std::uint64_t version) { pins_->unbound(version); },
                         .is_read =
                             [this](std::uint64_t version) {
                               return !nobody_reads(store_->image_directory(version));
                             }});
    pins_->set_bind_mode();
    std::counting_semaphore<2> ends(0);  // a signal, and the session
    const std::stop_callback on_stop(context_.stop, [&ends] { ends.release(); });
    {
      const SessionThread server(session, [&] {
        run_session(session);
        ends.release();
      });
      bound.start();
      const BindLink::Use use(bind_link_, bound);
      begin_serving(sync, session);
      ends.acquire();
      signals_.request_stop();  // from here on there is a limit of time
      bound.stop();
    }
    hooks_->stop();
  }

  /// The newest version there is when the mount begins: from then on nobody else may publish.  A
  /// store that has a version is shown before the bucket was asked, so it is asked here.
  std::uint64_t newest_seen(History& history, const Sync& sync) const {
    const std::uint64_t known = std::max(sync.status().newest, store_->newest().version);
    try {
      return history.refresh(known, context_.within(kOpenTimeout));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) throw;
      log_warning(fmt::format("the newest version is taken to be {}: {}", known, error.what()));
      return known;
    }
  }

  /// For hooks: only what is complete.
  static Hooks::Shown newest_shown(const Sync& sync) {
    const auto catalog = sync.catalog();
    const auto found = catalog->versions.find(catalog->latest);
    if (found == catalog->versions.end()) return {};
    const SyncStatus status = sync.status();
    const bool is_newest =
        status.state == SyncStatus::State::current && status.followed <= catalog->latest;
    return {.version = catalog->latest, .tag = found->second->tag, .is_newest = is_newest};
  }

  void run_session(FuseSession& session) const {
    try {
      session.run();
      log_info(context_.stop.stop_requested() ? "stopped by a signal" : "unmounted");
    } catch (const std::exception& error) {
      log_error(fmt::format("the mount ends: {}", error.what()));
    }
  }

  [[nodiscard]] MountReady describe(const Sync& sync, const FuseSession& session) const {
    const ServingState serving = session.serving();
    const SyncStatus status = sync.status();
    return {.mount_point = mount_point_,
            .version = status.latest,
            .serve = serving.mode,
            .why = serving.why,
            .store = store_->path(),
            .log = log_path(),
            .pid = getpid(),
            .offline = status.offline_since != 0,
            .is_partial = sync.find_partial(status.latest) != nullptr,
            .gpu_failure = coder_->state().gpu_failure,
            .notes = notes()};
  }

  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> notes{store_note_, hidden_note_};
    std::erase(notes, "");
    return notes;
  }

  [[nodiscard]] WriterState writer_state(const Writing& writing) const {
    return {.rebase = options_.writing.rebase,
            .include = options_.writing.include,
            .queue = writing.queue->list(),
            .staging = writing.staging->summary(),
            .early = writing.queue->early(),
            .published = writing.queue->published(),
            .ended = writing.queue->ended()};
  }

  [[nodiscard]] ServingState serving() const {
    ServingState state = link_.serving();
    state.bound = bind_link_.list();
    return state;
  }

  [[nodiscard]] std::string advice() const {
    return advice_text(advise(warmer_.state(), link_.serving().mode));
  }

  [[nodiscard]] KeptState kept_state(const Catalog& catalog) const {
    KeptState state{.only = options_.only, .made_bytes = rest_->made_bytes()};
    if (const auto latest = catalog.find(catalog.latest)) {
      state.version_bytes = latest->size_bytes();
      state.kept_bytes = latest->kept_bytes();
    }
    return state;
  }

  [[nodiscard]] std::string status(const Sync& sync, const Writing& writing) const {
    DaemonState state{.url = host_.url,
                      .bucket = host_.bucket,
                      .repository = repository_->id(),
                      .mount_point = mount_point_,
                      .store = store_->path(),
                      .log = log_path(),
                      .control = control_socket_,
                      .pid = getpid(),
                      .versions = {},
                      .sync = sync.status(),
                      .serving = serving(),
                      .coder = coder_->state(),
                      .pins = pins_->list(),
                      .writer = {},
                      .queued = queued_,
                      .hooks = hooks_->status(),
                      .cache = warmer_.state()};
    if (writing.queue != nullptr) state.writer = writer_state(writing);
    const auto catalog = sync.catalog();
    for (const auto& [number, version] : catalog->versions) state.versions.push_back(number);
    state.kept = kept_state(*catalog);
    return status_text(state, std::time(nullptr));
  }

  const HostOptions& host_;
  const MountOptions& options_;
  const DaemonEvents& events_;
  const Progress& progress_;
  StopSignals signals_{kEndGrace};
  const Context context_{.stop = signals_.token()};
  std::filesystem::path mount_point_;
  std::string store_note_;   // why it is not the first default store; empty: it is
  std::string hidden_note_;  // what the mount hides; empty: nothing
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<Store> store_;
  std::optional<ManualPins> hand_pins_;  // made in run(), as the next
  std::optional<LoaderPins> pins_;
  std::optional<CoderChoice> coder_;  // made in run(), when there is a log
  DeltaFiles* deltas_ = nullptr;      // this and the next: as long as run()
  RemoteFiles* rest_ = nullptr;
  std::filesystem::path control_socket_;  // empty: there is none
  std::vector<std::string> queued_;       // a reader's: hand-overs that a writer's mount left
  Warmer warmer_{{.warm = host_.warm}};
  SessionLink link_;
  BindLink bind_link_;
  ControlLink control_link_;
  Hooks* hooks_ = nullptr;  // set in run(), before there are threads
  dev_t device_ = 0;        // of the mount; set before anybody can hand over
};

}  // namespace

void run_daemon(const HostOptions& host, const MountOptions& options, const DaemonEvents& events,
                const Progress& progress) {
  std::signal(SIGPIPE, SIG_IGN);  // who started the daemon may be gone before it is ready
  raise_descriptor_limit();
  Daemon(host, options, events, progress).run();
}

}  // namespace weightfs::fs
