#include "store/repository/open_bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "store/aws/config.hpp"
#include "store/base/error.hpp"
#include "store/bucket/dir_bucket.hpp"
#include "store/s3/address.hpp"
#include "store/s3/s3_bucket.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kFileScheme = "file://";

// The path part of a URL or plain path: absolute, without '.', '..', and repeated or trailing '/'.
std::string canonical_path(std::string_view path) {
  std::string normal = std::filesystem::absolute(path).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
}

}  // namespace

std::unique_ptr<Bucket> open_bucket(std::string_view url, bool create,
                                    const BucketOptions& options) {
  const std::string canonical = canonical_url(url);
  const std::string directory = directory_of_url(canonical);
  if (directory.empty()) {
    return std::make_unique<S3Bucket>(canonical, options, process_environment());
  }
  const bool any = !options.endpoint_url.empty() || !options.region.empty() ||
                   !options.profile.empty() || options.path_style || !options.sign;
  if (any) {
    throw Error(
        ErrorCode::invalid,
        fmt::format(
            "endpoint, region, profile and signing apply only to S3; the bucket {} is a directory",
            canonical));
  }
  return std::make_unique<DirBucket>(directory, create);
}

std::string canonical_url(std::string_view url) {
  // A text with an '@' may contain a secret.
  const std::string_view shown = url.find('@') == url.npos ? url : "(with an '@')";
  const auto refuse = [&](std::string_view why) -> Error {
    return {ErrorCode::invalid, fmt::format("'{}' is not a bucket URL: {}", shown, why)};
  };
  if (url.empty()) throw refuse("it is empty; use s3://BUCKET/PREFIX or file:///dir");
  if (has_control_character(url)) {
    throw Error(ErrorCode::invalid, "the bucket URL has a control character in it");
  }
  if (url.starts_with('/') || url.starts_with('.')) {
    return std::string(kFileScheme) + canonical_path(url);
  }
  if (url.starts_with(kFileScheme)) {
    const std::string_view path = url.substr(kFileScheme.size());
    if (!path.starts_with('/'))
      throw refuse("a file URL needs an absolute path, as in file:///dir");
    return std::string(kFileScheme) + canonical_path(path);
  }
  for (const std::string_view scheme : {"s3://", "hf://", "gs://"}) {
    if (url.starts_with(scheme)) return canonical_s3_url(url);
  }
  throw refuse(
      "use s3://BUCKET/PREFIX, hf://ORG/BUCKET/PREFIX, file:///dir, or a path that starts "
      "with '/' or '.'");
}

std::string directory_of_url(std::string_view canonical) {
  return canonical.starts_with(kFileScheme) ? std::string(canonical.substr(kFileScheme.size()))
                                            : "";
}

}  // namespace weightfs
