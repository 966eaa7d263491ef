// Warmer: keeps the images of the version that `latest` shows in the page cache.
//
// A version that was just made is there already, in large folios: it was written so.  What may be
// cold is read in by a thread of the lowest priority: the version that a daemon finds when it
// starts, files that are hard links to older ones, and what memory pressure has dropped since.  It
// does so only where the whole version fits into memory (store/os/memory_room.hpp), and stops at
// once when another version is shown, or the daemon ends.
//
// What was dropped is brought back after a minute, then two, and so on up to an hour: a host that
// needs its memory for something else is not to read the same version for ever.
//
// Threads: all calls may run in parallel.  It holds no lock while it reads or calls others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fs/cache/page_cache.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/memory_room.hpp"
#include "store/sync/catalog.hpp"

namespace weightfs::fs {

/// `--warm`.
enum class Warm { automatic, off };

/// How long `latest` may wait for a version that is not in the page cache as a whole.
inline constexpr std::chrono::milliseconds kPrepareLimit{250};

struct WarmerOptions {
  Warm warm = Warm::automatic;
  std::function<std::optional<MemoryRoom>()> find_room = [] { return find_memory_room(); };
  std::chrono::milliseconds look{60'000};  // between looks at what was dropped, at first
};

/// The images of a version that are complete.
struct WarmTarget {
  std::uint64_t version = 0;  // 0: there are none
  std::vector<CachedFile> files;
};
WarmTarget warm_target(const CatalogVersion& version);

/// What a catalog shows as `latest`, unless that is still being filled.
WarmTarget warm_target(const Catalog& catalog);

struct CacheState {
  enum class Warming {
    idle,     // there is nothing to do, or it was done
    reading,  // the thread reads
    no_room,  // the version does not fit
    failed,   // `error`
    off,      // --warm off
  };
  std::uint64_t version = 0;  // 0: none that is complete
  Residency residency;
  std::optional<MemoryRoom> room;
  Warming warming = Warming::idle;
  std::string error;

  /// False if it is known that the version is larger than the room.
  [[nodiscard]] bool fits() const noexcept { return !room || residency.size_bytes <= room->bytes; }
};
std::string_view to_string(CacheState::Warming warming) noexcept;

class Warmer {
 public:
  explicit Warmer(WarmerOptions options);
  Warmer(const Warmer&) = delete;
  Warmer& operator=(const Warmer&) = delete;
  ~Warmer() = default;  // no Run is left

  /// The thread, as long as this lives.
  class Run {
   public:
    /// `find_shown`: what `latest` shows; called from any thread, must be quick.
    /// `reads`: false: nothing is read, but state() works.
    Run(Warmer& warmer, std::function<WarmTarget()> find_shown, bool reads = true);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    Warmer& warmer_;
    std::jthread thread_;
  };

  /// `latest` may show another version: quick, calls nothing back.
  void notify();

  /// This version will be shown next: begins with it, and waits until it is in the page cache, or
  /// `limit` has passed, or it is known that it will not be.
  void prepare(WarmTarget target, std::chrono::milliseconds limit);

  /// What is measured is at most a second old, or twenty times as old as measuring takes.
  [[nodiscard]] CacheState state() const;

 private:
  void run(const std::stop_token& stop);
  [[nodiscard]] WarmTarget find_target() const;
  bool warm(const WarmTarget& target, const std::stop_token& stop);
  CacheState::Warming read(const WarmTarget& target, const Residency& before,
                           const std::stop_token& stop);
  bool has_room(const WarmTarget& target, std::uint64_t size_bytes);
  [[nodiscard]] bool is_wanted(const WarmTarget& target, const std::stop_token& stop);
  void settle(const WarmTarget& target, CacheState::Warming warming, std::string error = {});

  const WarmerOptions options_;

  mutable RankedMutex mutex_{LockRank::warmer, "Warmer::mutex_"};  // guards what follows
  std::condition_variable_any changed_;
  std::function<WarmTarget()> find_shown_;  // empty: there is no Run
  bool is_running_ = false;                 // there is a thread
  WarmTarget ahead_;                        // from prepare()
  std::uint64_t notices_ = 0;
  std::uint64_t settled_ = 0;  // the version that the next two are about
  CacheState::Warming warming_ = CacheState::Warming::idle;
  std::string error_;
  mutable CacheState measured_;
  mutable Clock::time_point measured_until_{};

  // The thread's own:
  std::uint64_t seen_notices_ = 0;
  std::string logged_;
};

}  // namespace weightfs::fs
