// Probe: is a bucket writable, and does it keep two writers of one key apart?  Concurrent
// publishers rely on put_if_absent alone, and some S3 services ignore its If-None-Match.
//
// One object, .probe-<32 hex digits>, is written twice; the second call must return `exists`, and
// the first byte must be unchanged.  The object is removed at the end, even after a failure, unless
// the key has no permission to or the bucket became unreachable.
//
// Threads: all calls may run in parallel.
#pragma once

#include <string>

#include "store/bucket/bucket.hpp"

namespace weightfs {

struct ProbeResult {
  enum class Outcome { held, not_held, not_permitted };
  Outcome outcome{};
  std::string why;   // not held, not permitted: what the bucket said
  std::string left;  // the key of the probe's object if it may still be there; else ""
};

/// Throws Error: whatever the bucket throws, except for a missing permission to write and
/// unsupported, which are results.
ProbeResult probe_put_if_absent(Bucket& bucket, const Context& context);

/// Throws Error: unsupported if the bucket does not support put-if-absent; permission if it is not
/// writable; what the probe throws.
void require_put_if_absent(Bucket& bucket, const Context& context);

}  // namespace weightfs
