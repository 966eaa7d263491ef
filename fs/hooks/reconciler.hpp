// Hook reconciler: brings one engine to the version that this host shows, and keeps it there.
//
// A round asks the engine for its version, compares, tells it the wanted one if need be, and reads
// it back.  Rounds do not overlap, so an engine is never told two things at once.  Versions that
// arrive meanwhile are coalesced: each round takes the newest.
//
//   idle         there is no version yet
//   current      this store has told it the wanted version, and it reports that, or cannot say
//   telling      it is loading
//   failed       something went wrong: retried after a pause that doubles, with jitter
//   unreachable  nothing listens: asked again at the usual interval; what it was told is forgotten,
//                since it may come back as another process
//
// Invariants
//   * An update is recorded before the engine is told, and cleared when the engine has reported
//     success.  So an interrupted update is repeated, whichever process was killed and whatever the
//     engine reports.
//   * What an engine reports counts only if the record says that it was told that: another run has
//     the same numbers, and nobody knows how an engine was left that is new to this store.
//   * A version is held (holds()) from before the engine hears of it until it reports another one,
//     or is gone; if it has not answered, until it has loaded another one.
//   * An engine that reports a newer version than this host shows is left alone until the host
//     knows that its own is the newest.
//
// Threads: round() by one thread; the others by any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"
#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

struct HookStatus {
  enum class State { idle, current, telling, failed, unreachable };
  std::string type, target;  // "vllm", "http://127.0.0.1:8000"
  std::string url;           // the engine's, without secrets; empty: it has none
  State state = State::idle;
  std::uint64_t wanted = 0;  // 0: none
  /// By the engine; 0: not ours, or it has not been told all of it; nullopt: it cannot say.
  std::optional<std::uint64_t> reported;
  std::uint64_t told = 0;  // by this hook, successfully
  std::int64_t since = 0;  // when the state began, in seconds since 1970
  std::string error;       // the last one, "" after success
  std::int64_t error_time = 0;
  std::uint64_t failures = 0;        // consecutive
  std::uint64_t all_failures = 0;    // since it began, those where nothing listened too
  std::uint64_t updates = 0;         // successful ones, since it began
  std::optional<HookUpdate> update;  // the last successful one; nullopt: none, or only one way
};
std::string_view to_string(HookStatus::State state) noexcept;

/// What outlives the daemon.
struct HookRecord {
  std::uint64_t told = 0;     // the last version that was told successfully
  std::uint64_t telling = 0;  // being told, without success so far; 0: none
};

struct HookWish {
  HookTarget target;
  bool is_newest = false;  // the bucket was polled, and has no newer one
};

struct ReconcilerOptions {
  std::string type, target, url;                     // for status and log
  Clock::duration every = HookOptions{}.every;       // between rounds
  Clock::duration timeout = HookOptions{}.timeout;   // of one update
  HookRecord record = {};                            // as saved
  std::function<void(const HookRecord&)> save = {};  // may throw; that is logged
  /// Held while the engine is asked or told; hooks of the same engine share it.
  std::shared_ptr<RankedMutex> engine =
      std::make_shared<RankedMutex>(LockRank::hook_engine, "hook engine");
  std::function<Clock::time_point()> now = Clock::now;
  std::function<double()> random = {};  // from 0 to 1; empty: a random number
};

class HookReconciler {
 public:
  HookReconciler(std::unique_ptr<Hook> hook, ReconcilerOptions options);

  /// `find_wish`: called several times; nullopt: there is no version yet.
  using FindWish = std::function<std::optional<HookWish>()>;

  struct Next {
    Clock::time_point due;        // of the next round
    bool may_come_early = false;  // if another version is wanted; false while it backs off
  };
  /// One round.  Never throws: errors go to status() and the log.
  Next round(const FindWish& find_wish, const Context& context);

  /// Whether the version must stay here for the engine.
  [[nodiscard]] bool holds(std::uint64_t version) const;
  /// The change that the engine will read when `newest` is shown: worth making before that.
  /// nullopt: it would be reloaded.
  [[nodiscard]] std::optional<DeltaId> wanted_delta(std::uint64_t newest) const;
  [[nodiscard]] HookStatus status() const;

 private:
  Next reconcile(const FindWish& find_wish, const Context& context);
  [[nodiscard]] bool is_right(const HookWish& wish, const Context& context);
  HookWish begin_telling(HookWish wish, const FindWish& find_wish);
  void tell(const HookWish& wish, const Context& context);
  void save(const HookRecord& record);
  void note_unended(std::uint64_t version);
  void note_wanted(std::uint64_t version);
  Next note_current();
  Next note_failure(const std::string& message);
  Next note_unreachable(const std::string& message);
  void enter(HookStatus::State state);  // Requires: mutex_ is held
  void set_error(const std::string& message, HookStatus::State state);
  [[nodiscard]] Clock::duration jittered(Clock::duration delay) const;

  const std::unique_ptr<Hook> hook_;
  const ReconcilerOptions options_;
  // Used by round()'s thread only.
  HookRecord record_;       // as saved, or as it should be
  std::uint64_t told_ = 0;  // what an engine has that cannot say; 0: nobody knows

  // Guards the fields below; held only briefly.
  mutable RankedMutex mutex_{LockRank::hook_reconciler, "HookReconciler::mutex_"};
  HookStatus status_;
  std::uint64_t telling_ = 0;           // held for the engine; 0: none
  std::optional<std::uint64_t> label_;  // what it reports, believed or not; held too
  std::vector<std::uint64_t> unended_;  // told, and never answered; held too, oldest first
  std::uint64_t base_of_change_ = 0;    // Hook::base_of_change(), as of the last round
};

}  // namespace weightfs::fs
