// Bucket options: what somebody said about an S3 bucket: flags, or a status that tells them.
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

/// Whether anything is said.
bool is_set(const BucketOptions& options) noexcept;

/// null if nothing is said.  Holds no secret.
Json to_json(const BucketOptions& options);

/// Of a status; of an older weightfs, which has none, nothing.
/// Throws Error: corrupt, naming `what`.
BucketOptions bucket_options_from(const Json& status, const std::string& what);

}  // namespace weightfs
