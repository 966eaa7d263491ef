// What lives how long, from the outside in:
//
//     signals > repository > store > history > sync > tree > session
//
// The session is unmounted first, so that no caller waits for what ends after it.

#include "fs/daemon.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>

#include "fs/coder_choice.hpp"
#include "fs/mount_point.hpp"
#include "fs/status.hpp"
#include "fs/stop_signals.hpp"
#include "store/bucket.hpp"
#include "store/error.hpp"
#include "store/history.hpp"
#include "store/log.hpp"
#include "store/repository.hpp"
#include "store/sync.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kOpenTimeout = std::chrono::seconds(5);
constexpr auto kEndGrace = std::chrono::seconds(8);

// ---- where everything is ----

/// The repository, from its bucket or from what a store remembers, and the store's place.
struct Places {
  std::unique_ptr<Repository> repository;
  std::filesystem::path store;
};

bool is_out_of_reach(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::not_found ||
         code == ErrorCode::timed_out || code == ErrorCode::io;
}

std::optional<Places> find_remembered(const MountOptions& options) {
  const auto store = options.store.empty() ? Store::find_default_by_url(options.url)
                                           : std::optional(options.store);
  if (!store) return std::nullopt;
  const auto identity = Store::find_identity(*store);
  if (!identity || identity->url != options.url) return std::nullopt;
  return Places{Repository::assume(options.url, identity->repository), *store};
}

Places find_places(const MountOptions& options, const Context& context) {
  try {
    auto repository = Repository::open(options.url, context.within(kOpenTimeout));
    const auto store =
        options.store.empty() ? Store::default_path(repository->id()) : options.store;
    return {std::move(repository), store};
  } catch (const Error& error) {
    if (!is_out_of_reach(error.code())) throw;
    auto remembered = find_remembered(options);
    if (!remembered) throw;
    log_warning(
        fmt::format("starting from the store {}: {}", remembered->store.string(), error.what()));
    return std::move(*remembered);
  }
}

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory) {
  const auto inner = std::filesystem::weakly_canonical(path);
  const auto outer = std::filesystem::weakly_canonical(directory);
  const auto [end, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

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

/// The sync asks the session who reads, but is there before it and after it.
class SessionLink {
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

  [[nodiscard]] bool is_unused(std::uint64_t version) const {
    const std::lock_guard lock(mutex_);
    return session_ != nullptr ? session_->is_unused(version) : !ended_;
  }
  [[nodiscard]] ServingState serving() const {
    const std::lock_guard lock(mutex_);
    return session_ != nullptr ? session_->serving() : ServingState{};
  }

 private:
  mutable std::mutex mutex_;
  const FuseSession* session_ = nullptr;
  bool ended_ = false;
};

// ---- the pieces together ----

class Daemon {
 public:
  Daemon(const MountOptions& options, const DaemonEvents& events, const Progress& progress)
      : options_(options), events_(events), progress_(progress) {}

  void run() {
    mount_point_ = prepare_mount_point(options_.mount_point);
    Places places = find_places(options_, context_);
    check_places(mount_point_, places.store, options_.url);
    repository_ = std::move(places.repository);
    store_ = Store::open(places.store, repository_->id(), options_.url, options_.limits);
    begin_log();
    coder_.emplace(options_.gpu);
    History history(*repository_, store_.get());
    Sync sync(*store_, history,
              {.poll = options_.poll,
               .release = [this](std::uint64_t version) { return link_.is_unused(version); },
               .coder = coder_->coder()});
    sync.start();
    sync.wait_ready(context_, progress_);
    serve(sync);
  }

 private:
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
                         options_.url, mount_point_.string()));
  }

  void serve(const Sync& sync) {
    const Tree tree([&sync] { return sync.catalog(); }, options_.ownership);
    prepare_mount_point(mount_point_);  // minutes may have passed
    FuseSession session(tree, {.mount_point = mount_point_,
                               .source = options_.url,
                               .serve = options_.serve,
                               .store = store_->path(),
                               .status = [this, &sync] { return status(sync); }});
    link_.begin(session);
    {
      const std::stop_callback on_stop(context_.stop, [&session] { session.stop(); });
      if (events_.ready) events_.ready(describe(sync, session));
      run_session(session);
    }
    signals_.request_stop();
    link_.end();
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
            .gpu_failure = coder_->state().gpu_failure};
  }

  [[nodiscard]] std::string status(const Sync& sync) const {
    DaemonState state{.url = options_.url,
                      .repository = repository_->id(),
                      .mount_point = mount_point_,
                      .store = store_->path(),
                      .log = log_path(),
                      .pid = getpid(),
                      .versions = {},
                      .sync = sync.status(),
                      .serving = link_.serving(),
                      .coder = coder_->state()};
    const auto catalog = sync.catalog();
    for (const auto& [number, version] : catalog->versions) state.versions.push_back(number);
    return status_text(state, std::time(nullptr));
  }

  const MountOptions& options_;
  const DaemonEvents& events_;
  const Progress& progress_;
  StopSignals signals_{kEndGrace};
  const Context context_{.stop = signals_.token()};
  std::filesystem::path mount_point_;
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<Store> store_;
  std::optional<CoderChoice> coder_;  // made in run(), when there is a log
  SessionLink link_;
};

}  // namespace

void run_daemon(const MountOptions& options, const DaemonEvents& events, const Progress& progress) {
  std::signal(SIGPIPE, SIG_IGN);  // who started the daemon may be gone before it is ready
  Daemon(options, events, progress).run();
}

}  // namespace weightfs::fs
