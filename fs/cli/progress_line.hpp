// Progress line: shows the progress of a long operation, on one line of a terminal that is
// overwritten.
//
//     reading      42 %  1.2 GiB of 2.9 GiB  310 MiB/s  5 s left
//
// Nothing is shown during the first second, so that short operations stay silent.  If there is no
// update for some seconds, the line says so.
//
// Threads: callback() may be called by any thread; the rest belongs to one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

/// The text of one line.
std::string progress_text(std::string_view phase, std::uint64_t done_bytes,
                          std::uint64_t total_bytes, Clock::duration elapsed);

class ProgressLine {
 public:
  /// `columns`: of the terminal; a longer line is truncated, since it could not be erased. 0:
  /// unknown.  `now`: for tests.
  explicit ProgressLine(std::ostream& out, std::size_t columns = 0,
                        std::function<Clock::time_point()> now = Clock::now);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::string_view phase, std::uint64_t done_bytes, std::uint64_t total_bytes);

  /// If there was no update for some seconds, says so: the bucket does not answer.
  void tell_silence();

  /// Erases the line, so that other text can follow.
  void clear();

 private:
  void show(std::string text);

  std::ostream& out_;
  const std::size_t columns_;
  const std::function<Clock::time_point()> now_;
  const Clock::time_point started_;

  RankedMutex mutex_{LockRank::leaf, "ProgressLine::mutex_"};  // guards the fields below, and out_
  std::string phase_;
  Clock::time_point phase_started_, shown_, updated_;
  bool visible_ = false;
};

}  // namespace weightfs::fs
