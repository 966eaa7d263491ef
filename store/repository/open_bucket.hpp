// Open bucket: from a URL to its backend.  The one place that knows all of them.
//
// Threads: pure functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "store/bucket/bucket.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs {

/// Opens the bucket that a URL names: file:///dir, s3://bucket/prefix, hf://org/bucket/prefix.
/// `create`: creates an absent directory; S3 buckets are never created. `options`: apply only to
/// S3; a directory with any option is refused.
/// Throws Error: invalid (not a URL, unknown scheme, relative path), not_found, permission.
std::unique_ptr<Bucket> open_bucket(std::string_view url, bool create,
                                    const BucketOptions& options = {});

/// The canonical form of a URL, as messages, stores and /proc/mounts show it: no secrets, no
/// trailing '/', symlinks kept.  A path that starts with '/' or '.' is taken as file://.
/// Throws Error: invalid.
std::string canonical_url(std::string_view url);

/// The directory of a file:// URL; empty for other schemes.
std::string directory_of_url(std::string_view canonical);

}  // namespace weightfs
