// Service doctor: checks the S3 service of a bucket.
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

/// Checks where the S3 service is, whose keys are used (never showing the secret), and the clock.
/// Returns: false if it cannot be used: bad settings, no keys, or no connection.
bool look_at_service(const std::string& canonical_url, const BucketOptions& options,
                     const Context& context, std::vector<Finding>& findings);

/// How far this host's clock is ahead of the service's (negative: behind).
Finding clock_finding(std::chrono::seconds ahead);

}  // namespace weightfs::fs
