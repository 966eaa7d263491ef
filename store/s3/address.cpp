#include "store/s3/address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <vector>

#include "store/base/error.hpp"
#include "store/http/service_url.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kS3Scheme = "s3://", kHfScheme = "hf://";
constexpr std::string_view kHfHost = "s3.hf.co";
constexpr std::string_view kGcsHost = "storage.googleapis.com";
constexpr std::size_t kPrefixBytesMax = 512;  // of the 1,024 bytes that S3 allows for a key

/// The text may contain a secret, so the message is only `why`.
Error no_address(std::string_view why) {
  return {ErrorCode::invalid, fmt::format("the bucket URL {}", why)};
}

Error no_gcs() {
  return {ErrorCode::invalid,
          "Google Cloud Storage is not supported: it has no If-None-Match for S3 clients, which "
          "publishing needs; use a directory, S3, Ceph, MinIO, R2 or an HF bucket"};
}

std::vector<std::string_view> components_of(std::string_view path) {
  std::vector<std::string_view> components;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    if (end != 0) components.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return components;
}

bool is_alphanumeric(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// AWS's rules for names, plus upper case and '_', which other services and old buckets have.
void check_bucket_name(std::string_view name, std::size_t size_min, std::string_view what) {
  const bool legal = std::all_of(name.begin(), name.end(), [](char c) {
    return is_alphanumeric(c) || c == '.' || c == '-' || c == '_';
  });
  if (legal && name.size() >= size_min && name.size() <= 63 && is_alphanumeric(name.front()) &&
      is_alphanumeric(name.back())) {
    return;
  }
  throw no_address(
      fmt::format("has a bad {}: {} to 63 letters, digits, '.', '-' and '_' are "
                  "expected, with a letter or digit at both ends",
                  what, size_min));
}

void check_prefix(std::span<const std::string_view> components) {
  std::size_t size = 0;
  for (const std::string_view component : components) {
    size += component.size() + 1;
    if (component.size() > 255 || size > kPrefixBytesMax) {
      throw no_address(
          fmt::format("is too long: a prefix has at most {} bytes, and 255 between "
                      "two '/'",
                      kPrefixBytesMax));
    }
    if (component == "." || component == "..") throw no_address("has '.' or '..' in its path");
    if (component.find('\\') != component.npos) throw no_address("has a '\\' in its path");
  }
}

/// The components after the scheme.
std::vector<std::string_view> checked_components(std::string_view rest) {
  if (rest.find('@') != rest.npos) {
    throw no_address(
        "contains an '@': keys do not belong in a URL; set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or use a profile");
  }
  if (rest.find_first_of("?#") != rest.npos) {
    throw no_address("has a '?' or '#' in it: only a bucket and a prefix are expected");
  }
  if (rest.starts_with('/')) throw no_address("has no bucket in it; use s3://BUCKET/PREFIX");
  return components_of(rest);
}

/// Drops the prefix that huggingface_hub writes before the organisation: hf://buckets/ORG/BUCKET.
std::span<const std::string_view> hf_components(std::span<const std::string_view> components) {
  for (const std::string_view other : {"datasets", "models", "spaces"}) {
    if (!components.empty() && components.front() == other) {
      throw no_address(
          fmt::format("names one of the hub's {}, which are not buckets; use "
                      "hf://ORG/BUCKET/PREFIX",
                      other));
    }
  }
  if (components.size() >= 3 && components.front() == "buckets") components = components.subspan(1);
  if (components.size() < 2) throw no_address("is too short; use hf://ORG/BUCKET/PREFIX");
  return components;
}

std::string canonical_of(std::string_view scheme, std::span<const std::string_view> components) {
  std::string url(scheme);
  for (const std::string_view component : components) {
    if (url.size() > scheme.size()) url += '/';
    url += component;
  }
  return url;
}

ServiceUrl endpoint_of(const S3Settings& settings) {
  if (!settings.endpoint.empty()) return parse_service_url(settings.endpoint, "the endpoint");
  const std::string_view suffix = settings.region.starts_with("cn-") ? ".cn" : "";
  return parse_service_url(fmt::format("https://s3.{}.amazonaws.com{}", settings.region, suffix),
                           "the region");
}

/// AWS certificates cover only one label before the host, and hosts have no upper case.
bool fits_into_host(std::string_view bucket) {
  return std::all_of(bucket.begin(), bucket.end(), [](char c) {
    return std::islower(static_cast<unsigned char>(c)) != 0 ||
           std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '-';
  });
}

void place_in_hf(S3Address& address, std::string_view org) {
  address.is_hf = true;
  address.scheme_and_host = fmt::format("https://{}", kHfHost);
  address.base_path = fmt::format("/{}/{}", org, address.bucket);
}

void place_at_endpoint(S3Address& address, const S3Settings& settings) {
  const ServiceUrl at = endpoint_of(settings);
  const std::string& host = at.host;
  if (host == kGcsHost || host.ends_with(fmt::format(".{}", kGcsHost))) throw no_gcs();
  address.is_hf = host == kHfHost;
  address.is_aws = host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
  if (address.is_aws && !settings.path_style && at.path.empty() && fits_into_host(address.bucket)) {
    const std::size_t name = at.scheme_and_host.find("://") + 3;
    address.scheme_and_host = fmt::format("{}{}.{}", at.scheme_and_host.substr(0, name),
                                          address.bucket, at.scheme_and_host.substr(name));
    address.base_path = "/";
    return;
  }
  address.scheme_and_host = at.scheme_and_host;
  address.base_path = fmt::format("{}/{}", at.path, address.bucket);
}

}  // namespace

HttpTarget S3Address::object(std::string_view key) const {
  const std::string_view slash = base_path.ends_with('/') ? "" : "/";
  return {scheme_and_host, fmt::format("{}{}{}{}", base_path, slash, prefix, key), {}};
}

HttpTarget S3Address::root() const { return {scheme_and_host, base_path, {}}; }

std::string canonical_s3_url(std::string_view url) {
  if (url.starts_with("gs://")) throw no_gcs();
  if (url.starts_with(kHfScheme)) {
    const auto all = checked_components(url.substr(kHfScheme.size()));
    const auto components = hf_components(all);
    check_bucket_name(components[0], 1, "organisation");
    check_bucket_name(components[1], 1, "bucket name");
    check_prefix(components.subspan(2));
    return canonical_of(kHfScheme, components);
  }
  if (!url.starts_with(kS3Scheme)) throw no_address("has a scheme other than s3:// and hf://");
  const auto components = checked_components(url.substr(kS3Scheme.size()));
  if (components.empty()) throw no_address("has no bucket in it; use s3://BUCKET/PREFIX");
  check_bucket_name(components.front(), 3, "bucket name");
  check_prefix(std::span(components).subspan(1));
  return canonical_of(kS3Scheme, components);
}

S3Address s3_address(std::string_view canonical, const S3Settings& settings) {
  S3Address address;
  address.url = canonical;
  const bool hf = canonical.starts_with(kHfScheme);
  const auto components = components_of(canonical.substr(kS3Scheme.size()));
  const std::size_t bucket = hf ? 1 : 0;
  if (components.size() <= bucket) throw no_address("names no bucket");
  address.bucket = components[bucket];
  for (std::size_t i = bucket + 1; i < components.size(); i++) {
    address.prefix += fmt::format("{}/", components[i]);
  }
  if (hf) {
    place_in_hf(address, components.front());
  } else {
    place_at_endpoint(address, settings);
  }
  return address;
}

}  // namespace weightfs
