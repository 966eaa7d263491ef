// Runtime: what a mount's daemon and `weightfs sync` have in common: the repository, the store, the
// history, the coder, the warmer, the hooks and the sync.  The control socket, whose replies depend
// on what each of them shows, is ControlSocket.
//
// Lifetimes, outermost first:
//
//     repository > store > coder > warmer > history > hooks > guards > sync > warmer's thread
//
// Hooks keep versions as long as there is a sync; their owner decides when they ask and tell
// (Hooks::start).  The warmer is notified of catalogs directly, hooks only by their owner: engines
// must be told what the owner shows.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fs/base/coder_choice.hpp"
#include "fs/cache/warmer.hpp"
#include "fs/hooks/hooks.hpp"
#include "fs/runtime/daemon_metrics.hpp"
#include "fs/runtime/daemon_state.hpp"
#include "fs/runtime/host_options.hpp"
#include "fs/runtime/keeping_guard.hpp"
#include "store/local/eviction.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/repository.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

struct RuntimeOptions {
  std::filesystem::path place;        // the mount point, or the directory
  bool warms = true;                  // false: the page cache is measured, but nothing is
                                      // prefetched
  std::vector<VersionGuard*> guards;  // besides the hooks' guard; they outlive this
  SyncOptions sync;                   // what to follow and the coder come from the host options
};

class Runtime {
 public:
  /// Shows what the store has complete; sync().start() begins to follow the bucket.  `host`:
  /// options of that repository and store; outlives this.
  /// Throws Error: what opening the seed throws.
  Runtime(const HostOptions& host, std::unique_ptr<Repository> repository,
          std::unique_ptr<Store> store, RuntimeOptions options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] Repository& repository() const noexcept { return *repository_; }
  [[nodiscard]] Store& store() const noexcept { return *store_; }
  [[nodiscard]] const CoderChoice& coder() const noexcept { return coder_; }
  [[nodiscard]] const Warmer& warmer() const noexcept { return warmer_; }
  [[nodiscard]] History& history() noexcept { return history_; }
  [[nodiscard]] Hooks& hooks() noexcept { return hooks_; }
  [[nodiscard]] Sync& sync() noexcept { return sync_; }
  [[nodiscard]] const Sync& sync() const noexcept { return sync_; }

  /// For hooks.  `version`, `tag`: what `latest` shows; 0: nothing.
  [[nodiscard]] Hooks::Shown shown(std::uint64_t version, std::string tag) const;

  /// What Warmer::state() says, and whether the version lies in memory.
  [[nodiscard]] CacheState cache() const;

  /// For the status, without what only the owner knows.
  [[nodiscard]] DaemonState state() const;

  /// For the metrics.
  [[nodiscard]] DaemonCounters counters() const;

 private:
  [[nodiscard]] SyncOptions sync_options() const;

  const HostOptions& host_;
  const std::int64_t start_time_ = std::time(nullptr);
  const RuntimeOptions options_;
  const std::unique_ptr<Repository> repository_;
  const std::unique_ptr<Store> store_;
  const CoderChoice coder_;
  Warmer warmer_;
  History history_;
  Hooks hooks_;
  const KeepingGuard hooks_guard_;
  const std::vector<Eviction::Guarding> guardings_;
  Sync sync_;
  const CatalogListeners::Listening listening_;  // the warmer's
  const Warmer::Run warming_;
};

}  // namespace weightfs::fs
