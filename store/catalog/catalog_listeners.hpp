// Catalog listeners: components that want to know of a new catalog, or to act before `latest`
// moves: the warmer, hooks, bind mounts, clients at the control socket.
//
// Threads: all calls may run in parallel, but a listener must not end its own Listening from within
// a call.  No lock is held while a listener is called.
// Ownership: must outlive its Listenings.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"

namespace weightfs {

/// All functions are called from any thread; each may be empty.
struct CatalogListener {
  /// Called before `latest` moves to a version, which can already be found by its number; may take
  /// a moment.  Called without locks.
  std::function<void(const CatalogVersion& version)> prepare = {};
  /// Called when the catalog has changed, also while locks are held: must be quick and call nothing
  /// of the Sync's.
  std::function<void()> changed = {};
  /// Called when patches were taken (store/sync/patch_recorder.hpp); must be quick.
  std::function<void()> recorded = {};
};

class CatalogListeners {
  struct Entry;

 public:
  /// A registration: the listener is called as long as this lives.
  class Listening {
   public:
    Listening() = default;  // not registered
    Listening(Listening&& other) noexcept
        : listeners_(std::exchange(other.listeners_, nullptr)), entry_(std::move(other.entry_)) {}
    Listening& operator=(Listening&& other) noexcept;
    ~Listening() { end(); }

    /// Waits for calls in progress.
    void end() noexcept;

   private:
    friend class CatalogListeners;
    Listening(CatalogListeners& listeners, std::shared_ptr<Entry> entry)
        : listeners_(&listeners), entry_(std::move(entry)) {}

    CatalogListeners* listeners_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  CatalogListeners() = default;
  CatalogListeners(const CatalogListeners&) = delete;
  CatalogListeners& operator=(const CatalogListeners&) = delete;

  /// Listeners are called in the order in which they were added.
  [[nodiscard]] Listening add(CatalogListener listener);

  /// Whether any listener prepares versions.
  [[nodiscard]] bool prepares() const;

  void prepare(const CatalogVersion& version);
  void changed();
  void recorded();

 private:
  template <typename Call>
  void for_each(const Call& call);

  // Guards what follows, and the calls of each entry.
  mutable RankedMutex mutex_{LockRank::leaf, "CatalogListeners::mutex_"};
  std::condition_variable_any called_;
  std::vector<std::shared_ptr<Entry>> entries_;
};

}  // namespace weightfs
