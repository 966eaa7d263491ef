#include "store/bucket/bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {

namespace {

constexpr std::size_t kFirstReadBytes = 64u << 10;

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

}  // namespace

std::vector<std::string> Bucket::list(std::string_view prefix, std::string_view after,
                                      const Context& context) {
  std::vector<std::string> keys;
  for (ObjectInfo& object : list_objects(prefix, after, context)) {
    keys.push_back(std::move(object.key));
  }
  return keys;
}

unsigned request_threads(const BucketReader& bucket, unsigned threads) {
  if (threads == 0) threads = work_threads();
  return std::max(threads, bucket.parallel_requests());
}

void check_key(std::string_view key) {
  if (const std::string problem = key_problem(key); !problem.empty()) {
    throw Error(ErrorCode::invalid, fmt::format("the object key '{}' {}", key, problem));
  }
}

std::string get_all(BucketReader& bucket, std::string_view key, std::uint64_t limit_bytes,
                    const Context& context) {
  // The buffer grows with the received bytes, so a limit far above the object's size costs nothing.
  std::string all;
  std::size_t size = 0;
  for (std::size_t room = kFirstReadBytes;; room = all.size()) {
    all.resize(size + room);
    const std::span<char> rest(all.data() + size, room);
    const std::size_t count = bucket.get(key, size, std::as_writable_bytes(rest), context);
    size += count;
    if (size > limit_bytes) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("bucket {}: object {} is larger than its limit of {}", bucket.url(),
                              key, human_bytes(limit_bytes)));
    }
    if (count < room) break;
  }
  all.resize(size);
  return all;
}

bool has_object(BucketReader& bucket, std::string_view key, const Context& context) {
  std::byte byte{};
  try {
    bucket.get(key, 0, {&byte, 1}, context);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return false;
    throw;
  }
}

void get_exact(BucketReader& bucket, std::string_view key, std::uint64_t offset_bytes,
               std::span<std::byte> into, const Context& context) {
  const std::size_t count = bucket.get(key, offset_bytes, into, context);
  if (count == into.size()) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("bucket {}: object {} is too short: it ends at byte {}, expected {} or more",
                  bucket.url(), key, offset_bytes + count, offset_bytes + into.size()));
}

}  // namespace weightfs
