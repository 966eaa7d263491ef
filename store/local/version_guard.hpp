// VersionGuard: anybody who shows versions to readers, or needs one here: the eviction asks it
// before a version leaves (store/local/eviction.hpp).  In the order of an eviction:
//
//     keeps      -> withdraw -> (hidden) -> keeps -> release -> (leases) -> removed
//                                  +----------+---------+----------+-> restore: it stays
//
// Threads: called from any thread, one version at a time, without the locks of the eviction's
// tables.
#pragma once

#include <cstdint>

namespace weightfs {

class VersionGuard {
 public:
  VersionGuard() = default;
  VersionGuard(const VersionGuard&) = delete;
  VersionGuard& operator=(const VersionGuard&) = delete;
  virtual ~VersionGuard() = default;

  /// It must stay for the time being: it is not even hidden.  Asked again after it was hidden.
  [[nodiscard]] virtual bool keeps(std::uint64_t /*version*/) { return false; }

  /// Closes the ways to it that no hiding closes.  False: somebody is there, it stays.
  [[nodiscard]] virtual bool withdraw(std::uint64_t /*version*/) { return true; }

  /// Gives up a version that is hidden from new readers.  False: somebody has a file of it open, as
  /// far as can be told without leases.
  [[nodiscard]] virtual bool release(std::uint64_t /*version*/) { return true; }

  /// It was withdrawn, and stays after all.
  virtual void restore(std::uint64_t /*version*/) {}
};

}  // namespace weightfs
