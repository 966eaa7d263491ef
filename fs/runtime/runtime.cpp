#include "fs/runtime/runtime.hpp"

#include <unistd.h>

#include <utility>

namespace weightfs::fs {
namespace {

std::vector<Eviction::Guarding> add_guards(Eviction& eviction,
                                           const std::vector<VersionGuard*>& guards) {
  std::vector<Eviction::Guarding> guardings;
  for (VersionGuard* guard : guards) guardings.push_back(eviction.add_guard(*guard));
  return guardings;
}

/// nullptr if none was given.
std::shared_ptr<const SeedDirectory> open_seed(const std::filesystem::path& directory) {
  return directory.empty() ? nullptr : SeedDirectory::open(directory);
}

}  // namespace

Runtime::Runtime(const HostOptions& host, std::unique_ptr<Repository> repository,
                 std::unique_ptr<Store> store, RuntimeOptions options)
    : host_(host),
      options_(std::move(options)),
      repository_(std::move(repository)),
      store_(std::move(store)),
      coder_(host_.gpu),
      warmer_({.warm = host_.warm}),
      history_(*repository_, store_.get(), open_seed(host_.seed)),
      hooks_({host_.hooks, host_.url, options_.place}, store_->db()),
      hooks_guard_(store_->eviction(),
                   [this](std::uint64_t version) { return hooks_.holds(version); }),
      guardings_(add_guards(store_->eviction(), options_.guards)),
      sync_(*store_, history_, sync_options()),
      listening_(sync_.listen({.prepare =
                                   [this](const CatalogVersion& version) {
                                     warmer_.prepare(warm_target(version), kPrepareLimit);
                                   },
                               .changed = [this] { warmer_.notify(); }})),
      warming_(
          warmer_, [this] { return warm_target(*sync_.catalog()); }, options_.warms) {}

SyncOptions Runtime::sync_options() const {
  SyncOptions options = options_.sync;
  options.follow = host_.follow;
  options.coder = coder_.coder();
  options.history = host_.history;
  return options;
}

Hooks::Shown Runtime::shown(std::uint64_t version, std::string tag) const {
  if (version == 0) return {};
  const SyncStatus status = sync_.status();
  const bool is_newest = status.state == SyncStatus::State::current && status.followed <= version;
  return {.version = version, .tag = std::move(tag), .is_newest = is_newest};
}

CacheState Runtime::cache() const {
  CacheState state = warmer_.state();
  state.is_in_memory = store_->images().home_of(state.version) == ImagesHome::memory;
  return state;
}

DaemonCounters Runtime::counters() const {
  return {.start_time = start_time_,
          .timings = store_->timings().totals(),
          .database = store_->db().facts(),
          .log = log_counts()};
}

DaemonState Runtime::state() const {
  SyncStatus sync = sync_.status();
  const auto& seed = history_.seed();
  const auto timing = store_->timings().find(sync.latest);
  return {.url = host_.url,
          .bucket = host_.bucket,
          .repository = repository_->id(),
          .mount_point = options_.place,
          .store = store_->path(),
          .log = {},
          .control = {},
          .pid = getpid(),
          .versions = {},
          .max_lag = host_.max_lag,
          .sync = std::move(sync),
          .serving = {},
          .coder = coder_.state(),
          .hooks = hooks_.status(),
          .cache = cache(),
          .seed = seed ? std::optional(seed->state()) : std::nullopt,
          .hub_bytes = repository_->hub_bytes(),
          .refused_leases = store_->eviction().refused_leases().text(),
          .latest_timing = timing,
          .hand_over_timing = store_->timings().find_last_hand_over()};
}

}  // namespace weightfs::fs
