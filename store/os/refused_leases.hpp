// Refused leases: why versions that could go stay where the kernel does not tell who reads them
// (store/os/lease.hpp).  It is logged whenever the reason is another one, and stands in the status
// for an hour, or until that file's readers are known, or it is gone when it is asked for again.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class RefusedLeases {
 public:
  /// `stands`: how long a refusal counts that was not repeated.
  explicit RefusedLeases(Clock::duration stands = std::chrono::hours(1)) noexcept
      : stands_(stands) {}

  /// A file was asked for.  `why`: the kernel did not tell who reads it; empty: it did.
  void note(const std::filesystem::path& file, const std::string& why);

  /// What a user is told; empty: nothing is refused.
  [[nodiscard]] std::string text() const;

 private:
  const Clock::duration stands_;
  mutable RankedMutex mutex_{LockRank::leaf, "RefusedLeases::mutex_"};  // guards what follows
  std::filesystem::path file_;                                          // the last one
  std::string why_;                                                     // empty: none
  Clock::time_point noted_;
};

}  // namespace weightfs
