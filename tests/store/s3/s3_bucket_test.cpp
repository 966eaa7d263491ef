// S3Bucket beyond the common contract of buckets: what it sends, and what it does when a service
// fails, lies, or is slow.

#include "store/s3/s3_bucket.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/repository/repository.hpp"
#include "store/s3/request.hpp"
#include "store/s3/settings.hpp"
#include "store/s3/upload.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/fake_s3.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::FakeS3;
using test::s3_error_reply;
using test::ServedReply;
using test::ServedRequest;

constexpr std::uint64_t kMib = 1u << 20;

struct OverFake {
  FakeS3 fake;
  std::unique_ptr<Bucket> bucket = fake.open("run");

  void put(std::string_view key, std::string_view text) { bucket->put(key, TextSource(text), {}); }
  std::string get(std::string_view key) { return get_all(*bucket, key, 1u << 30, {}); }
  std::string object(const std::string& key) { return fake.objects().at("run/" + key); }

  /// Answers the first `times` requests of `method` with `reply`, without carrying them out.
  void fail_first(std::string method, unsigned times, ServedReply reply) {
    auto left = std::make_shared<std::atomic<unsigned>>(times);
    fake.before([=](const ServedRequest& request) -> std::optional<ServedReply> {
      if (request.method != method || *left == 0) return std::nullopt;
      --*left;
      return reply;
    });
  }

  /// Changes the answer to the first matching request, after it was carried out.
  void change_first(std::string method, std::string part_of_target,
                    std::function<void(ServedReply&)> change) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    fake.after([=](const ServedRequest& request, ServedReply& reply) {
      if (request.method != method || request.target.find(part_of_target) == std::string::npos) {
        return;
      }
      if (!done->exchange(true)) change(reply);
    });
  }

  void lose_reply(std::string method, std::string part_of_target) {
    change_first(std::move(method), std::move(part_of_target), [](ServedReply& reply) {
      reply = {.status = 200, .headers = {}, .body = "x", .cut_after = 0, .reset = true};
    });
  }
};

std::string large_text(std::uint64_t size_bytes) {
  std::string text(size_bytes, '\0');
  for (std::size_t i = 0; i < text.size(); i += 64) {
    text[i] = static_cast<char>((i >> 6) * 2654435761u >> 11);
  }
  return text;
}

// ---- requests ----

TEST(S3Bucket, ReadsWithOneRequest) {
  OverFake at;
  at.put("a/key", "0123456789");
  at.fake.forget_requests();
  EXPECT_EQ(at.get("a/key"), "0123456789");
  EXPECT_EQ(at.fake.requests(), std::vector<std::string>{"GET /bucket/run/a/key"});
}

// A daemon polls every few seconds, and each request costs money.
TEST(S3Bucket, LookingForNewsCostsOneRequest) {
  OverFake at;
  at.bucket->put_if_absent("weightfs.json",
                           R"({"created":1,"format":1,"id":")" + std::string(32, 'a') +
                               R"(","public_keys":[],"required_features":[]})",
                           {});
  const auto repository = Repository::open(at.fake.open("run"), {});
  at.fake.forget_requests();
  EXPECT_EQ(repository->newest_version(1, {}), 1u);
  EXPECT_EQ(at.fake.requests().size(), 1u) << at.fake.requests().back();
  // A host that knows no version also checks whether the first one is missing.
  EXPECT_EQ(repository->newest_version(0, {}), 0u);
  EXPECT_EQ(at.fake.requests().size(), 3u) << at.fake.requests().back();
}

TEST(S3Bucket, AWrongSecretIsTold) {
  OverFake at;
  const Environment right = at.fake.environment();
  S3Bucket bucket("s3://bucket/run", {}, [&](std::string_view name) {
    return name == "AWS_SECRET_ACCESS_KEY" ? std::optional<std::string>("wrong") : right(name);
  });
  std::string message;
  EXPECT_EQ(code_of([&] { bucket.put("key", TextSource("x"), {}); }, &message),
            ErrorCode::permission);
  EXPECT_NE(message.find("the secret key does not belong to the key ...EYID"), std::string::npos)
      << message;
  EXPECT_EQ(message.find("cannot write object"), message.rfind("cannot write object")) << message;
  EXPECT_TRUE(at.fake.objects().empty());
  EXPECT_EQ(at.fake.requests().size(), 1u);
}

TEST(S3Bucket, AMissingBucketIsNotAMissingObject) {
  OverFake at;
  S3Bucket other("s3://another/run", {}, at.fake.environment());
  std::byte byte{};
  EXPECT_EQ(code_of([&] { other.get("key", 0, {&byte, 1}, {}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([&] { other.get("key", 0, {}, {}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([&] { other.put("key", TextSource("x"), {}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([&] { other.put_if_absent("key", "x", {}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([&] { other.list("", "", {}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([&] { other.remove("key", {}); }), ErrorCode::invalid);
}

// An ingress without a service behind it: readers were "current" for as long as it was, and one
// such answer ended a hand-over, as if the newest version were gone from the bucket.
TEST(S3Bucket, A404ThatIsNotTheServicesIsNoMissingObject) {
  OverFake at;
  at.put("key", "text");
  const ServedReply foreign{.status = 404,
                            .headers = {{"Content-Type", "text/plain; charset=utf-8"}},
                            .body = "404 page not found\n"};
  for (const char* method : {"GET", "DELETE"}) {
    at.fail_first(method, 1, foreign);
    EXPECT_EQ(at.get("key"), "text");
    at.bucket->remove("key-2", {});
  }
  EXPECT_EQ(at.fake.count("GET"), 3u);
  EXPECT_EQ(at.fake.count("DELETE"), 3u);
  at.fake.before([&](const ServedRequest&) { return foreign; });
  const Context once = Context{}.once();
  std::string message;
  EXPECT_EQ(code_of([&] { has_object(*at.bucket, "key", once); }, &message),
            ErrorCode::unavailable);
  EXPECT_NE(message.find("404: something before the service"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { at.bucket->remove("key", once); }), ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { at.bucket->list("", "", once); }), ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { at.bucket->put("key", TextSource("x"), once); }), ErrorCode::unavailable);
}

// ---- attempts ----

TEST(S3Bucket, TriesAgainWhatMayPass) {
  for (const ServedReply& fault :
       {s3_error_reply(503, "SlowDown"), s3_error_reply(500, "InternalError"),
        s3_error_reply(400, "RequestTimeout"), ServedReply{.status = 502, .body = "<html>"},
        ServedReply{.body = "x", .cut_after = 0, .reset = true}}) {
    OverFake at;
    at.fail_first("PUT", 2, fault);
    at.put("key", "text");
    EXPECT_EQ(at.object("key"), "text");
    EXPECT_EQ(at.fake.count("PUT"), 3u) << fault.status;
  }
}

TEST(S3Bucket, HeedsRetryAfter) {
  OverFake at;
  ServedReply slow = s3_error_reply(503, "SlowDown");
  slow.headers.push_back({"Retry-After", "1"});
  at.fail_first("GET", 1, slow);
  at.put("key", "text");
  const auto begin = Clock::now();
  EXPECT_EQ(at.get("key"), "text");
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(S3Bucket, GivesUpAndSaysHowOftenItTriedAndWhy) {
  OverFake at;
  const Environment base = at.fake.environment();
  S3Bucket bucket("s3://bucket/run", {}, [&](std::string_view name) {
    return name == "AWS_MAX_ATTEMPTS" ? std::optional<std::string>("3") : base(name);
  });
  at.fail_first("PUT", 100, s3_error_reply(500, "InternalError", "we are sorry"));
  std::string message;
  EXPECT_EQ(code_of([&] { bucket.put("key", TextSource("x"), {}); }, &message),
            ErrorCode::unavailable);
  for (const char* part : {"s3://bucket/run", "key", "500 InternalError", "3 attempts"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(at.fake.count("PUT"), 3u);
}

TEST(S3Bucket, DoesNotTryAgainWhatIsRefused) {
  OverFake at;
  at.fail_first("PUT", 100, s3_error_reply(403, "AccessDenied"));
  EXPECT_EQ(code_of([&] { at.put("key", "x"); }), ErrorCode::permission);
  EXPECT_EQ(at.fake.count("PUT"), 1u);
}

/// What is tried until a deadline says in the end, which is to contain `words`.  On a busy machine
/// a short one passes before there was any answer, so longer ones follow.
std::string told_before_a_deadline(std::string_view words,
                                   const std::function<std::string(const Context&)>& attempt) {
  std::string message;
  for (const int milliseconds : {300, 3000, 30'000}) {
    message = attempt(Context{}.within(std::chrono::milliseconds(milliseconds)));
    if (message.find(words) != std::string::npos) break;
  }
  return message;
}

TEST(S3Bucket, TheDeadlineEndsTheAttempts) {
  OverFake at;
  at.fail_first("GET", 1000, s3_error_reply(503, "SlowDown"));
  std::byte byte{};
  const std::string message = told_before_a_deadline("SlowDown", [&](const Context& context) {
    std::string said;
    EXPECT_EQ(code_of(
                  [&] {
                    at.bucket->get("key", 0, {&byte, 1}, context);
                  },
                  &said),
              ErrorCode::timed_out);
    return said;
  });
  EXPECT_NE(message.find("SlowDown"), std::string::npos) << message;
}

TEST(S3Bucket, AnEndpointThatWasNeverReachedIsToldSoon) {
  auto gone = std::make_unique<FakeS3>();
  const auto bucket = gone->open("run");
  gone.reset();
  std::string message;
  const auto begin = Clock::now();
  EXPECT_EQ(code_of([&] { bucket->list("", "", {}); }, &message), ErrorCode::unavailable);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));  // others are tried for minutes
  EXPECT_NE(message.find("3 attempts"), std::string::npos) << message;
}

TEST(S3Bucket, LearnsTheStoresClockOnce) {
  OverFake at;
  at.fake.clock_ahead_s = 3600;
  at.put("key", "text");
  EXPECT_EQ(at.get("key"), "text");
  EXPECT_EQ(at.fake.requests().size(), 3u);  // the first one was refused
}

TEST(S3Bucket, ARequestThatOnlyCameLateIsSentAgain) {
  OverFake at;
  ServedReply late = s3_error_reply(403, "RequestTimeTooSkewed");
  late.headers.push_back(
      {"Date", fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr)))});
  at.put("key", "text");
  at.fail_first("GET", 3, late);
  EXPECT_EQ(at.get("key"), "text");
}

TEST(S3Bucket, RenewsAnExpiredTokenOnce) {
  OverFake at;
  at.fake.session_token = "new";
  std::atomic<int> asked = 0;
  const Environment now = at.fake.environment();
  S3Bucket bucket("s3://bucket/run", {}, [&](std::string_view name) {
    if (name == "AWS_SESSION_TOKEN" && asked++ == 0) return std::optional<std::string>("old");
    return now(name);
  });
  bucket.put("key", TextSource("text"), {});
  EXPECT_EQ(at.object("key"), "text");
  EXPECT_EQ(at.fake.count("PUT"), 2u);
}

// Whoever renews its keys may be a minute late.
TEST(S3Bucket, AnExpiredSessionIsLikeNoAnswer) {
  OverFake at;
  at.fail_first("PUT", 100, s3_error_reply(400, "ExpiredToken"));
  std::string message;
  EXPECT_EQ(code_of([&] { at.put("key", "x"); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find("has expired; renew it"), std::string::npos) << message;
  EXPECT_EQ(at.fake.count("PUT"), 1u) << "there are no other keys";
}

// One of several hosts behind a name may not have heard of a new key yet.
TEST(S3Bucket, AnUnknownKeyIsTriedOnceMore) {
  OverFake at;
  at.fail_first("PUT", 1, s3_error_reply(403, "InvalidAccessKeyId"));
  at.put("key", "text");
  EXPECT_EQ(at.object("key"), "text");
  EXPECT_EQ(at.fake.count("PUT"), 2u);
  at.fail_first("PUT", 100, s3_error_reply(403, "InvalidAccessKeyId"));
  EXPECT_EQ(code_of([&] { at.put("key", "x"); }), ErrorCode::permission);
  EXPECT_EQ(at.fake.count("PUT"), 4u);
}

// R2, MinIO and Ceph let a secret be changed and keep the key's id.
TEST(S3Bucket, ASecretThatWasRotatedIsReadAgain) {
  OverFake at;
  std::atomic<int> asked = 0;
  const Environment now = at.fake.environment();
  S3Bucket bucket("s3://bucket/run", {}, [&](std::string_view name) {
    if (name == "AWS_SECRET_ACCESS_KEY" && asked++ == 0) return std::optional<std::string>("old");
    return now(name);
  });
  bucket.put("key", TextSource("text"), {});
  EXPECT_EQ(at.object("key"), "text");
  EXPECT_EQ(at.fake.count("PUT"), 2u);
}

// The service has the new secret before the file has it: an upload was refused for good meanwhile.
TEST(S3Bucket, ASecretThatChangesAtTheServiceFirstIsWaitedFor) {
  OverFake at;
  const Environment set = at.fake.environment();
  S3Bucket bucket("s3://bucket/run", {}, [&](std::string_view name) {
    return name == "AWS_MAX_ATTEMPTS" ? std::optional<std::string>("2") : set(name);
  });
  bucket.put("key", TextSource("before"), {});
  at.fail_first("PUT", 1, s3_error_reply(403, "SignatureDoesNotMatch"));
  bucket.put("key", TextSource("after"), {});
  EXPECT_EQ(at.object("key"), "after");
  EXPECT_EQ(at.fake.count("PUT"), 3u);
  at.fail_first("PUT", 100, s3_error_reply(403, "SignatureDoesNotMatch"));
  std::string message;
  EXPECT_EQ(code_of([&] { bucket.put("key", TextSource("x"), {}); }, &message),
            ErrorCode::permission);
  EXPECT_NE(message.find("given up after 2 attempts"), std::string::npos) << message;
  EXPECT_EQ(at.fake.count("PUT"), 5u);
}

// ---- reads ----

TEST(S3Bucket, AShortBodyIsReadAgain) {
  for (const bool no_length : {false, true}) {
    OverFake at;
    at.put("key", "0123456789");
    at.change_first("GET", "key", [&](ServedReply& reply) {
      reply.cut_after = 4;
      reply.no_length = no_length;
    });
    EXPECT_EQ(at.get("key"), "0123456789");
    EXPECT_EQ(at.fake.count("GET"), 2u);
  }
}

TEST(S3Bucket, AWrongRangeIsReadAgain) {
  for (const char* range : {"bytes 0-3/10", "bytes 3-6/10", "bytes 4-7", "nonsense", ""}) {
    OverFake at;
    at.put("key", "0123456789");
    at.change_first("GET", "key", [&](ServedReply& reply) {
      reply.headers = {{"Content-Range", range}};
      reply.body = "wron";
    });
    std::string part(4, '?');
    EXPECT_EQ(at.bucket->get("key", 4, std::as_writable_bytes(std::span(part)), {}), 4u);
    EXPECT_EQ(part, "4567") << range;
  }
}

TEST(S3Bucket, AStoreThatIgnoresRangesIsNoGoodButForWholeObjects) {
  OverFake at;
  at.put("key", "0123456789");
  at.fake.ignores_range = true;
  EXPECT_EQ(at.get("key"), "0123456789");
  std::string part(4, '?');
  for (const std::uint64_t offset : {0u, 4u}) {
    const std::string message = told_before_a_deadline("ignores Range", [&](const Context& soon) {
      std::string said;
      EXPECT_NE(
          code_of(
              [&] { at.bucket->get("key", offset, std::as_writable_bytes(std::span(part)), soon); },
              &said),
          ErrorCode::not_found);
      return said;
    });
    EXPECT_NE(message.find("ignores Range"), std::string::npos) << message;
  }
}

// Like HF's gateway: readers are redirected to a CDN by a signed URL, which is valid for a while.
TEST(S3Bucket, FollowsRedirectsWithoutCredentials) {
  OverFake at;
  at.put("key", "0123456789");
  std::atomic<unsigned> at_cdn = 0, leaks = 0;
  std::atomic<int> valid = 1;
  std::atomic<std::uint64_t> size = kRewrittenBytesMax + 1;
  test::HttpServer cdn([&](const ServedRequest& request) -> ServedReply {
    at_cdn++;
    for (const auto& [name, value] : request.headers) {
      leaks += name == "authorization" || name.starts_with("x-amz") ? 1 : 0;
    }
    if (request.query().at("sig") != std::to_string(valid)) return {.status = 403};
    unsigned first = 0, last = 0;
    std::sscanf(request.headers.at("range").c_str(), "bytes=%u-%u", &first, &last);
    last = std::min(last, 9u);
    return {.status = 206,
            .headers = {{"Content-Range", fmt::format("bytes {}-{}/{}", first, last, size.load())}},
            .body = std::string("0123456789").substr(first, last - first + 1)};
  });
  at.fake.after([&](const ServedRequest& request, ServedReply& reply) {
    if (request.method != "GET") return;
    reply = {.status = 302,
             .headers = {{"Location", fmt::format("{}/x?sig={}", cdn.url(), valid.load())}}};
  });
  at.fake.forget_requests();
  std::string part(4, '?');
  const auto read = [&](std::uint64_t offset) {
    at.bucket->get("key", offset, std::as_writable_bytes(std::span(part)), {});
    return part;
  };
  EXPECT_EQ(read(0), "0123");
  EXPECT_EQ(read(4), "4567");
  EXPECT_EQ(at.fake.count("GET"), 1u) << "the URL holds for other ranges";
  valid = 2;
  EXPECT_EQ(read(2), "2345");
  EXPECT_EQ(at.fake.count("GET"), 2u);
  EXPECT_EQ(at_cdn, 4u);
  EXPECT_EQ(leaks, 0u);
}

// The CDN's URLs name content: what a reader's record was is read again from where it once led to.
TEST(S3Bucket, AnObjectThatMayBeOverwrittenIsAskedForEachTime) {
  OverFake at;
  const auto writer = at.fake.open("run");
  test::HttpServer cdn([](const ServedRequest& request) -> ServedReply {
    const std::string text = request.query().at("content");
    return {.status = 206,
            .headers = {{"Content-Range",
                         fmt::format("bytes 0-{0}/{1}", text.size() - 1, text.size())}},
            .body = text};
  });
  at.fake.after([&](const ServedRequest& request, ServedReply& reply) {
    if (request.method != "GET") return;
    reply = {.status = 302,
             .headers = {{"Location", fmt::format("{}/x?content={}", cdn.url(), reply.body)}}};
  });
  for (const char* text : {"version-1", "version-2"}) {
    writer->put("readers/a.json", TextSource(text), {});
    EXPECT_EQ(at.get("readers/a.json"), text);
  }
}

// A layout of 3 MiB took seven requests to the gateway, and a pack two or more.
TEST(S3Bucket, WhatIsReadInPiecesIsAskedForOnceEachTime) {
  OverFake at;
  const auto writer = at.fake.open("run");
  std::map<std::string, std::string> contents{{"1", large_text(200'000)}, {"2", "another"}};
  contents["1"][150'000] = 'x';
  test::HttpServer cdn([&](const ServedRequest& request) -> ServedReply {
    const std::string& text = contents.at(request.query().at("content"));
    std::size_t first = 0, last = 0;
    std::sscanf(request.headers.at("range").c_str(), "bytes=%zu-%zu", &first, &last);
    last = std::min(last + 1, text.size());
    return {
        .status = 206,
        .headers = {{"Content-Range", fmt::format("bytes {}-{}/{}", first, last - 1, text.size())}},
        .body = text.substr(first, last - first)};
  });
  at.fake.after([&](const ServedRequest& request, ServedReply& reply) {
    if (request.method != "GET") return;
    const std::string content = at.object("layouts/a");
    reply = {.status = 302,
             .headers = {{"Location", fmt::format("{}/x?content={}", cdn.url(), content)}}};
  });
  writer->put("layouts/a", TextSource("1"), {});
  at.fake.forget_requests();
  for (std::size_t round = 1; round <= 2; round++) {
    EXPECT_TRUE(at.get("layouts/a") == contents.at("1"));
    EXPECT_EQ(at.fake.count("GET"), round);
  }
  writer->put("layouts/a", TextSource("2"), {});
  EXPECT_EQ(at.get("layouts/a"), "another");
}

TEST(S3Bucket, NamesTheVariableOfItsCertificates) {
  test::HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  OverFake at;
  const Environment environment = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "AWS_ENDPOINT_URL") return "https" + server.url().substr(4);
    if (name == "AWS_CA_BUNDLE") return "/no/such/bundle.pem";
    return at.fake.environment()(name);
  };
  S3Bucket bucket("s3://bucket/run", {}, environment);
  std::string message;
  EXPECT_EQ(code_of([&] { bucket.list("", "", {}); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find("(AWS_CA_BUNDLE)"), std::string::npos) << message;
}

TEST(S3Bucket, RedirectsEndAfterThree) {
  OverFake at;
  std::atomic<unsigned> hops = 0, attempts = 0;
  test::HttpServer round([&](const ServedRequest&) -> ServedReply {
    hops++;
    return {.status = 302, .headers = {{"Location", "/again"}}};
  });
  at.fake.before([&](const ServedRequest&) -> std::optional<ServedReply> {
    attempts++;
    return ServedReply{.status = 302, .headers = {{"Location", round.url() + "/x"}}};
  });
  std::byte byte{};
  const std::string message =
      told_before_a_deadline("redirects too often", [&](const Context& soon) {
        std::string said;
        code_of([&] { at.bucket->get("key", 0, {&byte, 1}, soon); }, &said);
        return said;
      });
  EXPECT_NE(message.find("redirects too often"), std::string::npos) << message;
  EXPECT_LE(hops, attempts * kRedirectsMax);
}

TEST(S3Bucket, SaysInWhichRegionTheBucketLies) {
  OverFake at;
  at.fake.before([](const ServedRequest&) -> std::optional<ServedReply> {
    ServedReply reply = s3_error_reply(301, "PermanentRedirect");
    reply.headers.push_back({"x-amz-bucket-region", "eu-west-3"});
    return reply;
  });
  std::string message;
  EXPECT_EQ(code_of([&] { at.get("key"); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find("AWS_REGION=eu-west-3"), std::string::npos) << message;
}

// ---- writes ----

// A page about maintenance or a firewall's challenge was taken for the service's word: a publish
// succeeded, and the bucket had nothing.
TEST(S3Bucket, A2xxThatConfirmsNothingIsNoWrite) {
  for (const ServedReply& reply :
       {ServedReply{.body = "<html>back soon</html>"},
        ServedReply{.status = 202, .headers = {{"x-amzn-waf-action", "challenge"}}},
        s3_error_reply(200, "InternalError")}) {
    OverFake at;
    at.fail_first("PUT", 1, reply);
    at.put("key", "text");
    EXPECT_EQ(at.object("key"), "text") << reply.status;
    at.fail_first("PUT", 1, reply);
    EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::created);
    EXPECT_EQ(at.object("v/1"), "own") << reply.status;

    at.fail_first("PUT", 1, reply);
    std::string message;
    EXPECT_EQ(code_of([&] { at.bucket->put("v/2", TextSource("x"), Context{}.once()); }, &message),
              ErrorCode::unavailable);
    EXPECT_NE(message.find("the answer to a write has no ETag"), std::string::npos) << message;
  }
}

// It may have been the service after all: then the second attempt finds the first one's object.
TEST(S3Bucket, AWriteWithoutItsConfirmationIsLookedFor) {
  OverFake at;
  at.change_first("PUT", "v/1", [](ServedReply& reply) { reply = {.body = "<html></html>"}; });
  EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::created);
  EXPECT_EQ(at.fake.count("PUT"), 2u);
}

// The age of what gc removes is measured by it.
TEST(S3Bucket, TheTimeIsOnlyTheServices) {
  OverFake at;
  at.fail_first("GET", 1,
                {.headers = {{"Date", "Sun, 06 Nov 2094 08:49:37 GMT"}}, .body = "<html></html>"});
  const auto time = at.bucket->now({});
  EXPECT_LT(std::chrono::abs(time - std::chrono::system_clock::now()), std::chrono::hours(1));
  EXPECT_EQ(at.fake.count("GET"), 2u);
}

// ---- put-if-absent ----

TEST(S3Bucket, A412AfterALostReplyIsOnesOwn) {
  OverFake at;
  at.lose_reply("PUT", "v/1");
  EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::created);
  EXPECT_EQ(at.fake.count("PUT"), 2u);
}

TEST(S3Bucket, A412AfterALostReplyMayBeAnothers) {
  OverFake at;
  at.fake.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
    if (request.method != "PUT" || at.fake.objects().contains("run/v/1")) return std::nullopt;
    at.fake.plant("run/v/1", "other");  // just before our request, which did not arrive
    return s3_error_reply(500, "InternalError");
  });
  EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::exists);
  EXPECT_EQ(at.object("v/1"), "other");
}

TEST(S3Bucket, AConflictIsTriedAgain) {
  OverFake at;
  at.fail_first("PUT", 1, s3_error_reply(409, "ConditionalRequestConflict"));
  EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::created);
  EXPECT_EQ(at.bucket->put_if_absent("v/1", "own", {}), Bucket::Put::exists);
}

// The key expired between two attempts of one call, the first of which was carried out.
TEST(S3Bucket, ARefusalAfterALostReplyIsNoRefusal) {
  for (const bool is_lost : {true, false}) {
    OverFake at;
    std::atomic<int> puts = 0;
    at.fake.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
      if (request.method != "PUT") return std::nullopt;
      if (!is_lost || puts++ > 0) return s3_error_reply(403, "AccessDenied");
      at.fake.plant("run/v/1", "own");
      return s3_error_reply(500, "InternalError");
    });
    std::string message;
    EXPECT_EQ(code_of([&] { at.bucket->put_if_absent("v/1", "own", {}); }, &message),
              is_lost ? ErrorCode::unavailable : ErrorCode::permission);
    EXPECT_EQ(message.find("may have been carried out") != std::string::npos, is_lost) << message;
  }
}

TEST(S3Bucket, AStoreWithoutTheConditionIsRefused) {
  for (const ServedReply& reply :
       {s3_error_reply(501, "NotImplemented"),
        s3_error_reply(400, "InvalidRequest", "If-None-Match is not known")}) {
    OverFake at;
    at.fail_first("PUT", 100, reply);
    std::string message;
    EXPECT_EQ(code_of([&] { at.bucket->put_if_absent("v/1", "x", {}); }, &message),
              ErrorCode::unsupported);
    EXPECT_NE(message.find("does not support If-None-Match"), std::string::npos) << message;
  }
}

// ---- large objects ----

TEST(S3Bucket, LargeObjectsGoUpInPartsOfOneSize) {
  OverFake at;
  const std::string text = large_text(kMultipartBytes + 17);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("partNumber="), 5u);  // four of 16 MiB and the rest; the fake is strict
  EXPECT_EQ(at.fake.uploads(), 0u);
  at.put("packs/1/y", std::string_view(text).substr(0, kMultipartBytes));
  EXPECT_EQ(at.fake.count("partNumber="), 5u);
}

TEST(S3Bucket, ACrashedUploadIsResumed) {
  OverFake at;
  const std::string text = large_text(80 * kMib);
  {
    // As after a crash: neither the parts nor the abort get through.
    std::atomic<unsigned> parts = 0;
    at.fake.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
      const bool is_part = request.target.find("partNumber=") != std::string::npos;
      if (is_part && ++parts <= 3) return std::nullopt;
      if (is_part || request.method == "DELETE") return s3_error_reply(403, "AccessDenied");
      return std::nullopt;
    });
    EXPECT_EQ(code_of([&] { at.put("packs/1/x", text); }), ErrorCode::permission);
  }
  ASSERT_EQ(at.fake.uploads(), 1u);
  at.fake.before({});
  at.fake.forget_requests();
  const auto again = at.fake.open("run");
  again->put("packs/1/x", TextSource(text), {});
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("partNumber="), 2u) << "three of five were there";
  EXPECT_EQ(at.fake.count("uploads="), 2u) << "two lists, and no upload is begun";
  EXPECT_EQ(at.fake.uploads(), 0u);
}

TEST(S3Bucket, PartsOfOtherBytesAreSentAgain) {
  OverFake at;
  std::string text = large_text(80 * kMib);
  at.fake.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
    const bool completes =
        request.method == "POST" && request.target.find("uploadId") != std::string::npos;
    if (completes || request.method == "DELETE") return s3_error_reply(403, "AccessDenied");
    return std::nullopt;
  });
  EXPECT_EQ(code_of([&] { at.put("packs/1/x", text); }), ErrorCode::permission);
  at.fake.before({});
  at.fake.forget_requests();
  text[40 * kMib] = 'X';
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("partNumber="), 1u);
}

TEST(S3Bucket, AFailedUploadIsAborted) {
  OverFake at;
  at.fake.before([](const ServedRequest& request) -> std::optional<ServedReply> {
    if (request.target.find("partNumber=3") == std::string::npos) return std::nullopt;
    return s3_error_reply(403, "AccessDenied");
  });
  EXPECT_EQ(code_of([&] { at.put("packs/1/x", large_text(80 * kMib)); }), ErrorCode::permission);
  EXPECT_EQ(at.fake.uploads(), 0u);
  EXPECT_TRUE(at.fake.objects().empty());
}

TEST(S3Bucket, ACancelledUploadIsAbortedAllTheSame) {
  OverFake at;
  std::stop_source stop;
  at.fake.after([&](const ServedRequest& request, ServedReply&) {
    if (request.target.find("partNumber=2") != std::string::npos) stop.request_stop();
  });
  const std::string text = large_text(80 * kMib);
  EXPECT_EQ(
      code_of([&] {
        at.bucket->put("packs/1/x", TextSource(text), {stop.get_token(), Clock::time_point::max()});
      }),
      ErrorCode::cancelled);
  EXPECT_EQ(at.fake.uploads(), 0u);
}

TEST(S3Bucket, A200WithAnErrorInItIsNoCompletion) {
  OverFake at;
  auto first = std::make_shared<std::atomic<bool>>(true);
  at.fake.before([=](const ServedRequest& request) -> std::optional<ServedReply> {
    const bool completes =
        request.method == "POST" && request.target.find("uploadId") != std::string::npos;
    if (!completes || !first->exchange(false)) return std::nullopt;
    ServedReply reply = s3_error_reply(200, "InternalError");
    return reply;
  });
  const std::string text = large_text(65 * kMib);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_FALSE(*first);
}

bool is_completion(const ServedRequest& request) {
  return request.method == "POST" && request.target.find("uploadId") != std::string::npos;
}

// S3 sends its 200 first, then spaces while it works.  A manifest named what was never assembled.
TEST(S3Bucket, A200ThatConfirmsNothingIsNoCompletion) {
  const std::string text = large_text(65 * kMib);
  for (const char* body : {"", " \n  \n", "<html>sorry</html>", "<Error><Code>InternalErr",
                           "<CompleteMultipartUploadResult><Location>ht"}) {
    OverFake at;
    auto first = std::make_shared<std::atomic<bool>>(true);
    at.fake.before([=](const ServedRequest& request) -> std::optional<ServedReply> {
      if (!is_completion(request) || !first->exchange(false)) return std::nullopt;
      return ServedReply{.body = body};
    });
    at.put("packs/1/x", text);
    ASSERT_TRUE(at.fake.objects().contains("run/packs/1/x")) << body;
    EXPECT_TRUE(at.object("packs/1/x") == text);
  }
}

TEST(S3Bucket, ACompletionThatIsNeverConfirmedIsLookedFor) {
  OverFake at;
  at.fake.after([](const ServedRequest& request, ServedReply& reply) {
    if (is_completion(request) && reply.status == 200) reply.body = "   ";
  });
  const std::string text = large_text(65 * kMib);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("HEAD"), 1u);
  EXPECT_EQ(at.fake.count("partNumber="), 5u) << "nothing is sent again";
}

TEST(S3Bucket, SpacesBeforeAConfirmationAreFine) {
  OverFake at;
  at.fake.after([](const ServedRequest& request, ServedReply& reply) {
    if (!is_completion(request)) return;
    reply.body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n  \n \n" + reply.body;
    reply.body = " \n" + reply.body;
  });
  at.put("packs/1/x", large_text(65 * kMib));
  EXPECT_EQ(at.fake.count("HEAD"), 0u);
}

TEST(S3Bucket, ACompletionWhoseReplyIsLostIsDone) {
  OverFake at;
  at.lose_reply("POST", "uploadId");
  const std::string text = large_text(65 * kMib);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("HEAD"), 1u);
  EXPECT_EQ(at.fake.count("partNumber="), 5u) << "nothing is sent again";
}

TEST(S3Bucket, AnUploadThatSomebodyAbortsIsBegunAnew) {
  OverFake at;
  auto first = std::make_shared<std::atomic<bool>>(true);
  at.fake.before([=](const ServedRequest& request) -> std::optional<ServedReply> {
    if (request.target.find("partNumber=2") == std::string::npos) return std::nullopt;
    if (!first->exchange(false)) return std::nullopt;
    return s3_error_reply(404, "NoSuchUpload");
  });
  const std::string text = large_text(65 * kMib);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
}

TEST(S3Bucket, OldUploadsAreAbortedByTheNextLargeOne) {
  OverFake at;
  at.fake.before([](const ServedRequest& request) -> std::optional<ServedReply> {
    const bool fails =
        request.target.find("partNumber=") != std::string::npos || request.method == "DELETE";
    return fails ? std::optional(s3_error_reply(403, "AccessDenied")) : std::nullopt;
  });
  const std::string text = large_text(65 * kMib);
  const auto leave = [&](std::string_view key) {
    EXPECT_EQ(code_of([&] { at.fake.open("run")->put(key, TextSource(text), {}); }),
              ErrorCode::permission);
  };
  leave("packs/1/old");
  leave("other/1/old");  // another first component, so it may not be ours
  at.fake.age_uploads(std::chrono::hours(25));
  leave("packs/1/new");
  ASSERT_EQ(at.fake.uploads(), 3u);
  at.fake.before({});
  at.fake.open("run")->put("packs/2/x", TextSource(text), {});
  EXPECT_EQ(at.fake.uploads(), 2u);
}

// A process that lives for weeks looked once.
TEST(TidyTimes, UploadsAreLookedForAgainAfterADay) {
  TidyTimes times;
  const Clock::time_point begin = Clock::now();
  EXPECT_TRUE(times.is_due("packs/", begin));
  EXPECT_FALSE(times.is_due("packs/", begin + std::chrono::hours(23)));
  EXPECT_TRUE(times.is_due("snapshots/", begin + std::chrono::hours(23)));
  EXPECT_TRUE(times.is_due("packs/", begin + kUploadAgeMax));
  EXPECT_FALSE(times.is_due("packs/", begin + kUploadAgeMax + std::chrono::hours(23)));
}

// Then it looks again, while what it sends may have been under way for as long.
TEST(S3Uploader, WhatItSendsItselfIsNotLeftBehindHoweverOldItIs) {
  FakeS3 fake;
  const Environment environment = fake.environment();
  const S3Settings settings = find_s3_settings({}, environment);
  S3Client client(s3_address("s3://bucket/run", settings), settings, environment);
  UploadMemory memory;
  std::atomic<std::chrono::hours> passed{};
  S3Uploader uploader(client, memory, [&] { return Clock::time_point() + passed.load(); });
  const std::string text = large_text(65 * kMib);
  auto first = std::make_shared<std::atomic<bool>>(true);
  fake.after([&, first](const ServedRequest& request, ServedReply&) {
    const bool is_part = request.target.find("packs/1/x?partNumber=") != std::string::npos;
    if (!is_part || !first->exchange(false)) return;
    fake.age_uploads(std::chrono::hours(25));
    passed = std::chrono::hours(25);
    uploader.put("packs/2/y", TextSource(text), {});
  });
  uploader.put("packs/1/x", TextSource(text), {});
  EXPECT_FALSE(*first);
  EXPECT_TRUE(fake.objects().at("run/packs/1/x") == text);
  EXPECT_TRUE(fake.objects().at("run/packs/2/y") == text);
  EXPECT_EQ(fake.count("max-uploads="), 4u) << "each looks for its own, and for old ones";
  EXPECT_EQ(fake.count("packs/1/x?uploads="), 1u) << "it is not begun again";
  EXPECT_EQ(fake.count("DELETE"), 0u);
}

TEST(S3Bucket, AStoreWithoutTheListOfUploadsIsFine) {
  for (const ServedReply& answer : {s3_error_reply(501, "NotImplemented"),
                                    ServedReply{.body = "<ListBucketResult></ListBucketResult>"},
                                    ServedReply{.body = "<html>hello</html>"}, ServedReply{}}) {
    OverFake at;
    at.fake.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
      const bool lists =
          request.method == "GET" && request.target.find("uploads=") != std::string::npos;
      return lists ? std::optional(answer) : std::nullopt;
    });
    const std::string text = large_text(65 * kMib);
    at.put("packs/1/x", text);
    EXPECT_TRUE(at.object("packs/1/x") == text);
    EXPECT_EQ(at.fake.count("max-uploads="), 2u) << "not asked again and again";
  }
}

TEST(S3Bucket, AnAnswerThatIsNoUploadIsAskedForAgain) {
  OverFake at;
  at.change_first("POST", "uploads=", [](ServedReply& reply) { reply.body = "<html>one</html>"; });
  const std::string text = large_text(65 * kMib);
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
}

// What a crash left was sent again in full.
TEST(S3Bucket, AnAnswerThatIsNoListOfPartsIsAskedForAgain) {
  OverFake at;
  const std::string text = large_text(65 * kMib);
  at.fake.before([](const ServedRequest& request) -> std::optional<ServedReply> {
    const bool fails = is_completion(request) || request.method == "DELETE";
    return fails ? std::optional(s3_error_reply(403, "AccessDenied")) : std::nullopt;
  });
  EXPECT_EQ(code_of([&] { at.put("packs/1/x", text); }), ErrorCode::permission);
  at.fake.before({});
  at.fake.forget_requests();
  at.change_first("GET", "max-parts", [](ServedReply& reply) { reply.body = "<ListPartsRes"; });
  at.put("packs/1/x", text);
  EXPECT_TRUE(at.object("packs/1/x") == text);
  EXPECT_EQ(at.fake.count("partNumber="), 0u) << "all of them were there";
}

TEST(S3Bucket, AnUploadTakesLittleMemory) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer keeps what was freed";
  constexpr std::uint64_t kSizeMib = 256;
  FakeS3 fake;
  const Environment environment = fake.environment();
  std::string command = "exec env";
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION",
                           "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"}) {
    command += fmt::format(" {}='{}'", name, *environment(name));
  }
  command += fmt::format(" {} s3://bucket/run {}", WEIGHTFS_PUT_LARGE, kSizeMib);
  FILE* const child = ::popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  unsigned most_kib = 0;
  const int fields = std::fscanf(child, "%u", &most_kib);
  ASSERT_EQ(::pclose(child), 0);
  ASSERT_EQ(fields, 1);
  EXPECT_EQ(fake.objects().at("run/key").size(), kSizeMib * kMib);
  constexpr std::uint64_t kOwnMib = test::kSanitized ? 192 : 64;  // a sanitizer keeps what is freed
  EXPECT_LT(most_kib, (kUploadBytesMax + kOwnMib * kMib) / 1024);
  std::printf("%u KiB at most\n", most_kib);
}

/// Returns other bytes at each read, like a file that is being written to.
class RestlessSource final : public Source {
 public:
  explicit RestlessSource(std::uint64_t size_bytes) : size_(size_bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  void read(std::uint64_t, std::span<std::byte> into) const override {
    std::ranges::fill(into, static_cast<std::byte>(++reads_));
    read_bytes += into.size();
  }

  mutable std::atomic<std::uint64_t> read_bytes{0};

 private:
  const std::uint64_t size_;
  mutable std::atomic<unsigned> reads_{0};
};

// Regression: it was hashed and signed in one pass and sent in another, and read again for each
// attempt.
TEST(S3Bucket, WhatItUploadsIsReadOnce) {
  for (const std::uint64_t size : {std::uint64_t{100'000}, kMultipartBytes + 5}) {
    OverFake at;
    at.fail_first("PUT", 1, s3_error_reply(503, "SlowDown"));
    const RestlessSource source(size);
    at.bucket->put("key", source, {});
    EXPECT_EQ(at.object("key").size(), size);
    EXPECT_EQ(source.read_bytes, size);
  }
}

// ---- lists ----

TEST(S3Bucket, ListsOverPagesOfWhatIsNoKey) {
  OverFake at;
  for (int i = 0; i < 1100; i++) at.fake.plant(fmt::format("run/a//{:04}", i), "");
  at.fake.plant("run/a/z", "");
  at.fake.plant("running/x", "");
  EXPECT_EQ(at.bucket->list("", "", {}), std::vector<std::string>{"a/z"});
  EXPECT_EQ(at.fake.count("list-type=2"), 2u);
}

// A service that knows neither start-after nor tokens: it was asked for ever.
TEST(S3Bucket, AListThatDoesNotAdvanceIsTold) {
  OverFake at;
  at.fake.after([](const ServedRequest&, ServedReply& reply) {
    reply.body =
        "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>run/a</Key></Contents>"
        "<NextContinuationToken>run/a</NextContinuationToken></ListBucketResult>";
  });
  EXPECT_EQ(at.bucket->list("", "", {}), std::vector<std::string>{"a"});
  std::string message;
  EXPECT_EQ(code_of([&] { at.bucket->list("", "a", {}); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find("does not advance"), std::string::npos) << message;
}

TEST(S3Bucket, AnAnswerThatIsNoListIsAskedForAgain) {
  OverFake at;
  at.put("key", "text");
  at.change_first("GET", "list-type",
                  [](ServedReply& reply) { reply.body = "<html>hello</html>"; });
  EXPECT_EQ(at.bucket->list("", "", {}), std::vector<std::string>{"key"});
}

TEST(S3Bucket, AnAnswerThatIsNoListIsTold) {
  OverFake at;
  at.fake.after(
      [](const ServedRequest&, ServedReply& reply) { reply.body = "<html>hello</html>"; });
  std::string message;
  EXPECT_EQ(code_of([&] { at.bucket->list("a/", "", Context{}.once()); }, &message),
            ErrorCode::unavailable);
  EXPECT_NE(message.find("is the endpoint right?"), std::string::npos) << message;
  EXPECT_NE(message.find("bucket s3://bucket/run: cannot list object run/a/"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace weightfs
