// Request counts: which requests of the kernel were answered how, for the metrics.  The session
// shows it every request and every answer, as they are on the connection, so that none is missed
// whoever answers.
//
// FORGET and INTERRUPT have no answer and are not counted; nor is INIT, which the session reads
// before.
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

struct RequestCount {
  std::string op;    // "read"
  std::string code;  // "ok", or the errno: "EIO"
  std::uint64_t count = 0;

  friend bool operator==(const RequestCount&, const RequestCount&) = default;
};

class RequestCounts {
 public:
  /// A request was read.
  void asked(std::span<const std::byte> request) noexcept;
  /// An answer is about to be written.
  void answered(std::span<const iovec> reply) noexcept;

  /// Those that happened, by operation.
  [[nodiscard]] std::vector<RequestCount> list() const;
  /// Bytes of answered READs, of any file.
  [[nodiscard]] std::uint64_t served_bytes() const noexcept { return served_bytes_; }

 private:
  static constexpr std::size_t kOps = 64, kCodes = 136;  // the last code: all others
  static constexpr std::size_t kShards = 16;

  /// Requests under way.
  struct Shard {
    RankedMutex mutex{LockRank::leaf, "RequestCounts::Shard::mutex"};  // guards `ops`
    std::unordered_map<std::uint64_t, std::uint32_t> ops;              // by the kernel's number
  };
  [[nodiscard]] Shard& shard_of(std::uint64_t unique) noexcept;

  std::array<Shard, kShards> shards_;
  std::array<std::array<std::atomic<std::uint64_t>, kCodes>, kOps> counts_{};
  std::atomic<std::uint64_t> served_bytes_ = 0;
};

}  // namespace weightfs::fs
