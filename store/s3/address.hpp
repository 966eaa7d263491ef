// S3Address: which bucket an s3:// or hf:// URL means, and where its requests go.
//
//     s3://bucket[/prefix]        virtual-host style on amazonaws.com (unless the name does not fit
//                                 into a host: a dot, '_', upper case), path style on all others
//     hf://ORG/BUCKET[/prefix]    s3://BUCKET/prefix at https://s3.hf.co/ORG, whatever endpoint the
//                                 settings have: path style, region us-east-1. hf://buckets/ORG/...
//                                 means the same.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/aws/sigv4.hpp"
#include "store/s3/settings.hpp"

namespace weightfs {

struct S3Address {
  std::string url;  // canonical, for messages: "s3://bucket/prefix"
  std::string bucket;
  std::string prefix;  // "" or ending in '/'
  std::string scheme_and_host;
  std::string base_path;  // of the bucket: "/", "/bucket" or "/org/bucket"
  bool is_aws = false, is_hf = false;

  /// The target of an object; `key` without the prefix.
  [[nodiscard]] HttpTarget object(std::string_view key) const;
  /// The target of the bucket itself: LIST and the like.
  [[nodiscard]] HttpTarget root() const;
};

/// The canonical form of an s3:// or hf:// URL: no trailing '/', no empty components.
/// Throws Error: invalid (gs:// and GCS endpoints by name; a bad bucket name; user:password@; a
/// query).
std::string canonical_s3_url(std::string_view url);

/// Throws Error: invalid.
S3Address s3_address(std::string_view canonical, const S3Settings& settings);

}  // namespace weightfs
