// Probe: may a bucket be written, and does it keep two writers of one key apart?  Everything that
// several publishers rely on is put_if_absent; some S3 services ignore its If-None-Match.
//
// One object, .probe-<32 hex digits>, is written twice; the second call must say `exists`, and the
// first one's byte must stay.  It is removed in the end, also after a failure, unless the key may
// not remove objects or the bucket went out of reach.
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

/// Throws Error: whatever the bucket throws but for permission to write and unsupported, which are
/// results.
ProbeResult probe_put_if_absent(Bucket& bucket, const Context& context);

/// Throws Error: unsupported if the bucket does not hold put-if-absent; permission if it may not be
/// written; what the probe throws.
void require_put_if_absent(Bucket& bucket, const Context& context);

}  // namespace weightfs
