// Bucket options: the user's options for an S3 bucket, from the command line or from a mount's
// status.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "store/base/json.hpp"

namespace weightfs {

/// What the command line says about a bucket; empty: as the AWS tools find it.
struct BucketOptions {
  std::string endpoint_url, region, profile;
  bool path_style = false;  // the bucket in the path also on amazonaws.com
  bool sign = true;         // false: --no-sign-request
};

/// Whether any option is set.
bool is_set(const BucketOptions& options) noexcept;

/// null if no option is set.  Contains no secret.
Json to_json(const BucketOptions& options);

/// Reads them from a status; that of an older weightfs has none.
/// Throws Error: corrupt, naming `what`.
BucketOptions bucket_options_from(const Json& status, const std::string& what);

}  // namespace weightfs
