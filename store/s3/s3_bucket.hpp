// S3Bucket: a bucket behind the S3 protocol: AWS, Ceph, MinIO, R2, HF Buckets.
//
//   * put_if_absent is a PUT with If-None-Match: *.  A 412 after an attempt whose reply was lost is
//     settled by reading the object back: the same bytes (they carry a nonce) are our own.
//   * Objects above kMultipartBytes go up in parts, in parallel; an upload that failed is aborted,
//     and one that a crash left under the same key is resumed: existing parts with the right MD5
//     are not sent again.  Uploads of this repository that are older than a day are
//     aborted by a large put, once a day.
//   * Bodies are signed by their SHA-256, so the service verifies what arrives.
//   * A GET is a range request: status, Content-Range and length are checked; redirects (HF) are
//     followed by hand, without credentials, https only, three hops at most.
//   * A PUT is believed only if the answer has an ETag.
//   * Transient failures are tried again (store/http/backoff.hpp); a skewed clock is learned from
//     the Date header; keys that are refused are fetched anew, once.
//   * An upload reads its Source once, part by part: the bytes that are hashed and signed are those
//     that are sent, also in retries.
//   * Memory: kUploadBytesMax of parts, of all uploads together, whatever the sizes; downloads go
//     straight into the caller's buffer.
//
// Threads: all calls may run in parallel.
#pragma once

#include <memory>
#include <string>

#include "store/bucket/bucket.hpp"
#include "store/s3/settings.hpp"
#include "store/s3/upload.hpp"

namespace weightfs {

class S3Bucket final : public Bucket {
 public:
  /// Asks nothing of the network.  Throws Error: invalid (also a profile that is not there),
  /// permission, unsupported.
  S3Bucket(std::string_view canonical_url, const BucketOptions& options, Environment environment);
  ~S3Bucket() override;

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override;
  void put(std::string_view key, const Source& source, const Context& context) override;
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override;
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override;
  Time now(const Context& context) override;
  void remove(std::string_view key, const Context& context) override;
  [[nodiscard]] const std::string& url() const noexcept override;
  [[nodiscard]] unsigned parallel_requests() const noexcept override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs
