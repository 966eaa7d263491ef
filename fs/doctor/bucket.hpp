// Bucket doctor: what can be found out about one bucket from this host, and what to do about what
// is wrong.
//
// Threads: a pure function of the system's state; writes one probe object
// (store/repository/probe.hpp), which is removed.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fs/base/finding.hpp"
#include "store/base/context.hpp"
#include "store/bucket/bucket.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

struct BucketDiagnosis {
  std::string url;  // canonical
  std::vector<Finding> findings;

  [[nodiscard]] bool is_broken() const noexcept;
};

/// Never throws what the bucket says: that is a finding.
/// Throws Error: invalid (no URL; options with a directory), cancelled.
BucketDiagnosis diagnose_bucket(const std::string& canonical_url, const BucketOptions& options,
                                const Context& context);

/// The repository, reading, listing, writing and put-if-absent.
void look_at_bucket(Bucket& bucket, const Context& context, std::vector<Finding>& findings);

}  // namespace weightfs::fs
