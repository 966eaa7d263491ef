#include "store/hub/hub_settings.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Environment hub_environment(Variables variables) {
  return [all = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto value = all.find(name);
    return value == all.end() ? std::nullopt : std::optional(value->second);
  };
}

TEST(HubSettings, AreThoseOfTheEnvironment) {
  const HubSettings own = find_hub_settings(hub_environment({}));
  EXPECT_EQ(own.endpoint, kHubEndpoint);
  EXPECT_EQ(own.ca_bundle, "");
  EXPECT_EQ(own.attempts_max, 10u);
  const HubSettings given = find_hub_settings(hub_environment({{"HF_ENDPOINT", "https://HUB:8/x/"},
                                                               {"SSL_CERT_FILE", "/ca.pem"},
                                                               {"AWS_MAX_ATTEMPTS", "2"}}));
  EXPECT_EQ(given.endpoint, "https://hub:8/x");
  EXPECT_EQ(given.ca_bundle, "/ca.pem");
  EXPECT_EQ(given.attempts_max, 2u);
}

TEST(HubSettings, RefuseWhatCannotBe) {
  std::string message;
  const auto refuse = [&](Variables variables) {
    return test::code_of([&] { find_hub_settings(hub_environment(std::move(variables))); },
                         &message);
  };
  EXPECT_EQ(refuse({{"HF_ENDPOINT", "hub.local"}}), ErrorCode::invalid);
  EXPECT_TRUE(message.starts_with("HF_ENDPOINT: 'hub.local'")) << message;
  EXPECT_EQ(refuse({{"AWS_MAX_ATTEMPTS", "0"}}), ErrorCode::invalid);
  EXPECT_NE(message.find("AWS_MAX_ATTEMPTS"), std::string::npos) << message;
}

TEST(HubToken, IsFoundWhereHuggingfaceHubFindsIt) {
  const test::TempDir dir;
  const std::string home = dir.path().string();
  const auto write = [&](const std::string& path) {
    test::write_text(dir / path, " of " + path + "\n");
  };
  Variables variables{{"HOME", home}};
  const auto found = [&] {
    HubToken token = find_hub_token(hub_environment(variables));
    EXPECT_NE(token.source, "");
    return token.token;
  };
  EXPECT_EQ(found(), "");
  write(".cache/huggingface/token");
  EXPECT_EQ(found(), "of .cache/huggingface/token");
  write("cache/huggingface/token");
  variables["XDG_CACHE_HOME"] = home + "/cache";
  EXPECT_EQ(found(), "of cache/huggingface/token");
  write("hf/token");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(found(), "of hf/token");
  write("mine");
  variables["HF_TOKEN_PATH"] = home + "/mine";
  EXPECT_EQ(found(), "of mine");
  variables["HUGGING_FACE_HUB_TOKEN"] = "old";
  EXPECT_EQ(found(), "old");
  variables["HF_TOKEN"] = " new\n";
  EXPECT_EQ(found(), "new");
  variables["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "yes";
  EXPECT_EQ(found(), "");
}

TEST(HubToken, IsNoneIfItsFileCannotBeRead) {
  const test::TempDir dir;
  const HubToken token = find_hub_token(hub_environment({{"HF_TOKEN_PATH", dir.path().string()}}));
  EXPECT_EQ(token.token, "");
  EXPECT_NE(token.source.find(dir.path().string()), std::string::npos) << token.source;
}

}  // namespace
}  // namespace weightfs
