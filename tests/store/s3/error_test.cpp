// What refusals mean, and what their messages say.

#include "store/s3/error.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace weightfs {
namespace {

HttpReply refusal_reply(int status, std::string_view code, std::vector<HttpHeader> headers = {}) {
  HttpReply reply;
  reply.status = status;
  reply.headers = std::move(headers);
  if (!code.empty()) {
    reply.text = fmt::format(
        "<?xml version=\"1.0\"?>\n<Error><Code>{}</Code><Message>because</Message></Error>", code);
  }
  return reply;
}

struct Told {
  ErrorCode code{};
  std::string message;
};

Told told(const HttpReply& reply, std::string_view action = "read", bool hf = false) {
  S3Address address;
  address.url = "s3://bucket/run";
  address.bucket = "bucket";
  address.scheme_and_host = "https://host";
  address.is_hf = hf;
  const Error error =
      to_error(read_refusal(reply), address, action, "a/key", "AKIAVERYLONG1234", "environment");
  return {error.code(), error.what()};
}

void expect_told(const Told& told, ErrorCode code, std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(told.code, code) << told.message;
  for (const std::string_view part : parts) {
    EXPECT_NE(told.message.find(part), std::string::npos) << told.message << "\nlacks " << part;
  }
  EXPECT_EQ(told.message.find("AKIAVERYLONG"), std::string::npos) << told.message;
}

TEST(S3Error, SaysWhoseKeysAreWrong) {
  expect_told(told(refusal_reply(403, "SignatureDoesNotMatch")), ErrorCode::permission,
              {"s3://bucket/run", "a/key", "403", "SignatureDoesNotMatch",
               "the secret key does not belong to the key ...1234 from environment"});
  expect_told(told(refusal_reply(403, "InvalidAccessKeyId")), ErrorCode::permission,
              {"...1234", "AWS_ACCESS_KEY_ID"});
  expect_told(told(refusal_reply(403, "InvalidAccessKeyId"), "read", true), ErrorCode::permission,
              {"...1234", "create S3 keys", "HF_TOKEN itself does not work"});
  expect_told(told(refusal_reply(400, "InvalidToken")), ErrorCode::permission, {"renew it"});
}

TEST(S3Error, NamesTheRightThatIsNeeded) {
  const HttpReply denied = refusal_reply(403, "AccessDenied");
  expect_told(told(denied, "read"), ErrorCode::permission, {"s3:GetObject", "s3:ListBucket"});
  expect_told(told(denied, "write"), ErrorCode::permission, {"s3:PutObject"});
  expect_told(told(denied, "list"), ErrorCode::permission, {"s3:ListBucket"});
  expect_told(told(denied, "remove"), ErrorCode::permission, {"s3:DeleteObject"});
  expect_told(told(denied, "abort"), ErrorCode::permission, {"s3:AbortMultipartUpload"});
  expect_told(told(refusal_reply(403, "")), ErrorCode::permission, {"s3:GetObject"});
}

// A missing bucket must not look like a missing object, as that would mean: no new version.
TEST(S3Error, AMissingBucketIsNoMissingObject) {
  expect_told(told(refusal_reply(404, "NoSuchBucket")), ErrorCode::invalid,
              {"the bucket bucket does not exist", "https://host"});
  expect_told(told(refusal_reply(404, "NoSuchKey")), ErrorCode::not_found,
              {"object a/key does not exist"});
  expect_told(told(refusal_reply(404, "", {{"x-amz-request-id", "r1"}})), ErrorCode::not_found,
              {"object a/key does not exist"});
}

TEST(S3Error, A404ThatIsNotTheServicesMayPass) {
  for (const char* type : {"text/plain; charset=utf-8", "text/html"}) {
    HttpReply reply = refusal_reply(404, "", {{"Content-Type", type}});
    reply.text = "404 page not found\n";
    EXPECT_TRUE(read_refusal(reply).is_transient()) << type;
    expect_told(told(reply), ErrorCode::unavailable,
                {"a/key", "404: something before the service answered"});
  }
}

// A service need not speak Amazon's XML to say that there is nothing.
TEST(S3Error, A404WithoutAPageIsOfTheService) {
  HttpReply reply = refusal_reply(404, "");
  EXPECT_EQ(told(reply).code, ErrorCode::not_found);
  reply.headers.push_back({"Content-Type", "application/json"});
  reply.text = "{}";
  EXPECT_EQ(told(reply).code, ErrorCode::not_found);
}

TEST(S3Error, SaysWhereTheBucketLies) {
  const std::vector<HttpHeader> region{{"x-amz-bucket-region", "eu-west-3"}};
  for (const HttpReply& reply :
       {refusal_reply(301, "PermanentRedirect", region), refusal_reply(301, "", region),
        refusal_reply(400, "AuthorizationHeaderMalformed", region)}) {
    expect_told(told(reply), ErrorCode::invalid,
                {"the bucket is in region eu-west-3; set AWS_REGION=eu-west-3"});
  }
}

TEST(S3Error, SaysHowFarTheClockIsOff) {
  const HttpReply reply =
      refusal_reply(403, "RequestTimeTooSkewed", {{"Date", "Sun, 06 Nov 1994 08:49:37 GMT"}});
  expect_told(told(reply), ErrorCode::permission, {"s ahead", "timedatectl"});
  const S3Refusal refusal = read_refusal(reply);
  ASSERT_TRUE(refusal.date);
  EXPECT_EQ(std::chrono::system_clock::to_time_t(*refusal.date), 784111777);
  EXPECT_TRUE(refusal.is_skewed_clock());
  EXPECT_FALSE(refusal.is_transient());
}

TEST(S3Error, TellsApartWhatAStoreCannotDo) {
  expect_told(told(refusal_reply(411, "MissingContentLength")), ErrorCode::unsupported,
              {"Content-Length"});
  expect_told(told(refusal_reply(501, "NotImplemented")), ErrorCode::unsupported, {"501"});
  expect_told(told(refusal_reply(400, "EntityTooLarge")), ErrorCode::unsupported, {"size"});
  for (const auto& [status, code] : {std::pair{403, "QuotaExceeded"},
                                     {400, "XMinioAdminBucketQuotaExceeded"},
                                     {507, "XMinioStorageFull"}}) {
    expect_told(told(refusal_reply(status, code), "write"), ErrorCode::no_space, {"full"});
  }
  expect_told(told(refusal_reply(400, "InvalidBucketName")), ErrorCode::invalid,
              {"is not a valid bucket name"});
  expect_told(told(refusal_reply(400, "SomethingNew")), ErrorCode::invalid,
              {"SomethingNew: because"});
}

TEST(S3Error, WhatMayPassIsUnavailable) {
  for (const auto& [status, code] : {std::pair{500, "InternalError"},
                                     {502, ""},
                                     {503, "SlowDown"},
                                     {504, ""},
                                     {429, ""},
                                     {408, ""},
                                     {400, "RequestTimeout"},
                                     {409, "ConditionalRequestConflict"},
                                     {409, "OperationAborted"},
                                     {200, "InternalError"}}) {
    const HttpReply reply = refusal_reply(status, code);
    EXPECT_TRUE(read_refusal(reply).is_transient()) << status << code;
    EXPECT_EQ(told(reply).code, ErrorCode::unavailable) << status << code;
  }
  for (const auto& [status, code] : {std::pair{400, "InvalidArgument"},
                                     {403, "AccessDenied"},
                                     {404, "NoSuchKey"},
                                     {412, "PreconditionFailed"},
                                     {200, ""}}) {
    EXPECT_FALSE(read_refusal(refusal_reply(status, code)).is_transient()) << status << code;
  }
}

// Who renews it may be late: a hand-over waits, and a mount starts from its store.
TEST(S3Error, AnExpiredSessionIsUnavailable) {
  for (const char* code : {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}) {
    const HttpReply reply = refusal_reply(400, code);
    expect_told(told(reply), ErrorCode::unavailable,
                {"the session of the key ...1234 from environment has expired; renew it"});
    EXPECT_FALSE(read_refusal(reply).is_transient()) << "not by the next attempt";
  }
}

TEST(S3Error, ReadsRetryAfterInBothForms) {
  using std::chrono::seconds;
  EXPECT_EQ(read_refusal(refusal_reply(503, "SlowDown", {{"Retry-After", "7"}})).retry_after,
            seconds(7));
  EXPECT_EQ(read_refusal(refusal_reply(503, "SlowDown",
                                       {{"Date", "Sun, 06 Nov 1994 08:49:37 GMT"},
                                        {"Retry-After", "Sun, 06 Nov 1994 08:50:37 GMT"}}))
                .retry_after,
            seconds(60));
  EXPECT_FALSE(read_refusal(refusal_reply(503, "", {{"Retry-After", "soon"}})).retry_after);
}

TEST(S3Error, BadXmlIsNoCode) {
  HttpReply reply = refusal_reply(403, "");
  for (const char* text : {"", "<html>no</html>", "<Error><Code>X", "\xFF\xFE<", "{}"}) {
    reply.text = text;
    EXPECT_EQ(read_refusal(reply).code, "") << text;
  }
  // A service's message never makes a second line.
  reply.text = "<Error><Code>A\nB</Code></Error>";
  EXPECT_EQ(told(reply).message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace weightfs
