// ManualPins: versions whose images are kept because a user asked for it (`weightfs pin`).  They
// are recorded in the store, so they survive restarts.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <map>

#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"

namespace weightfs {

/// The most versions that can be pinned manually.
inline constexpr std::size_t kManualPinsMax = 4096;

class ManualPins {
 public:
  /// Reads the record; keeps the reference.  An invalid record counts as empty.
  explicit ManualPins(Db& db);

  /// Pinned version -> time of pinning, in seconds since 1970.
  [[nodiscard]] std::map<std::uint64_t, std::int64_t> list() const;
  [[nodiscard]] bool contains(std::uint64_t version) const;

  /// Durable.  Does nothing if the version is already pinned.
  /// Throws Error: busy (kManualPinsMax are pinned), no_space, io; nothing was changed.
  void add(std::uint64_t version, std::int64_t time);

  /// Durable.  Returns: whether it was pinned.  Throws Error: no_space, io; nothing was changed.
  bool remove(std::uint64_t version);

 private:
  void write(const std::map<std::uint64_t, std::int64_t>& pins);  // requires: change_mutex_ is held

  Db& db_;
  // Held across the database write; before mutex_.
  RankedMutex change_mutex_{LockRank::manual_pins_change, "ManualPins::change_mutex_"};
  mutable RankedMutex mutex_{LockRank::manual_pins, "ManualPins::mutex_"};  // guards pins_
  std::map<std::uint64_t, std::int64_t> pins_;
};

}  // namespace weightfs
