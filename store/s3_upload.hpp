// S3Upload: an object in parts.
//
//     the first large put    aborts uploads below the same first component of the key that began
//                            more than a day ago
//     begin                  takes the newest upload of this key that a crash left, with the parts
//                            in it whose size and MD5 are ours; or creates one
//     parts                  in parallel, kUploadBytesMax in flight at most; all of one size but
//                            the last (R2 insists)
//     complete               a 200 with an <Error> in it is a failure
//     failure                aborts, within a few seconds
//
// Keys that are written twice have equal bytes, so whoever finds that the upload is gone and the
// object there, with its size, is done: the reply of the completion was lost, or another host that
// resumed the same upload was faster.
//
// Memory: none of the object; parts are read when they are hashed and again when they are sent.
//
// Threads: may run in parallel.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "store/s3_request.hpp"

namespace weightfs {

/// Hash of a part of a source, as the signature of its upload has it.
std::string sha256_of(const Source& source, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      const Context& context);

class S3Uploader {
 public:
  explicit S3Uploader(S3Client& client) : client_(client) {}

  /// Uploads an object of more than kMultipartBytes.  Throws Error: as Bucket::put.
  void put(std::string_view key, const Source& source, const Context& context);

 private:
  void abort_old(std::string_view key, const Context& context);

  S3Client& client_;
  std::mutex mutex_;  // guards tidied_
  std::set<std::string> tidied_;
};

}  // namespace weightfs
