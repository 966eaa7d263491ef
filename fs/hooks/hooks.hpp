// Hooks: all hooks of a mount or a sync.  Each has a thread of its own, so that an engine that
// hangs or fails holds up neither the mount nor other engines.
//
// Threads: all calls may run in parallel, except start() and stop(), which are the owner's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fs/hooks/hook_options.hpp"
#include "fs/hooks/reconciler.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/http/client.hpp"

namespace weightfs::fs {

struct HooksOptions {
  std::vector<HookOptions> specs;
  std::string repository;             // its URL, without secrets
  std::filesystem::path mount_point;  // or a sync's directory; canonical
};

class Hooks {
 public:
  /// From now on the versions that the engines had before are held.  `db`: outlives this.
  Hooks(HooksOptions options, Db& db);
  ~Hooks();  // stops
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// Begins to ask and tell.  The mount exists, or will soon.  `find_newest`: what the mount shows
  /// as `latest`; called from any thread, must be quick.
  struct Shown {
    std::uint64_t version = 0;  // 0: none yet
    std::string tag;
    bool is_newest = false;  // see HookWish
  };
  void start(std::function<Shown()> find_newest);
  /// Interrupts whatever is going on.  An engine that was loading is told again by the next mount.
  void stop();

  /// The mount may show another version now.  Quick, calls nothing back.
  void notify();

  [[nodiscard]] bool holds(std::uint64_t version) const;

  /// The changes that engines will read when `newest` is shown, each once; none: nobody is updated
  /// in place.  A hook that is still busy with an earlier version may want another one then.
  [[nodiscard]] std::vector<DeltaId> wanted_deltas(std::uint64_t newest) const;

  /// `wanted` is what the mount shows now, even while a hook backs off.
  [[nodiscard]] std::vector<HookStatus> status() const;

 private:
  std::unique_ptr<HookReconciler> make(const HookOptions& spec,
                                       std::shared_ptr<RankedMutex> engine);
  [[nodiscard]] std::optional<HookWish> find_wish() const;
  void run(HookReconciler& reconciler, const std::stop_token& stop);
  void wait(const HookReconciler& reconciler, const HookReconciler::Next& next,
            const std::stop_token& stop);

  const HooksOptions options_;
  Db& db_;
  std::unique_ptr<HttpClient> client_;  // null if there are no hooks
  std::vector<std::unique_ptr<HookReconciler>> reconcilers_;
  std::function<Shown()> find_newest_;  // set before is_started_
  std::atomic<bool> is_started_{false};

  RankedMutex mutex_{LockRank::hooks, "Hooks::mutex_"};  // guards notices_
  std::condition_variable_any noticed_;
  std::uint64_t notices_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace weightfs::fs
