// Request kinds: the one table of what requests may be parked, what they wait for, and how long.
//
// A session has a pool for each class of waiting, and in it each kind has a share of its own, so
// no kind waits for another's work.  docs/architecture/threads.md has the same table.
//
// Knows no libfuse.  Threads: constant data.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fs/fuse/requests.hpp"

namespace weightfs::fs {

/// What a request waits for.
enum class WaitClass : std::uint8_t {
  local,      // the page cache and this host's disk; also bytes that stream in, without a worker
  bucket,     // the bucket, or what is made from it
  disk,       // the disk, for minutes; writers only
  exclusive,  // the publish queue; writers only
};
inline constexpr std::size_t kWaitClassCount = 4;

enum class RequestKind : std::uint8_t {
  read,         // of an image
  streamed,     // READ of bytes that stream in
  text,         // OPEN of a generated text
  staged_read,  // READ and LSEEK of a staged file
  name,         // LOOKUP of an old version: manifest and layout from the bucket
  fill,         // the first OPEN of a version that is not here
  size,         // LOOKUP and GETATTR of a delta: pack headers from the bucket
  build,        // OPEN of a delta: builds the file
  remote,       // READ of a file that this host does not keep
  change,       // write, truncate, fallocate
  make,         // CREATE and MKNOD where room must be made first
  sync,         // fsync, fsyncdir
  move,         // hand-over, taking back, removal below publish/
};

struct RequestPolicy {
  RequestKind kind;
  WaitClass waits_for;
  unsigned workers;            // that it may occupy at once
  std::chrono::seconds limit;  // 0: --read-timeout
  int late;                    // what the caller gets when the limit has passed
  OnGiveUp on_give_up = OnGiveUp::abandon;
  bool is_reader = false;   // gets EIO for what it has no use for, and the log says why
  bool may_not_be = false;  // EOPNOTSUPP is of use to it: there is no such file (a delta)
};

const RequestPolicy& policy_of(RequestKind kind) noexcept;

/// The shares of the pool of a class; see RequestPool.
std::vector<unsigned> shares_of(WaitClass waits_for);
/// The index of a kind's share in the pool of its class.
std::size_t share_of(RequestKind kind) noexcept;

}  // namespace weightfs::fs
