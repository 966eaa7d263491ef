// Eviction: the one rule for which versions may be removed from a store to make room.
//
// A version is not evicted while
//
//   * it is reserved: by `latest`, which names it or is about to (reserved before it is made,
//     given up after `latest` has moved on); by a version being built from it; by an OPEN in
//     progress;
//   * a guard keeps it (store/local/version_guard.hpp): a pin, a hook, a manual pin;
//   * a file of it is open, or mapped with no other name that would stay.
//
// Versions filled while they are read (store/streaming/partial_images.hpp) are no exception.
// Versions opened only by name are not reserved, so they yield to the followed version.
//
//              leave()              settle(): unused, and not reserved since
//     shown ------------> leaving ---------------------------------------> going --> gone
//       ^                    |
//       +--------------------+ settle(): in use
//
//     shown    readers find it, if it is here; also the state of unknown versions
//     leaving  hidden from new readers, which wait; a reservation calls it back
//     going    decided: its files are being removed; a reservation waits until they are gone
//
// Only states change under the lock.  Guards are called, and files removed, without it. The evictor
// hides a version, then asks who uses it; a user reserves it, then looks for it. So at least one of
// the two sees the other.
//
// Threads: all calls may run in parallel; one version is evicted at a time.
// Ownership: must outlive its reservations.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/version_guard.hpp"
#include "store/os/refused_leases.hpp"

namespace weightfs {

class Eviction {
 public:
  /// Why a version must be here.
  enum class Claim {
    stays,   // counts against the store's size: followed, or being built on
    in_use,  // does not count: an OPEN in progress, or the base of a version that is being filled
             // while it is read
  };

  /// Prevents the eviction of a version as long as it lives.  Not bound to a thread.
  class Reservation {
   public:
    Reservation() = default;  // reserves nothing
    Reservation(Reservation&& other) noexcept
        : eviction_(std::exchange(other.eviction_, nullptr)),
          version_(other.version_),
          claim_(other.claim_) {}
    Reservation& operator=(Reservation&& other) noexcept {
      if (this == &other) return *this;
      give_up();
      eviction_ = std::exchange(other.eviction_, nullptr);
      version_ = other.version_;
      claim_ = other.claim_;
      return *this;
    }
    ~Reservation() { give_up(); }

    void give_up() noexcept;

   private:
    friend class Eviction;
    Reservation(Eviction& eviction, std::uint64_t version, Claim claim)
        : eviction_(&eviction), version_(version), claim_(claim) {}

    Eviction* eviction_ = nullptr;
    std::uint64_t version_ = 0;
    Claim claim_ = Claim::stays;
  };

  /// A version in state leaving.  Without settle() it is shown again in the end.
  class Departure {
   public:
    Departure(Departure&& other) noexcept
        : eviction_(std::exchange(other.eviction_, nullptr)), version_(other.version_) {}
    Departure& operator=(Departure&&) = delete;
    ~Departure();  // shows it again, or it is gone

    /// Decides, once.  `is_unused`: no use was found after it was hidden.
    /// Returns: whether it goes; if not, it is shown again.
    [[nodiscard]] bool settle(bool is_unused);

   private:
    friend class Eviction;
    Departure(Eviction& eviction, std::uint64_t version)
        : eviction_(&eviction), version_(version) {}

    Eviction* eviction_;
    std::uint64_t version_;
  };

  /// Registers a guard, which is asked before any version leaves, as long as this lives.
  class Guarding {
   public:
    Guarding() = default;  // registers nothing
    Guarding(Guarding&& other) noexcept
        : eviction_(std::exchange(other.eviction_, nullptr)), guard_(other.guard_) {}
    Guarding& operator=(Guarding&& other) noexcept {
      if (this == &other) return *this;
      end();
      eviction_ = std::exchange(other.eviction_, nullptr);
      guard_ = other.guard_;
      return *this;
    }
    ~Guarding() { end(); }

    /// Waits for an eviction in progress.
    void end() noexcept;

   private:
    friend class Eviction;
    Guarding(Eviction& eviction, VersionGuard& guard) : eviction_(&eviction), guard_(&guard) {}

    Eviction* eviction_ = nullptr;
    VersionGuard* guard_ = nullptr;
  };

  /// A version's files.
  struct Files {
    /// Concerns the files that would be removed.  Asked before the version is hidden, so that one
    /// in use stays shown all the time, and again when no new reader can find it.
    std::function<bool()> nobody_reads;
    std::function<void()> remove;
  };

  Eviction() = default;
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  /// Adds a guard; guards are asked in the order in which they were added.  Waits for an eviction
  /// in progress.
  [[nodiscard]] Guarding add_guard(VersionGuard& guard);

  /// `changed` is called, without the lock, when a version becomes hidden or is shown again (see
  /// is_hidden()).  Waits for an eviction in progress.  May be empty.
  void set_changed(std::function<void()> changed);
  /// Calls it: a version has gone that the rule would not have let go.
  void tell_changed();

  /// Waits while the version is going.  It need not be here: versions are reserved before they are
  /// made.
  /// Throws Error: cancelled, timed_out.
  [[nodiscard]] Reservation reserve(std::uint64_t version, Claim claim, const Context& context);
  /// As reserve(), without waiting; nullopt while the version is going.
  [[nodiscard]] std::optional<Reservation> try_reserve(std::uint64_t version, Claim claim);

  /// Waits until the version is neither leaving nor going.  Throws Error: cancelled, timed_out.
  void wait_settled(std::uint64_t version, const Context& context);

  /// Whether it is leaving or going.
  [[nodiscard]] bool is_hidden(std::uint64_t version) const;
  /// Whether it is reserved with Claim::stays.
  [[nodiscard]] bool stays(std::uint64_t version) const;

  /// What could go, as far as is known, and stays: whoever asks for readers says so here.
  [[nodiscard]] RefusedLeases& refused_leases() noexcept { return refused_leases_; }

  /// Evicts a version if the rule allows it.
  /// Returns: whether it is gone.
  bool evict(std::uint64_t version, const Files& files);

  /// The first step of evict().  nullopt: the version is reserved, or already leaving.
  [[nodiscard]] std::optional<Departure> leave(std::uint64_t version);

 private:
  enum class State { shown, leaving, going };
  struct Entry {
    State state = State::shown;
    bool was_reserved = false;  // since it began to leave
    unsigned stays = 0, in_use = 0;

    [[nodiscard]] bool is_reserved() const noexcept { return stays > 0 || in_use > 0; }
  };

  Reservation add(std::uint64_t version, Claim claim);  // requires: mutex_ is held
  void give_up(std::uint64_t version, Claim claim) noexcept;
  void show(std::uint64_t version) noexcept;
  void forget_if_idle(std::uint64_t version) noexcept;        // requires: mutex_ is held
  [[nodiscard]] State state_of(std::uint64_t version) const;  // requires: mutex_ is held
  // Parts of evict(); evict_mutex_ is held.
  [[nodiscard]] bool is_kept(std::uint64_t version) const;
  [[nodiscard]] bool withdraw(std::uint64_t version) const;
  [[nodiscard]] bool is_unused(std::uint64_t version, const Files& files) const;
  void restore(std::uint64_t version) const;
  [[nodiscard]] bool remove_hidden(std::uint64_t version, const Files& files);

  RefusedLeases refused_leases_;
  // Held for a whole evict(); guards the next two; before mutex_.
  RankedMutex evict_mutex_{LockRank::evict, "Eviction::evict_mutex_"};
  std::vector<VersionGuard*> guards_;
  std::function<void()> changed_;
  // Guards what follows; no calls are made under it.
  mutable RankedMutex mutex_{LockRank::eviction, "Eviction::mutex_"};
  std::condition_variable_any settled_;
  std::map<std::uint64_t, Entry> entries_;  // all others are shown and unreserved
};

}  // namespace weightfs
