#include "store/aws/sigv4.hpp"

#include <gtest/gtest.h>

#include <ctime>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

const AwsCredentials kPublishedKeys{
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", {}, "test"};

std::string signed_header(const HttpRequest& request, const std::string& name) {
  std::string value;
  for (const HttpHeader& header : request.headers) {
    if (header.name == name) value += (value.empty() ? "" : "|") + header.value;
  }
  return value;
}

std::chrono::system_clock::time_point day_of_examples() {
  return std::chrono::system_clock::from_time_t(1369353600);  // 2013-05-24T00:00:00Z
}

// docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
std::string sign_published(HttpRequest request, std::string path,
                           std::vector<std::pair<std::string, std::string>> query,
                           std::string_view body = kEmptySha256) {
  const Signer signer("us-east-1", "s3");
  const HttpTarget target{"https://examplebucket.s3.amazonaws.com", std::move(path),
                          std::move(query)};
  signer.sign(request, target, body, kPublishedKeys, day_of_examples());
  return signed_header(request, "Authorization");
}

std::string expected_authorization(const std::string& names, const std::string& signature) {
  return "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
         "SignedHeaders=" +
         names + ", Signature=" + signature;
}

TEST(SigV4, SignsAsThePublishedExamples) {
  HttpRequest get;
  get.headers = {{"Range", "bytes=0-9"}};
  EXPECT_EQ(
      sign_published(get, "/test.txt", {}),
      expected_authorization("host;range;x-amz-content-sha256;x-amz-date",
                             "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));

  HttpRequest put;
  put.method = "PUT";
  put.headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                 {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  EXPECT_EQ(
      sign_published(put, "/test$file.text", {},
                     "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
      expected_authorization("date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                             "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));

  EXPECT_EQ(
      sign_published({}, "/", {{"lifecycle", ""}}),
      expected_authorization("host;x-amz-content-sha256;x-amz-date",
                             "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_EQ(
      sign_published({}, "/", {{"prefix", "J"}, {"max-keys", "2"}}),
      expected_authorization("host;x-amz-content-sha256;x-amz-date",
                             "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(SigV4, MakesTheKeyOfANewDayAndOfNewKeys) {
  const Signer signer("us-east-1", "s3");
  const HttpTarget target{"https://examplebucket.s3.amazonaws.com", "/", {{"lifecycle", ""}}};
  AwsCredentials other = kPublishedKeys;
  other.secret_access_key = "another";
  HttpRequest first, next_day, other_keys, again;
  signer.sign(first, target, kEmptySha256, kPublishedKeys, day_of_examples());
  signer.sign(next_day, target, kEmptySha256, kPublishedKeys,
              day_of_examples() + std::chrono::hours(24));
  signer.sign(other_keys, target, kEmptySha256, other, day_of_examples());
  signer.sign(again, target, kEmptySha256, kPublishedKeys, day_of_examples());
  EXPECT_EQ(signed_header(first, "Authorization"), signed_header(again, "Authorization"));
  EXPECT_NE(signed_header(first, "Authorization"), signed_header(other_keys, "Authorization"));
  EXPECT_NE(signed_header(next_day, "Authorization").find("/20130525/"), std::string::npos);
}

TEST(SigV4, ReplacesAnEarlierSignature) {
  const Signer signer("eu-central-1", "s3");
  const HttpTarget target{"http://127.0.0.1:9000", "/bucket/key", {}};
  AwsCredentials keys = kPublishedKeys;
  keys.session_token = "TOKEN";
  HttpRequest once, twice;
  twice.headers = once.headers = {{"x-amz-meta-a", "b"}};
  signer.sign(once, target, kEmptySha256, keys, day_of_examples());
  signer.sign(twice, target, kEmptySha256, kPublishedKeys,
              day_of_examples() + std::chrono::hours(1));
  EXPECT_EQ(signed_header(twice, "x-amz-security-token"), "");
  signer.sign(twice, target, kEmptySha256, keys, day_of_examples());
  for (const char* name : {"Host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token",
                           "Authorization", "x-amz-meta-a"}) {
    EXPECT_EQ(signed_header(twice, name), signed_header(once, name)) << name;
  }
  EXPECT_EQ(signed_header(once, "Host"), "127.0.0.1:9000");
  EXPECT_EQ(signed_header(once, "x-amz-date"), "20130524T000000Z");
  EXPECT_NE(signed_header(once, "Authorization").find(";x-amz-security-token,"), std::string::npos);
}

TEST(SigV4, HostHasAPortOnlyIfItIsNotTheSchemes) {
  const std::pair<const char*, const char*> cases[] = {{"https://Host.Example:443", "host.example"},
                                                       {"http://host:80", "host"},
                                                       {"https://host:80", "host:80"},
                                                       {"http://host:443", "host:443"},
                                                       {"http://[::1]:9000", "[::1]:9000"}};
  for (const auto& [place, host] : cases) {
    HttpRequest request;
    Signer("r", "s3").sign(request, {place, "/", {}}, kEmptySha256, kPublishedKeys,
                           day_of_examples());
    EXPECT_EQ(signed_header(request, "Host"), host) << place;
  }
}

TEST(SigV4, EncodesAPathOnceAndNeverNormalisesIt) {
  EXPECT_EQ(uri_encode("AZaz09-._~", false), "AZaz09-._~");
  EXPECT_EQ(uri_encode("a/b c+d=e%20", true), "a/b%20c%2Bd%3De%2520");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(uri_encode("\xC3\xA9\x01\x7F\xFF", false), "%C3%A9%01%7F%FF");
  const HttpTarget target{
      "https://h", "/a//../b/./\xC3\xA9*", {{"b", ""}, {"a", "2"}, {"a", "1/+"}}};
  EXPECT_EQ(target.url(), "https://h/a//../b/./%C3%A9%2A?a=1%2F%2B&a=2&b=");
}

// Sorted by encoded bytes: '%' comes before letters.
TEST(SigV4, SortsTheQueryAsEncoded) {
  const HttpTarget target{"https://h", "/", {{"a", ""}, {"\xC3\xA9", ""}, {"A", ""}, {"a-", ""}}};
  EXPECT_EQ(target.url(), "https://h/?%C3%A9=&A=&a=&a-=");
}

TEST(SigV4, HmacAsInRfc4231) {
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace weightfs
