// Eviction: the one rule for which versions leave a store to make room, and its only home.
//
// A version is not evicted while
//
//   * it is reserved: by `latest`, which names it or is about to (reserved before it is made, given
//     up after `latest` has moved on); by what is made from it; by an OPEN that is on its way;
//   * a guard keeps it (store/local/version_guard.hpp): a pin, a hook, a pin by hand;
//   * somebody has a file of it open, or mapped and with no other name that would stay.
//
// What is filled while it is read (store/streaming/partial_images.hpp) is no exception.  Nobody
// reserves the versions that somebody merely travels back to, so these yield to what is followed.
//
//              leave()              settle(): nobody uses it, nobody has reserved it since
//     shown ------------> leaving ---------------------------------------> going --> gone
//       ^                    |
//       +--------------------+ settle(): somebody does
//
//     shown    readers find it, if it is here; also what was never heard of
//     leaving  hidden from new readers, who wait; to reserve it calls it back
//     going    decided: its files are being removed; to reserve it waits for the end of that
//
// Under the lock only states change.  Guards are asked, and files removed, without it: *hide, then
// ask who uses it* here, *hold it, then look for it* there, so one of the two sees the other.
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

namespace weightfs {

class Eviction {
 public:
  /// Why a version must be here.
  enum class Claim {
    stays,   // it counts against the store's size: followed, or being built on now
    in_use,  // it does not, like what somebody has open: an OPEN on its way, the base of a version
             // that is filled while it is read
  };

  /// The version is not evicted as long as this lives.  Belongs to no thread.
  class Reservation {
   public:
    Reservation() = default;  // of nothing
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

  /// A version that is leaving.  If it is not settled it is shown again in the end.
  class Departure {
   public:
    Departure(Departure&& other) noexcept
        : eviction_(std::exchange(other.eviction_, nullptr)), version_(other.version_) {}
    Departure& operator=(Departure&&) = delete;
    ~Departure();  // shown again, or gone

    /// Decides, once.  `is_unused`: nobody uses it, as was found after it was hidden.
    /// Returns: whether it goes; if not it is shown again.
    [[nodiscard]] bool settle(bool is_unused);

   private:
    friend class Eviction;
    Departure(Eviction& eviction, std::uint64_t version)
        : eviction_(&eviction), version_(version) {}

    Eviction* eviction_;
    std::uint64_t version_;
  };

  /// A guard is asked before any version leaves, as long as this lives.
  class Guarding {
   public:
    Guarding() = default;  // by nobody
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

    /// Waits for an eviction that is going on.
    void end() noexcept;

   private:
    friend class Eviction;
    Guarding(Eviction& eviction, VersionGuard& guard) : eviction_(&eviction), guard_(&guard) {}

    Eviction* eviction_ = nullptr;
    VersionGuard* guard_ = nullptr;
  };

  /// A version's files.
  struct Files {
    std::function<bool()> nobody_reads;  // those that would go
    std::function<void()> remove;
  };

  Eviction() = default;
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  /// Adds a guard, which is asked after those that were added before.  Waits for an eviction that
  /// is going on.
  [[nodiscard]] Guarding add_guard(VersionGuard& guard);

  /// `changed`: a version is hidden now, or is not any more: is_hidden() tells.  Called without the
  /// lock.  Waits for an eviction that is going on.  Empty: nobody is told.
  void set_changed(std::function<void()> changed);

  /// Waits while the version is going.  It need not be here: what is to be made is reserved first.
  /// Throws Error: cancelled, timed_out.
  [[nodiscard]] Reservation reserve(std::uint64_t version, Claim claim, const Context& context);
  /// nullopt while it is going.
  [[nodiscard]] std::optional<Reservation> try_reserve(std::uint64_t version, Claim claim);

  /// Waits until the version is neither leaving nor going.  Throws Error: cancelled, timed_out.
  void wait_settled(std::uint64_t version, const Context& context);

  /// It is leaving or going.
  [[nodiscard]] bool is_hidden(std::uint64_t version) const;
  /// It is reserved, and counts.
  [[nodiscard]] bool stays(std::uint64_t version) const;

  /// Evicts a version if the rule allows it.
  /// Returns: whether it is gone.
  bool evict(std::uint64_t version, const Files& files);

  /// The first step of evict(), which is made of these.  nullopt: it is reserved, or leaves
  /// already.
  [[nodiscard]] std::optional<Departure> leave(std::uint64_t version);

 private:
  enum class State { shown, leaving, going };
  struct Entry {
    State state = State::shown;
    bool was_reserved = false;  // since it is leaving
    unsigned stays = 0, in_use = 0;

    [[nodiscard]] bool is_reserved() const noexcept { return stays > 0 || in_use > 0; }
  };

  Reservation add(std::uint64_t version, Claim claim);  // requires: mutex_ is held
  void give_up(std::uint64_t version, Claim claim) noexcept;
  void show(std::uint64_t version) noexcept;
  void forget_if_idle(std::uint64_t version) noexcept;        // requires: mutex_ is held
  [[nodiscard]] State state_of(std::uint64_t version) const;  // the same
  // Of evict(): evict_mutex_ is held.
  [[nodiscard]] bool is_kept(std::uint64_t version) const;
  [[nodiscard]] bool withdraw(std::uint64_t version) const;
  [[nodiscard]] bool is_unused(std::uint64_t version, const Files& files) const;
  void stay(std::uint64_t version) const;

  // Held for a whole evict(); guards the next two; before mutex_.
  RankedMutex evict_mutex_{LockRank::evict, "Eviction::evict_mutex_"};
  std::vector<VersionGuard*> guards_;
  std::function<void()> changed_;
  // Guards what follows; held over nothing.
  mutable RankedMutex mutex_{LockRank::eviction, "Eviction::mutex_"};
  std::condition_variable_any settled_;
  std::map<std::uint64_t, Entry> entries_;  // others are shown, and not reserved
};

}  // namespace weightfs
