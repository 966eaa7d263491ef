// VersionGuard: interface of components that show versions to readers or need them here. The
// eviction asks it before a version leaves (store/local/eviction.hpp).  In the order of an
// eviction:
//
//     keeps -> withdraw -> (leases) -> (hidden) -> keeps -> release -> (leases) -> removed
//                              +----------+----------+---------+----------+-> restore: it stays
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

  /// The version must stay for now, and is not even hidden.  Asked again after it was hidden.
  [[nodiscard]] virtual bool keeps(std::uint64_t /*version*/) { return false; }

  /// Closes ways to the version that hiding does not close.  False: it is in use and stays.
  [[nodiscard]] virtual bool withdraw(std::uint64_t /*version*/) { return true; }

  /// Gives up a version that is hidden from new readers.  False: a file of it is open, as far as
  /// can be told without leases.
  [[nodiscard]] virtual bool release(std::uint64_t /*version*/) { return true; }

  /// Undoes withdraw(): the version stays.
  virtual void restore(std::uint64_t /*version*/) {}
};

}  // namespace weightfs
