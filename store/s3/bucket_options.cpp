#include "store/s3/bucket_options.hpp"

#include "store/base/error.hpp"

namespace weightfs {

bool is_set(const BucketOptions& options) noexcept {
  return !options.endpoint_url.empty() || !options.region.empty() || !options.profile.empty() ||
         options.path_style || !options.sign;
}

Json to_json(const BucketOptions& options) {
  if (!is_set(options)) return nullptr;
  return {{"endpoint_url", options.endpoint_url},
          {"region", options.region},
          {"profile", options.profile},
          {"path_style", options.path_style},
          {"sign", options.sign}};
}

BucketOptions bucket_options_from(const Json& status, const std::string& what) {
  const auto bucket = status.find("bucket");
  if (bucket == status.end() || bucket->is_null()) return {};
  BucketOptions options;
  options.endpoint_url = json_string(*bucket, "endpoint_url", what);
  options.region = json_string(*bucket, "region", what);
  options.profile = json_string(*bucket, "profile", what);
  const auto is_true = [&](const char* name) {
    const Json& value = json_field(*bucket, name, what);
    if (value.is_boolean()) return value.get<bool>();
    throw Error(ErrorCode::corrupt, what + ": the bucket's " + name + " must be true or false");
  };
  options.path_style = is_true("path_style");
  options.sign = is_true("sign");
  return options;
}

}  // namespace weightfs
