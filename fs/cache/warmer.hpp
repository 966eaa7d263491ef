// Warmer: keeps the images of the version that `latest` shows in the page cache.
//
// A version that was just made is cached already, in large folios, because of the way it is
// written.  A thread of the lowest priority reads what may be cold: the version that a daemon finds
// at its start, files that are hard links to older ones, and what memory pressure has evicted
// since.  It does so only if the whole version fits into memory (store/os/memory_room.hpp), and
// stops at once when another version is shown, or when the daemon ends.
//
// Evicted pages are read again after a minute, then two, and so on up to an hour: a host that needs
// its memory for something else must not read the same version for ever.
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
#include "store/catalog/catalog.hpp"
#include "store/os/memory_room.hpp"

namespace weightfs::fs {

/// `--warm`.
enum class Warm { automatic, off };

/// How long `latest` may wait for a version that is not yet entirely in the page cache.
inline constexpr std::chrono::milliseconds kPrepareLimit{250};

struct WarmerOptions {
  Warm warm = Warm::automatic;
  std::function<std::optional<MemoryRoom>()> find_room = [] { return find_memory_room(); };
  std::chrono::milliseconds look{60'000};  // the first interval between checks
};

/// The complete images of a version.
struct WarmTarget {
  std::uint64_t version = 0;  // 0: there is none
  std::vector<CachedFile> files;
};
WarmTarget warm_target(const CatalogVersion& version);

/// What a catalog shows as `latest`, unless that is still being filled.
WarmTarget warm_target(const Catalog& catalog);

struct CacheState {
  enum class Warming {
    idle,     // nothing to do, or done
    reading,  // the thread is reading
    no_room,  // the version does not fit
    failed,   // see `error`
    off,      // --warm off
  };
  std::uint64_t version = 0;  // 0: there is no complete one
  Residency residency;
  std::optional<MemoryRoom> room;
  Warming warming = Warming::idle;
  std::string error;
  bool is_in_memory = false;  // its images are no files of a disk (--images memory)

  /// False only if the version is known to be larger than the available memory.
  [[nodiscard]] bool fits() const noexcept {
    return is_in_memory || !room || residency.size_bytes <= room->bytes;
  }
};
std::string_view to_string(CacheState::Warming warming) noexcept;

class Warmer {
 public:
  explicit Warmer(WarmerOptions options);
  Warmer(const Warmer&) = delete;
  Warmer& operator=(const Warmer&) = delete;
  ~Warmer() = default;  // Requires: no Run is left

  /// Runs the thread for as long as this lives.
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

  /// `latest` may show another version now.  Quick, calls nothing back.
  void notify();

  /// This version will be shown next: starts reading it, and waits until it is in the page cache,
  /// `limit` has passed, or it is certain that it will not be cached.
  void prepare(WarmTarget target, std::chrono::milliseconds limit);

  /// The measurement is at most a second old, or twenty times as old as measuring takes.
  [[nodiscard]] CacheState state() const;

 private:
  /// When the thread looks.
  struct Rhythm {
    std::chrono::milliseconds pause;
    std::uint64_t last = 0;   // version that was warmed
    Clock::time_point due{};  // again
  };

  void run(const std::stop_token& stop);
  void look(Rhythm& rhythm, const std::stop_token& stop);
  [[nodiscard]] WarmTarget find_target() const;
  bool warm(const WarmTarget& target, const std::stop_token& stop);
  CacheState::Warming read(const WarmTarget& target, const Residency& before,
                           const std::stop_token& stop);
  bool has_room(const WarmTarget& target, std::uint64_t size_bytes);
  [[nodiscard]] bool is_wanted(const WarmTarget& target, const std::stop_token& stop);
  void settle(const WarmTarget& target, CacheState::Warming warming, std::string error = {});

  const WarmerOptions options_;

  mutable RankedMutex mutex_{LockRank::warmer, "Warmer::mutex_"};  // guards the fields below
  std::condition_variable_any changed_;
  std::function<WarmTarget()> find_shown_;  // empty: there is no Run
  bool is_running_ = false;                 // there is a thread
  WarmTarget ahead_;                        // from prepare()
  std::uint64_t notices_ = 0;
  std::uint64_t settled_ = 0;  // the version of the next two fields
  CacheState::Warming warming_ = CacheState::Warming::idle;
  std::string error_;
  mutable CacheState measured_;
  mutable Clock::time_point measured_until_{};

  // Used by the thread only:
  std::uint64_t seen_notices_ = 0;
  std::string logged_;
};

}  // namespace weightfs::fs
