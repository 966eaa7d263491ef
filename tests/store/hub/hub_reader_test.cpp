// HubReader: what is sent where, and what it does when the Hub or its CDN fails, lies or refuses.

#include "store/hub/hub_reader.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/fake_hub.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::FakeHub;
using test::ServedReply;
using test::ServedRequest;

const std::string kHubModel = "org/model/resolve/0123456789abcdef0123456789abcdef01234567/";
const std::string kHubShard = kHubModel + "sub/m 1.safetensors";

class HubReaderTest : public testing::Test {
 protected:
  HubReaderTest() { fake_.put(kHubShard, "0123456789"); }

  HubReader& hub() {
    if (!hub_) {
      const Environment environment = fake_.environment(variables_);
      hub_ = std::make_unique<HubReader>(find_hub_settings(environment), environment);
    }
    return *hub_;
  }

  std::string get(std::uint64_t offset_bytes, std::size_t size,
                  const std::string& key = kHubShard) {
    std::string into(size, '.');
    into.resize(hub().get(key, offset_bytes, std::as_writable_bytes(std::span(into)), {}));
    return into;
  }

  /// The code of a read that must fail, and its message, which names the URL.
  ErrorCode refusal(std::string& message, const std::string& key = kHubShard) {
    const ErrorCode code = test::code_of([&] { get(0, 4, key); }, &message);
    EXPECT_NE(message.find(fake_.url() + "/" + key), std::string::npos) << message;
    return code;
  }

  /// The first `times` requests get this answer.
  static FakeHub::Before first(unsigned times, ServedReply reply) {
    auto left = std::make_shared<std::atomic<unsigned>>(times);
    return [=](const ServedRequest&) -> std::optional<ServedReply> {
      if (*left == 0) return std::nullopt;
      --*left;
      return reply;
    };
  }

  FakeHub fake_;
  std::map<std::string, std::string, std::less<>> variables_;
  std::unique_ptr<HubReader> hub_;
};

TEST_F(HubReaderTest, ReadsRangesFromWhereTheHubRedirectsTo) {
  EXPECT_EQ(get(2, 3), "234");
  EXPECT_EQ(get(8, 9), "89");
  EXPECT_EQ(get(10, 1), "");
  EXPECT_EQ(get(99, 1), "");
  EXPECT_EQ(hub().fetched_bytes(), 5u);
  // Where it leads is kept.
  EXPECT_EQ(fake_.count("GET "), 1u);
  EXPECT_EQ(fake_.count("LINK "), 4u);
  EXPECT_EQ(fake_.requests().front(), "GET /" + kHubShard);
}

TEST_F(HubReaderTest, ReadsSmallFilesFromTheHubItself) {
  fake_.put(kHubModel + "small", "abcdef", false);
  EXPECT_EQ(get(1, 2, kHubModel + "small"), "bc");
  EXPECT_EQ(get(3, 2, kHubModel + "small"), "de");
  EXPECT_EQ(fake_.count("GET "), 2u);
}

TEST_F(HubReaderTest, TheTokenGoesToTheHubAlone) {
  fake_.set_token("hf_secret");
  variables_["HF_TOKEN"] = "hf_secret";
  EXPECT_EQ(get(0, 4), "0123");
  EXPECT_EQ(get(4, 4), "4567");
  EXPECT_EQ(hub().describe(kHubShard, {}).size_bytes, 10u);
  EXPECT_EQ(fake_.leaks(), 0u);
}

TEST_F(HubReaderTest, ARedirectWithinTheHubKeepsTheToken) {
  fake_.set_token("hf_secret");
  variables_["HF_TOKEN"] = "hf_secret";
  const std::string old = "old/name/resolve/0123456789abcdef0123456789abcdef01234567/m";
  fake_.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
    if (request.path() != "/" + old) return std::nullopt;
    return ServedReply{.status = 307,
                       .headers = {{"Location", "/" + kHubModel + "sub/m%201.safetensors"}}};
  });
  EXPECT_EQ(get(0, 4, old), "0123");
  EXPECT_EQ(hub().describe(old, {}).size_bytes, 10u);
  EXPECT_EQ(fake_.leaks(), 0u);
}

TEST_F(HubReaderTest, ALinkThatExpiredIsAskedForAgain) {
  EXPECT_EQ(get(0, 4), "0123");
  fake_.expire_links();
  EXPECT_EQ(get(4, 4), "4567");
  EXPECT_EQ(fake_.count("GET "), 2u);
}

TEST_F(HubReaderTest, TransientFailuresAreRepeated) {
  fake_.before(first(2, {.status = 503}));
  EXPECT_EQ(get(0, 4), "0123");
  EXPECT_EQ(fake_.count("GET "), 3u);
  fake_.before_link(first(1, {.status = 500}));
  EXPECT_EQ(get(0, 4), "0123");
  fake_.before_link(first(1, {.status = 206,
                              .headers = {{"Content-Range", "bytes 0-3/10"}},
                              .body = "0123",
                              .cut_after = 2}));
  EXPECT_EQ(get(0, 4), "0123");
  fake_.before_link(
      first(1, {.status = 206, .headers = {{"Content-Range", "bytes 1-4/10"}}, .body = "1234"}));
  EXPECT_EQ(get(0, 4), "0123");
}

TEST_F(HubReaderTest, IsUnavailableIfItFailsEachTime) {
  std::string message;
  fake_.before(first(1000, {.status = 429}));
  EXPECT_EQ(refusal(message), ErrorCode::unavailable);
  EXPECT_NE(message.find("the Hub answers 429; given up after 3 attempts"), message.npos)
      << message;
  fake_.before({});
  fake_.before_link(first(1000, {.status = 500}));
  EXPECT_EQ(refusal(message), ErrorCode::unavailable);
  EXPECT_NE(message.find("the host that the Hub redirects to answers 500"), message.npos)
      << message;
}

TEST_F(HubReaderTest, ThatIgnoresRangesIsUnavailable) {
  fake_.ignores_range = true;
  std::string message;
  EXPECT_EQ(test::code_of([&] { get(4, 4); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find("ignores Range"), message.npos) << message;
}

TEST_F(HubReaderTest, SaysWhatIsGone) {
  std::string message;
  EXPECT_EQ(refusal(message, kHubModel + "other"), ErrorCode::not_found);
  EXPECT_NE(message.find("404: that commit has no such file (so says the fake)"), message.npos)
      << message;
  fake_.before(first(1, {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}}));
  EXPECT_EQ(refusal(message), ErrorCode::not_found);
  EXPECT_NE(message.find("no such commit"), message.npos) << message;
  fake_.before(first(1, {.status = 404}));
  EXPECT_EQ(refusal(message), ErrorCode::not_found);
  EXPECT_NE(message.find("it, its commit or the whole model was removed"), message.npos) << message;
  EXPECT_EQ(fake_.count("GET "), 3u);
}

TEST_F(HubReaderTest, SaysThatATokenIsNeeded) {
  fake_.set_token("hf_secret");
  std::string message;
  EXPECT_EQ(refusal(message), ErrorCode::permission);
  EXPECT_NE(message.find("no token was sent"), message.npos) << message;
  EXPECT_NE(message.find("HF_TOKEN"), message.npos) << message;
  EXPECT_NE(message.find("gated"), message.npos) << message;
  EXPECT_EQ(fake_.count("GET "), 1u);
}

TEST_F(HubReaderTest, NeverShowsTheTokenThatIsRefused) {
  fake_.set_token("hf_secret");
  variables_["HF_TOKEN"] = "hf_other";
  std::string message;
  EXPECT_EQ(refusal(message), ErrorCode::permission);
  EXPECT_NE(message.find("401: the token of HF_TOKEN may not read it"), message.npos) << message;
  EXPECT_EQ(message.find("hf_other"), message.npos) << message;
}

TEST_F(HubReaderTest, ATokenThatWasRenewedIsLookedUpAgain) {
  const test::TempDir dir;
  test::write_text(dir / "token", "old");
  variables_["HF_TOKEN_PATH"] = (dir / "token").string();
  fake_.set_token("old");
  EXPECT_EQ(get(0, 1), "0");
  fake_.set_token("new");
  fake_.expire_links();
  test::write_text(dir / "token", "new");
  EXPECT_EQ(get(0, 2), "01");
  fake_.expire_links();
  EXPECT_EQ(get(0, 3), "012");
  EXPECT_EQ(fake_.count("GET "), 4u);
}

TEST_F(HubReaderTest, AnotherHostsRefusalIsNoAnswerOfTheHub) {
  fake_.before_link(first(1000, {.status = 404}));
  std::string message;
  EXPECT_EQ(refusal(message), ErrorCode::unavailable);
}

TEST_F(HubReaderTest, IsGivenUpAfterAFewRedirects) {
  fake_.before([&](const ServedRequest& request) -> std::optional<ServedReply> {
    return ServedReply{.status = 302, .headers = {{"Location", request.target}}};
  });
  std::string message;
  EXPECT_EQ(refusal(message), ErrorCode::unavailable);
  EXPECT_NE(message.find("redirects too often"), message.npos) << message;
}

TEST_F(HubReaderTest, IsGivenUpSoonIfItWasNeverReached) {
  std::string url;
  {
    const FakeHub gone;
    url = gone.url();
  }
  variables_["HF_ENDPOINT"] = url;
  variables_["AWS_MAX_ATTEMPTS"] = "100";
  std::string message;
  EXPECT_EQ(test::code_of([&] { get(0, 1); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find("given up after 3 attempts"), message.npos) << message;
}

TEST_F(HubReaderTest, DescribesFilesWithoutFollowingTheHub) {
  const HubFile large = hub().describe(kHubShard, {});
  EXPECT_EQ(large.size_bytes, 10u);
  EXPECT_EQ(large.sha256, sha256(as_bytes("0123456789")));
  fake_.put(kHubModel + "small", "abc", false);
  const HubFile small = hub().describe(kHubModel + "small", {});
  EXPECT_EQ(small.size_bytes, 3u);
  EXPECT_FALSE(small.sha256);
  EXPECT_EQ(fake_.count("LINK "), 0u);
  EXPECT_EQ(fake_.count("HEAD "), 2u);
}

TEST_F(HubReaderTest, EndsWhenItIsTold) {
  fake_.before([&](const ServedRequest&) -> std::optional<ServedReply> {
    return ServedReply{.silent = true};
  });
  std::array<std::byte, 1> byte{};
  const Context soon = Context{}.within(std::chrono::milliseconds(50));
  EXPECT_EQ(test::code_of([&] { hub().get(kHubShard, 0, byte, soon); }), ErrorCode::timed_out);
}

TEST_F(HubReaderTest, NamesTheVariablesOfItsCertificates) {
  test::HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  HubSettings settings;
  settings.endpoint = "https" + server.url().substr(4);
  settings.ca_bundle = "/no/such/bundle.pem";
  HubReader hub(settings, fake_.environment(variables_));
  std::string message;
  std::byte byte{};
  EXPECT_EQ(test::code_of(
                [&] {
                  hub.get(kHubShard, 0, {&byte, 1}, {});
                },
                &message),
            ErrorCode::invalid);
  EXPECT_NE(message.find("SSL_CERT_FILE or REQUESTS_CA_BUNDLE"), std::string::npos) << message;
}

}  // namespace
}  // namespace weightfs
