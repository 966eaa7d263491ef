#include "store/bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "store/bytes.hpp"
#include "store/dir_bucket.hpp"
#include "store/error.hpp"
#include "store/s3_address.hpp"
#include "store/s3_bucket.hpp"

namespace weightfs {

namespace {

constexpr std::size_t kFirstReadBytes = 64u << 10;
constexpr std::string_view kFileScheme = "file://";

std::string key_problem(std::string_view key) {
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view component = key.substr(begin, end - begin);
    const bool last = end == key.size();
    if (component.empty()) return "has an empty component";
    if (component.size() > 255) return "has a component of more than 255 bytes";
    if (component == "." || component == ".." || component == ".tmp") {
      return fmt::format("has a component '{}'", component);
    }
    if (component.front() == '.' && !last) return "has a directory that starts with '.'";
    for (const char c : component) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7F || byte == '\\') return "has a control character or '\\'";
    }
    if (last) return "";
    begin = end + 1;
  }
}

// The path part of a URL or plain path, absolute, without '.', '..', repeated and trailing '/'.
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

void TextSource::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (offset_bytes > text_.size() || into.size() > text_.size() - offset_bytes) {
    throw Error(ErrorCode::io, "a source was read beyond its end");
  }
  if (!into.empty()) std::memcpy(into.data(), text_.data() + offset_bytes, into.size());
}

unsigned request_threads(const Bucket& bucket, unsigned threads) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  return std::max(threads, bucket.parallel_requests());
}

void check_key(std::string_view key) {
  if (const std::string problem = key_problem(key); !problem.empty()) {
    throw Error(ErrorCode::invalid, fmt::format("the object key '{}' {}", key, problem));
  }
}

std::string get_all(Bucket& bucket, std::string_view key, std::uint64_t limit_bytes,
                    const Context& context) {
  // The buffer grows with what really comes, so a limit far above the object costs nothing.
  std::string all;
  std::size_t size = 0;
  for (std::size_t room = kFirstReadBytes;; room = all.size()) {
    all.resize(size + room);
    const std::span<char> rest(all.data() + size, room);
    const std::size_t count = bucket.get(key, size, std::as_writable_bytes(rest), context);
    size += count;
    if (size > limit_bytes) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("bucket {}: object {} is larger than the {} it may have",
                              bucket.url(), key, human_bytes(limit_bytes)));
    }
    if (count < room) break;
  }
  all.resize(size);
  return all;
}

void get_exact(Bucket& bucket, std::string_view key, std::uint64_t offset_bytes,
               std::span<std::byte> into, const Context& context) {
  const std::size_t count = bucket.get(key, offset_bytes, into, context);
  if (count == into.size()) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("bucket {}: object {} is too short: it ends at byte {}, expected {} or more",
                  bucket.url(), key, offset_bytes + count, offset_bytes + into.size()));
}

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
    throw Error(ErrorCode::invalid,
                fmt::format("endpoint, region, profile and signing are of S3 alone; the bucket {} "
                            "is a directory",
                            canonical));
  }
  return std::make_unique<DirBucket>(directory, create);
}

std::string canonical_url(std::string_view url) {
  // What has an '@' may have a secret in it.
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
