// S3Xml: the XML of S3, in answers and requests.  The only home of pugixml.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/bucket/bucket.hpp"

namespace weightfs {

/// <Error>.
struct S3ErrorText {
  std::string code, message, request_id, region;
};

/// nullopt: `text` has no <Error> at its root.  Never throws for bad XML.
std::optional<S3ErrorText> read_s3_error(std::string_view text);

/// <ListBucketResult> of ListObjectsV2.
struct S3Listing {
  std::vector<ObjectInfo> objects;  // keys are decoded
  std::string continuation;         // empty: this is the last page
};

/// <ListMultipartUploadsResult>: one upload.
struct S3UploadEntry {
  std::string key, id;
  std::string initiated;  // "2026-09-30T12:00:00.000Z": sorts by time
};

/// <ListPartsResult>.
struct S3PartEntry {
  unsigned number = 0;
  std::uint64_t size_bytes = 0;
  std::string etag;  // without quotes
};
struct S3Parts {
  std::vector<S3PartEntry> parts;
  std::string next_marker;  // empty: this is the last page
};

/// Throw Error: unavailable, if the text is not such an answer (it was cut, an <Error> came after
/// the status, something in between answered); read_s3_uploads: unsupported, if it lists objects.
S3Listing read_s3_listing(std::string_view text);
std::string read_s3_upload_id(std::string_view text);
std::vector<S3UploadEntry> read_s3_uploads(std::string_view text);
S3Parts read_s3_parts(std::string_view text);
void check_s3_completion(std::string_view text);  // <CompleteMultipartUploadResult>

/// <CompleteMultipartUpload>; `etags` by part number, from 1 on.
std::string make_s3_completion(std::span<const std::string> etags);

}  // namespace weightfs
