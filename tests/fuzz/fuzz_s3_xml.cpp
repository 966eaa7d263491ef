// What S3 answers: each reader takes any text.
//
// Input: the text.
#include "store/s3/xml.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs;
  const std::string_view text = fuzz::text_of(data, size);
  static_cast<void>(read_s3_error(text));
  fuzz::try_to([&] { static_cast<void>(read_s3_listing(text)); });
  fuzz::try_to([&] { static_cast<void>(read_s3_upload_id(text)); });
  fuzz::try_to([&] { static_cast<void>(read_s3_uploads(text)); });
  fuzz::try_to([&] {
    std::vector<std::string> etags;
    for (const S3PartEntry& part : read_s3_parts(text).parts) etags.push_back(part.etag);
    static_cast<void>(make_s3_completion(etags));
  });
  return 0;
}
