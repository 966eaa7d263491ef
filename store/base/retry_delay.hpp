// Retry delay: the pauses between retries of operations that are retried for ever: polls, versions
// that cannot be fetched, hand-overs.  (Single HTTP requests use store/http/backoff.hpp.)
//
// Doubles with each failure in a row up to kRetryDelayMax, then is multiplied by a random factor
// from 0.75 to 1.25, so that a thousand hosts that failed together do not retry together.
//
// Threads: pure except for `random`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace weightfs {

inline constexpr std::chrono::milliseconds kRetryDelayMax{24'000};  // 30 s with jitter

/// `first`: the pause without a failure; it may be above kRetryDelayMax.  Never below 0.75 ms.
inline std::chrono::microseconds retry_delay(std::chrono::milliseconds first, unsigned failures,
                                             std::minstd_rand& random) {
  std::chrono::milliseconds delay = std::max(first, std::chrono::milliseconds(1));
  for (unsigned i = 0; i < failures && delay < kRetryDelayMax; i++) delay *= 2;
  delay = std::max(first, std::min(delay, kRetryDelayMax));
  std::uniform_real_distribution<double> factor(0.75, 1.25);
  return std::chrono::microseconds(
      static_cast<std::int64_t>(static_cast<double>(delay.count()) * 1000 * factor(random)));
}

}  // namespace weightfs
