// Which bucket a URL names, and where its requests go.

#include "store/s3/address.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs {
namespace {

using test::code_of;

S3Settings settings_at(std::string endpoint, std::string region = "us-east-1") {
  S3Settings settings;
  settings.endpoint = std::move(endpoint);
  settings.region = std::move(region);
  return settings;
}

std::string object_url(std::string_view url, const S3Settings& settings) {
  return s3_address(canonical_s3_url(url), settings).object("k/1").url();
}

TEST(S3Address, HasOneCanonicalForm) {
  EXPECT_EQ(canonical_s3_url("s3://bucket"), "s3://bucket");
  EXPECT_EQ(canonical_s3_url("s3://bucket/"), "s3://bucket");
  EXPECT_EQ(canonical_s3_url("s3://bucket//a///b/"), "s3://bucket/a/b");
  EXPECT_EQ(canonical_s3_url("hf://org/bucket/run/"), "hf://org/bucket/run");
  EXPECT_EQ(canonical_s3_url("hf://buckets/org/bucket/run"), "hf://org/bucket/run");
}

TEST(S3Address, VirtualHostStyleIsForAwsAlone) {
  EXPECT_EQ(object_url("s3://bucket/run", settings_at("", "eu-west-1")),
            "https://bucket.s3.eu-west-1.amazonaws.com/run/k/1");
  EXPECT_EQ(object_url("s3://bucket", settings_at("", "cn-north-1")),
            "https://bucket.s3.cn-north-1.amazonaws.com.cn/k/1");
  EXPECT_EQ(object_url("s3://my.bucket/run", settings_at("")),
            "https://s3.us-east-1.amazonaws.com/my.bucket/run/k/1");
  EXPECT_EQ(object_url("s3://bucket/run", settings_at("http://127.0.0.1:9000")),
            "http://127.0.0.1:9000/bucket/run/k/1");
  EXPECT_EQ(object_url("s3://bucket/run", settings_at("https://amazonaws.com.example")),
            "https://amazonaws.com.example/bucket/run/k/1");
  S3Settings path_style = settings_at("");
  path_style.path_style = true;
  EXPECT_EQ(object_url("s3://bucket/run", path_style),
            "https://s3.us-east-1.amazonaws.com/bucket/run/k/1");
}

TEST(S3Address, TheBucketItselfHasNoSlashBehindIt) {
  const auto root = [](const S3Settings& settings) {
    return s3_address("s3://bucket/run", settings).root().url();
  };
  EXPECT_EQ(root(settings_at("http://host:1")), "http://host:1/bucket");
  EXPECT_EQ(root(settings_at("")), "https://bucket.s3.us-east-1.amazonaws.com/");
}

TEST(S3Address, HfHasItsOwnEndpointWithAPath) {
  const S3Settings settings = settings_at("http://127.0.0.1:9000", "eu-west-1");
  EXPECT_EQ(object_url("hf://org/bucket/run", settings), "https://s3.hf.co/org/bucket/run/k/1");
  EXPECT_TRUE(s3_address("hf://org/bucket", settings).is_hf);
  EXPECT_EQ(object_url("s3://bucket/run", settings_at("https://s3.hf.co/org")),
            "https://s3.hf.co/org/bucket/run/k/1");
  EXPECT_TRUE(s3_address("s3://bucket", settings_at("https://s3.hf.co/org")).is_hf);
}

TEST(S3Address, KeysAreEncodedOnce) {
  const S3Address address = s3_address("s3://bucket/a b", settings_at("http://h"));
  EXPECT_EQ(address.object("gr\xC3\xBC%/x+y").url(), "http://h/bucket/a%20b/gr%C3%BC%25/x%2By");
}

TEST(S3Address, RefusesWhatIsNone) {
  for (const char* url :
       {"s3://", "s3:///key", "s3://ab", "s3://-bucket", "s3://bucket_/", "s3://b\xC3\xBC",
        "s3://bucket/../x", "s3://bucket/./x", "s3://bucket/a\\b", "s3://bucket?x=1",
        "s3://bucket/a#b", "s3://bucket:80/x", "hf://org", "hf://", "hf://datasets/org/name",
        "s3://key:hidden@bucket", "hf://hidden@org/bucket", "gs://bucket"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { canonical_s3_url(url); }, &message), ErrorCode::invalid) << url;
    EXPECT_EQ(message.find("hidden"), std::string::npos) << message;
  }
  EXPECT_EQ(code_of([] { canonical_s3_url("s3://bucket/" + std::string(256, 'x')); }),
            ErrorCode::invalid);
}

TEST(S3Address, NamesGoogleCloudStorage) {
  std::string message;
  const S3Settings settings = settings_at("https://storage.googleapis.com");
  EXPECT_EQ(code_of([&] { s3_address("s3://bucket", settings); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find("Google Cloud Storage is not supported"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { canonical_s3_url("gs://bucket"); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find("Google Cloud Storage is not supported"), std::string::npos) << message;
}

}  // namespace
}  // namespace weightfs
