
#include "fs/commands/host_choice.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {
namespace {

BucketOptions some_bucket(const std::string& region) {
  BucketOptions bucket;
  bucket.region = region;
  return bucket;
}

TEST(BucketOptions, FlagsGoFirstThenTheMountThenTheRest) {
  Options options;
  options.host.bucket = some_bucket("said");
  const Target bucket{"s3://b", {}, {}};
  const Target mount{"s3://b", "/m", some_bucket("mounted")};
  EXPECT_EQ(bucket_options_for(options, bucket).region, "said");
  EXPECT_EQ(bucket_options_for(options, mount).region, "mounted");
  options.bucket_flagged = true;
  EXPECT_EQ(bucket_options_for(options, mount).region, "said");
}

/// A configuration file that names an endpoint for the buckets of this host must not make
/// directories unusable; a flag is a mistake that open_bucket() has words for.
TEST(BucketOptions, ADirectoryHasNoneButFromFlags) {
  Options options;
  options.host.bucket = some_bucket("said");
  const Target directory{"file:///b", {}, {}};
  EXPECT_FALSE(is_set(bucket_options_for(options, directory)));
  options.bucket_flagged = true;
  EXPECT_TRUE(is_set(bucket_options_for(options, directory)));
}

TEST(BucketOptions, SurviveAStatus) {
  BucketOptions bucket{"https://h:1/p", "r", "p q", true, false};
  const BucketOptions read = bucket_options_from({{"bucket", to_json(bucket)}}, "status");
  EXPECT_EQ(read.endpoint_url, bucket.endpoint_url);
  EXPECT_EQ(read.region, bucket.region);
  EXPECT_EQ(read.profile, bucket.profile);
  EXPECT_TRUE(read.path_style);
  EXPECT_FALSE(read.sign);
  EXPECT_TRUE(to_json(BucketOptions{}).is_null());
  EXPECT_FALSE(is_set(bucket_options_from({{"bucket", nullptr}}, "status")));
  EXPECT_FALSE(is_set(bucket_options_from(Json::object(), "status"))) << "an older weightfs";
}

TEST(BucketOptions, AStatusThatIsNoneIsRefused) {
  Json json = to_json(some_bucket("r"));
  json["sign"] = "yes";
  try {
    bucket_options_from({{"bucket", json}}, "the status");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find("the status"), std::string::npos);
  }
}

}  // namespace
}  // namespace weightfs::fs
