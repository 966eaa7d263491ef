// Bucket doctor: checks one bucket from this host, and says how to fix what is wrong.
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

/// `repository`: the id of the one that a mount follows; empty: any will do.
/// Errors of the bucket are not thrown: they become findings.
/// Throws Error: invalid (not a URL; options with a directory), cancelled.
BucketDiagnosis diagnose_bucket(const std::string& canonical_url, const BucketOptions& options,
                                const Context& context, const std::string& repository = {});

/// Checks the repository, reading, listing, writing and put-if-absent.
void look_at_bucket(Bucket& bucket, const Context& context, std::vector<Finding>& findings,
                    const std::string& repository = {});

}  // namespace weightfs::fs
