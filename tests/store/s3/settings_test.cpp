#include "store/s3/settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::TempDir;
using test::write_text;

// Settings from a test's own home directory and variables.
class S3SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override { variables_["HOME"] = home_.path().string(); }

  void config(std::string_view text) { write_text(home_ / ".aws/config", text); }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }

  [[nodiscard]] Environment environment() const {
    return [this](std::string_view name) -> std::optional<std::string> {
      const auto found = variables_.find(std::string(name));
      if (found == variables_.end() || found->second.empty()) return std::nullopt;
      return found->second;
    };
  }
  [[nodiscard]] S3Settings find(const BucketOptions& options = {}) const {
    return find_s3_settings(options, environment());
  }
  ErrorCode code(std::string* said, const BucketOptions& options = {}) const {
    return code_of([&] { (void)find(options); }, said);
  }

  const TempDir home_;
  std::map<std::string, std::string> variables_;
};

BucketOptions with_endpoint(const std::string& url) {
  BucketOptions options;
  options.endpoint_url = url;
  return options;
}

TEST_F(S3SettingsTest, AreAwssOwnWithoutAnything) {
  const S3Settings settings = find();
  EXPECT_EQ(settings.endpoint, "");
  EXPECT_EQ(settings.region, "us-east-1");
  EXPECT_EQ(settings.profile.name, "default");
  EXPECT_EQ(settings.attempts_max, 10u);
  EXPECT_FALSE(settings.path_style || settings.http_allowed || settings.profile_named);
  EXPECT_TRUE(settings.sign);
}

// Each source takes precedence over those after it.
TEST_F(S3SettingsTest, FindTheEndpointInOrder) {
  config("[default]\nendpoint_url = https://profile\n");
  EXPECT_EQ(find().endpoint, "https://profile");
  config(
      "[default]\nendpoint_url = https://profile\nservices = mine\n"
      "[services mine]\ns3 =\n  endpoint_url = https://services\nsts =\n  endpoint_url = "
      "https://sts\n");
  EXPECT_EQ(find().endpoint, "https://services");
  set("AWS_ENDPOINT_URL", "https://global");
  EXPECT_EQ(find().endpoint, "https://global");
  set("AWS_ENDPOINT_URL_S3", "https://s3");
  EXPECT_EQ(find().endpoint, "https://s3");
  EXPECT_EQ(find(with_endpoint("https://flag")).endpoint, "https://flag");

  set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True");
  EXPECT_EQ(find().endpoint, "");
  EXPECT_EQ(find(with_endpoint("https://flag")).endpoint, "https://flag");
  set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false");
  EXPECT_EQ(find().endpoint, "https://s3");
}

TEST_F(S3SettingsTest, AProfileCanIgnoreConfiguredEndpoints) {
  config("[default]\nendpoint_url = https://profile\nignore_configured_endpoint_urls = true\n");
  EXPECT_EQ(find().endpoint, "");
}

TEST_F(S3SettingsTest, FindTheRegionInOrder) {
  config("[default]\nregion = profile-1\n");
  EXPECT_EQ(find().region, "profile-1");
  set("AWS_DEFAULT_REGION", "default-1");
  EXPECT_EQ(find().region, "default-1");
  set("AWS_REGION", "region-1");
  EXPECT_EQ(find().region, "region-1");
  BucketOptions options;
  options.region = "flag-1";
  EXPECT_EQ(find(options).region, "flag-1");
}

TEST_F(S3SettingsTest, FindTheProfileInOrder) {
  config("[default]\nregion = d\n[profile a]\nregion = a\n[profile b]\nregion = b\n[profile c]\n");
  EXPECT_EQ(find().region, "d");
  set("AWS_DEFAULT_PROFILE", "a");
  EXPECT_EQ(find().region, "a");
  set("AWS_PROFILE", "b");
  EXPECT_EQ(find().region, "b");
  EXPECT_FALSE(find().profile_named);
  BucketOptions options;
  options.profile = "c";
  EXPECT_EQ(find(options).region, "us-east-1");
  EXPECT_TRUE(find(options).profile_named);
}

TEST_F(S3SettingsTest, NameAProfileThatIsNotThere) {
  std::string said;
  set("AWS_PROFILE", "missing");
  EXPECT_EQ(code(&said), ErrorCode::invalid);
  EXPECT_NE(said.find("'missing'"), std::string::npos) << said;
  EXPECT_NE(said.find(".aws/config"), std::string::npos) << said;
  config("[profile missing]\nservices = gone\n");
  EXPECT_EQ(code(&said), ErrorCode::invalid);
  EXPECT_NE(said.find("[services gone]"), std::string::npos) << said;
}

TEST_F(S3SettingsTest, PlainHttpOnlyIfItIsNamed) {
  EXPECT_TRUE(find(with_endpoint("http://127.0.0.1:9000")).http_allowed);
  EXPECT_FALSE(find(with_endpoint("https://127.0.0.1:9000")).http_allowed);
}

TEST_F(S3SettingsTest, KeepAnEndpointsPath) {
  EXPECT_EQ(find(with_endpoint("HTTPS://S3.Hf.co/Some-Org//")).endpoint,
            "https://s3.hf.co/Some-Org");
  EXPECT_EQ(find(with_endpoint("http://[::1]:9000/")).endpoint, "http://[::1]:9000");
}

TEST_F(S3SettingsTest, RefuseWhatIsNoEndpoint) {
  for (const char* url :
       {"s3.example.com", "ftp://h", "https://", "https:///x", "https://h:0", "https://h:65536",
        "https://h:x", "https://h:", "https://h?x=SECRET", "https://h#x", "https://h/a b",
        "https://user:SECRET@h", "https://h\\x", "https://[::1", "https://[]", "https://[::1]x"}) {
    std::string said;
    EXPECT_EQ(code(&said, with_endpoint(url)), ErrorCode::invalid) << url;
    EXPECT_NE(said.find("--endpoint-url"), std::string::npos) << said;
    EXPECT_EQ(said.find("SECRET"), std::string::npos) << said;
  }
}

TEST_F(S3SettingsTest, RefuseEndpointsOfOtherKindsByName) {
  const std::pair<const char*, const char*> by_variable[] = {
      {"AWS_USE_FIPS_ENDPOINT", "FIPS"}, {"AWS_USE_DUALSTACK_ENDPOINT", "dual-stack"}};
  for (const auto& [name, what] : by_variable) {
    std::string said;
    set(name, "true");
    EXPECT_EQ(code(&said), ErrorCode::unsupported);
    EXPECT_NE(said.find(name), std::string::npos) << said;
    EXPECT_NE(said.find(what), std::string::npos) << said;
    EXPECT_NE(said.find("--endpoint-url"), std::string::npos) << said;
    EXPECT_EQ(find(with_endpoint("https://h")).endpoint, "https://h");
    set(name, "false");
    EXPECT_EQ(find().endpoint, "");
  }
  for (const char* setting :
       {"use_fips_endpoint = true", "use_dualstack_endpoint = True",
        "s3 =\n  use_dualstack_endpoint = true", "s3 =\n  use_accelerate_endpoint = true"}) {
    std::string said;
    config("[default]\n" + std::string(setting) + "\n");
    set("AWS_USE_FIPS_ENDPOINT", "");
    set("AWS_USE_DUALSTACK_ENDPOINT", "");
    EXPECT_EQ(code(&said), ErrorCode::unsupported) << setting;
    EXPECT_NE(said.find("profile 'default'"), std::string::npos) << said;
  }
}

TEST_F(S3SettingsTest, FindTheRest) {
  config(
      "[default]\nca_bundle = /profile.pem\nmax_attempts = 4\n"
      "s3 =\n  addressing_style = path\n");
  EXPECT_EQ(find().ca_bundle, "/profile.pem");
  EXPECT_EQ(find().attempts_max, 4u);
  EXPECT_TRUE(find().path_style);
  set("AWS_CA_BUNDLE", "/variable.pem");
  set("AWS_MAX_ATTEMPTS", "7");
  EXPECT_EQ(find().ca_bundle, "/variable.pem");
  EXPECT_EQ(find().attempts_max, 7u);

  for (const char* attempts : {"0", "x", "-1", "101", "3.5", "4294967297"}) {
    set("AWS_MAX_ATTEMPTS", attempts);
    EXPECT_EQ(code(nullptr), ErrorCode::invalid) << attempts;
  }
  set("AWS_MAX_ATTEMPTS", "");
  config("[default]\ns3 =\n  addressing_style = Path\n");
  std::string said;
  EXPECT_EQ(code(&said), ErrorCode::invalid);
  EXPECT_NE(said.find("addressing_style"), std::string::npos) << said;

  BucketOptions options;
  options.path_style = true;
  options.sign = false;
  config("[default]\ns3 =\n  addressing_style = auto\n");
  EXPECT_FALSE(find().path_style);
  EXPECT_TRUE(find(options).path_style);
  EXPECT_FALSE(find(options).sign);
}

TEST_F(S3SettingsTest, AnEmptyVariableIsUnset) {
  ASSERT_EQ(setenv("WEIGHTFS_TEST_VARIABLE", "", 1), 0);
  EXPECT_EQ(process_environment()("WEIGHTFS_TEST_VARIABLE"), std::nullopt);
  ASSERT_EQ(setenv("WEIGHTFS_TEST_VARIABLE", "x", 1), 0);
  EXPECT_EQ(process_environment()("WEIGHTFS_TEST_VARIABLE"), "x");
  unsetenv("WEIGHTFS_TEST_VARIABLE");
}

}  // namespace
}  // namespace weightfs
