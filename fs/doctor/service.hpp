// Service doctor: looks at the S3 service that a bucket is at.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "fs/base/finding.hpp"
#include "store/base/context.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

/// Of an S3 service: where it is, whose keys are used (never the secret), and the clock.
/// Returns: false if nothing of it can be reached.
bool look_at_service(const std::string& canonical_url, const BucketOptions& options,
                     const Context& context, std::vector<Finding>& findings);

/// How far this host's clock is ahead of a service's (negative: behind), in words.
Finding clock_finding(std::chrono::seconds ahead);

}  // namespace weightfs::fs
