// ProgressCounter: adds up the progress of several threads in one phase, and reports it.
//
// Threads: add() may run in parallel.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "store/base/context.hpp"

namespace weightfs {

class ProgressCounter {
 public:
  /// Keeps the reference; `phase` is a literal.
  ProgressCounter(const Progress& progress, std::string_view phase, std::uint64_t total_bytes)
      : progress_(progress), phase_(phase), total_(total_bytes) {}
  ProgressCounter(Progress&& progress, std::string_view phase, std::uint64_t total_bytes) = delete;

  void add(std::uint64_t bytes) {
    const std::uint64_t done = done_ += bytes;
    if (progress_) progress_(phase_, done, total_);
  }

 private:
  const Progress& progress_;
  std::string_view phase_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace weightfs
