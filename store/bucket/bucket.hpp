// Bucket: where a repository is shared.  Six calls; every backend keeps the same contract
// (tests/store/bucket/bucket_contract_test.cpp runs over all of them).  BucketReader is the one of
// them that reads an object: all that is needed of a place where bytes of a snapshot lie.
//
//   * An object is whole or absent: a reader never sees half of one.
//   * put_if_absent is atomic: of any number of callers exactly one gets `created`.
//   * Once put, put_if_absent or remove has returned, its effect is durable.
//   * list() is only a hint: nothing may be concluded from it alone.
//
// Keys are '/'-separated components of 1 to 255 bytes, UTF-8 without control characters and '\'.
// Only the last component may start with '.'; none is '.', '..' or '.tmp'.
//
// Errors: not_found (no such object), permission, no_space, unavailable (worth a retry), timed_out,
// cancelled, io.  Every message names the bucket and the key.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/source.hpp"

namespace weightfs {

/// The size of objects that may be overwritten with other bytes (readers/, early/, the repository
/// record).  What is larger keeps its bytes for ever.
inline constexpr std::uint64_t kRewrittenBytesMax = 4u << 20;

/// An object as a bucket lists it.
struct ObjectInfo {
  std::string key;
  std::uint64_t size_bytes = 0;
  /// When it was written, by the bucket's own clock; exact to a second.
  std::chrono::system_clock::time_point written;
};

class BucketReader {
 public:
  virtual ~BucketReader() = default;

  /// Reads from `offset_bytes` until `into` is full or the object ends.
  /// Returns: the bytes read; 0 if the offset is at or beyond the end.
  virtual std::size_t get(std::string_view key, std::uint64_t offset_bytes,
                          std::span<std::byte> into, const Context& context) = 0;

  /// The useful number of requests in flight; 0: work_threads().
  [[nodiscard]] virtual unsigned parallel_requests() const noexcept { return 0; }

  /// For messages: the URL without secrets.
  [[nodiscard]] virtual const std::string& url() const noexcept = 0;

  /// For messages: what to do if an object has other bytes than it should.
  [[nodiscard]] virtual std::string_view remedy() const noexcept {
    return "the object is damaged in the bucket, restore it from a copy";
  }
};

class Bucket : public BucketReader {
 public:
  using Time = std::chrono::system_clock::time_point;

  enum class Put { created, exists };

  /// Writes an object, replacing one that is there.  Keys that are written twice have equal bytes,
  /// except for those that one writer alone overwrites (kRewrittenBytesMax).
  virtual void put(std::string_view key, const Source& source, const Context& context) = 0;

  virtual Put put_if_absent(std::string_view key, std::string_view bytes,
                            const Context& context) = 0;

  /// Objects whose keys start with `prefix` and sort after `after`, by key, at most 1,000.
  virtual std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                               const Context& context) = 0;

  /// Their keys alone.
  std::vector<std::string> list(std::string_view prefix, std::string_view after,
                                const Context& context);

  /// The time now by the clock that ObjectInfo::written is taken from.  A directory's is that of
  /// its file system, which is asked by writing a file: so it needs write permission there.
  virtual Time now(const Context& context) = 0;

  /// Removes an object; absent is fine.
  virtual void remove(std::string_view key, const Context& context) = 0;

  /// This object is there as long as the bucket is.  A bucket whose place may be empty for a while
  /// (a directory where a file system is mounted) is gone while it is missing.
  virtual void set_landmark(std::string_view /*key*/) {}
};

/// The number of threads for work limited by the bucket's latency rather than CPU: the larger of
/// `threads` (0: work_threads()) and the bucket's number of requests in flight.
unsigned request_threads(const BucketReader& bucket, unsigned threads);

/// Throws Error: invalid if a backend may refuse the key.
void check_key(std::string_view key);

/// A whole object of at most `limit_bytes`.
/// Throws Error: not_found; corrupt if it is larger.
std::string get_all(BucketReader& bucket, std::string_view key, std::uint64_t limit_bytes,
                    const Context& context);

/// Whether there is such an object, by its first byte.
bool has_object(BucketReader& bucket, std::string_view key, const Context& context);

/// Fills `into` completely.  Throws Error: not_found; corrupt if the object is too short.
void get_exact(BucketReader& bucket, std::string_view key, std::uint64_t offset_bytes,
               std::span<std::byte> into, const Context& context);

}  // namespace weightfs
