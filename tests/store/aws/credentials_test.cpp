#include "store/aws/credentials.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <latch>
#include <mutex>
#include <thread>

#include "store/aws/answers.hpp"
#include "store/aws/process.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"
#include "store/s3/s3_bucket.hpp"
#include "store/s3/settings.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::eventually;
using test::HttpServer;
using test::read_text;
using test::ServedReply;
using test::ServedRequest;
using test::TempDir;
using test::write_text;
using WallClock = std::chrono::system_clock;

std::string iso_time(std::chrono::seconds from_now) {
  const std::time_t time = WallClock::to_time_t(WallClock::now() + from_now);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string keys_json(const std::string& id, std::chrono::seconds expires_in,
                      const std::string& token_field = "Token") {
  return R"({"Version": 1, "Code": "Success", "AccessKeyId": ")" + id +
         R"(", "SecretAccessKey": "secret-of-)" + id + R"(", ")" + token_field +
         R"(": "token-of-)" + id + R"(", "Expiration": ")" + iso_time(expires_in) + "\"}";
}

std::string sts_xml(const std::string& id, std::chrono::seconds expires_in) {
  return "<?xml version=\"1.0\"?><AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/\">"
         "<AssumeRoleResult><Credentials><AccessKeyId>" +
         id + "</AccessKeyId><SecretAccessKey>secret-of-" + id +
         "</SecretAccessKey><SessionToken>token-of-" + id + "</SessionToken><Expiration>" +
         iso_time(expires_in) +
         "</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
}

// A home directory, environment variables, and fakes of the services on an AWS host.
class AwsCredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set("HOME", home_.path().string());
    set("AWS_EC2_METADATA_DISABLED", "true");
  }

  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void set_keys(const std::string& id, const std::string& secret) {
    set("AWS_ACCESS_KEY_ID", id);
    set("AWS_SECRET_ACCESS_KEY", secret);
  }
  void config(std::string_view text) { write_text(home_ / ".aws/config", text); }
  void credentials(std::string_view text) { write_text(home_ / ".aws/credentials", text); }
  // A credential_process: a shell script below `home_`.
  std::string script(std::string_view text) {
    write_text(home_ / "script", text);
    return "/bin/sh '" + (home_ / "script").string() + "'";
  }
  // Answers all requests; seen() records them.
  void serve(HttpServer::Handler handler) {
    server_ = std::make_unique<HttpServer>([this, handler](const ServedRequest& request) {
      {
        const std::scoped_lock lock(mutex_);
        seen_.push_back(request);
      }
      return handler(request);
    });
  }
  void serve_container(HttpServer::Handler handler) {
    serve(std::move(handler));
    set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server_->url() + "/keys");
  }
  void serve_sts(HttpServer::Handler handler) {
    serve(std::move(handler));
    set("AWS_ENDPOINT_URL_STS", server_->url());
  }
  void serve_instance(HttpServer::Handler handler) {
    serve(std::move(handler));
    set("AWS_EC2_METADATA_DISABLED", "false");
    set("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_->url());
  }
  std::vector<ServedRequest> seen() {
    const std::scoped_lock lock(mutex_);
    return seen_;
  }

  [[nodiscard]] Environment environment() const {
    return [variables = variables_](std::string_view name) -> std::optional<std::string> {
      const auto found = variables.find(std::string(name));
      if (found == variables.end() || found->second.empty()) return std::nullopt;
      return found->second;
    };
  }
  [[nodiscard]] std::unique_ptr<AwsCredentialChain> chain(const std::string& profile = "") const {
    BucketOptions options;
    options.profile = profile;
    return std::make_unique<AwsCredentialChain>(find_s3_settings(options, environment()).identity(),
                                                environment());
  }
  [[nodiscard]] AwsCredentials get(const std::string& profile = "") const {
    return chain(profile)->get({});
  }
  ErrorCode code(std::string* said, const std::string& profile = "") const {
    return code_of([&] { (void)get(profile); }, said);
  }
  // Expects a failure whose message contains `words`, and no secret.
  void expect_failure(ErrorCode expected, const std::vector<std::string>& words,
                      const std::string& profile = "") const {
    std::string said;
    EXPECT_EQ(code(&said, profile), expected) << said;
    for (const std::string& word : words) {
      EXPECT_NE(said.find(word), std::string::npos) << word << "\n" << said;
    }
    EXPECT_EQ(said.find("HUSHED"), std::string::npos) << said;
  }

  const TempDir home_;
  std::map<std::string, std::string> variables_;
  std::mutex mutex_;
  std::vector<ServedRequest> seen_;
  std::unique_ptr<HttpServer> server_;
};

ServedReply reply_with(std::string body, int status = 200) {
  ServedReply reply;
  reply.status = status;
  reply.body = std::move(body);
  return reply;
}

// The fields of a form "a=b&c=d".
std::map<std::string, std::string> form_fields(const std::string& body) {
  ServedRequest request;
  request.target = "/?" + body;
  return request.query();
}

TEST_F(AwsCredentialsTest, TheEnvironmentIsFirst) {
  set_keys("ENV", "env-secret");
  credentials("[default]\naws_access_key_id = FILE\naws_secret_access_key = x\n");
  AwsCredentials keys = get();
  EXPECT_EQ(keys.access_key_id, "ENV");
  EXPECT_EQ(keys.secret_access_key, "env-secret");
  EXPECT_EQ(keys.session_token, "");
  EXPECT_EQ(keys.source, "environment");
  set("AWS_SESSION_TOKEN", "token");
  EXPECT_EQ(get().session_token, "token");
  EXPECT_EQ(get("default").access_key_id, "FILE");
}

TEST_F(AwsCredentialsTest, AVariableNamesAProfileButKeysBesideItWin) {
  credentials("[dev]\naws_access_key_id = FILE\naws_secret_access_key = x\n");
  set("AWS_PROFILE", "dev");
  EXPECT_EQ(get().access_key_id, "FILE");
  set_keys("ENV", "x");
  EXPECT_EQ(get().access_key_id, "ENV");
}

TEST_F(AwsCredentialsTest, TheEnvironmentMaySayWhenItsKeysExpire) {
  set_keys("ENV", "HUSHED");
  set("AWS_CREDENTIAL_EXPIRATION", "2099-01-01T00:00:00Z");
  set("AWS_SECURITY_TOKEN", "old name");
  EXPECT_EQ(get().expires, WallClock::from_time_t(4070908800));
  EXPECT_EQ(get().session_token, "old name");
  set("AWS_CREDENTIAL_EXPIRATION", iso_time(std::chrono::seconds(-5)));
  expect_failure(ErrorCode::unavailable, {"environment", "have expired"});
  set("AWS_CREDENTIAL_EXPIRATION", "tomorrow");
  expect_failure(ErrorCode::invalid, {"AWS_CREDENTIAL_EXPIRATION"});
}

// In this order: credentials file, credential_process, config file.
TEST_F(AwsCredentialsTest, OrdersTheSourcesOfAProfile) {
  const std::string keys = "aws_access_key_id = CONFIG\naws_secret_access_key = x\n";
  const std::string process = "credential_process = " +
                              script("echo '" + keys_json("PROCESS", std::chrono::hours(1)) + "'");
  config("[default]\n" + keys);
  EXPECT_EQ(get().access_key_id, "CONFIG");
  config("[default]\n" + keys + process + "\n");
  EXPECT_EQ(get().access_key_id, "PROCESS");
  credentials("[default]\naws_access_key_id = FILE\naws_secret_access_key = x\n");
  EXPECT_EQ(get().access_key_id, "FILE");
}

TEST_F(AwsCredentialsTest, RefusesHalfAPair) {
  set("AWS_ACCESS_KEY_ID", "ID");
  expect_failure(ErrorCode::invalid, {"AWS_SECRET_ACCESS_KEY is not set"});
  set("AWS_ACCESS_KEY_ID", "");
  set("AWS_SECRET_ACCESS_KEY", "HUSHED");
  expect_failure(ErrorCode::invalid, {"AWS_ACCESS_KEY_ID is not set"});
  set("AWS_SECRET_ACCESS_KEY", "");
  credentials("[default]\naws_secret_access_key = HUSHED\n");
  expect_failure(ErrorCode::invalid,
                 {"profile 'default'", ".aws/credentials", "aws_access_key_id is missing"});
  credentials("[default]\naws_access_key_id = ID\n");
  expect_failure(ErrorCode::invalid, {"aws_secret_access_key is missing"});
}

TEST_F(AwsCredentialsTest, NamesALineThatIsNoSetting) {
  set("AWS_SHARED_CREDENTIALS_FILE", (home_ / "mine").string());
  write_text(home_ / "mine", "[default]\n");
  const auto keys = chain();
  write_text(home_ / "mine", "[default]\naws_access_key_id = A\nSECRET\n");
  std::string said;
  EXPECT_EQ(code_of([&] { keys->get({}); }, &said), ErrorCode::invalid);
  EXPECT_NE(said.find("/mine, line 3"), std::string::npos) << said;
  EXPECT_EQ(said.find("HUSHED"), std::string::npos) << said;
}

TEST_F(AwsCredentialsTest, SaysWhereItLookedInVain) {
  expect_failure(ErrorCode::permission,
                 {"no AWS credentials found", "the environment", "profile 'default'",
                  (home_ / ".aws/credentials").string(), "AWS_EC2_METADATA_DISABLED",
                  "set AWS_ACCESS_KEY_ID", "--profile", "--no-sign-request"});
}

TEST_F(AwsCredentialsTest, RefusesWhatAsksAPerson) {
  for (const char* sso : {"sso_session = x\nsso_account_id = 1\nsso_role_name = r\n",
                          "sso_start_url = https://x\n"}) {
    config("[profile x]\n" + std::string(sso));
    expect_failure(ErrorCode::unsupported,
                   {"profile 'x'", "SSO", "aws configure export-credentials --profile x"}, "x");
  }
  config("[profile x]\nrole_arn = r\nsource_profile = x\nmfa_serial = m\n");
  expect_failure(ErrorCode::unsupported, {"profile 'x'", "mfa_serial", "credential_process"}, "x");
}

// credential_process -----------------------------------------------------------------------------

TEST_F(AwsCredentialsTest, RunsAProcessWithoutAShell) {
  // With a descriptor that it could inherit, and words that a shell would change.
  const File open_here(::open("/dev/null", O_RDONLY));
  ASSERT_TRUE(open_here);
  config("[default]\ncredential_process = " +
         script("[ \"$1\" = '$HOME;x *' ] || exit 1\n"
                "[ \"$(ls /proc/self/fd | wc -l)\" = 4 ] || exit 2\n"
                "[ -z \"$(cat)\" ] || exit 3\n"
                "echo '" +
                keys_json("PROCESS", std::chrono::hours(1), "SessionToken") + "'") +
         " \"$HOME;x *\"\n");
  const AwsCredentials keys = get();
  EXPECT_EQ(keys.access_key_id, "PROCESS");
  EXPECT_EQ(keys.secret_access_key, "secret-of-PROCESS");
  EXPECT_EQ(keys.session_token, "token-of-PROCESS");
  EXPECT_GT(keys.expires, WallClock::now() + std::chrono::minutes(59));
}

TEST_F(AwsCredentialsTest, ShowsWhatAFailedProcessSaidButNoKeys) {
  const std::string key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYHUSHEDEXAMPLE";
  config("[default]\ncredential_process = " +
         script("echo 'log in first: " + key + " is old' >&2\nexit 3"));
  expect_failure(ErrorCode::unavailable,
                 {"profile 'default'", "status 3", "log in first: [hidden] is old"});
  config("[default]\ncredential_process = " + script("kill -9 $$"));
  expect_failure(ErrorCode::unavailable, {"signal 9", "without output"});
}

// A hand-over that waits for the bucket failed for good where the process's own service was down.
TEST_F(AwsCredentialsTest, AProcessThatFailsMayWorkLater) {
  config("[default]\ncredential_process = " +
         script("[ -e '" + (home_ / "up").string() + "' ] || { echo 'no network' >&2; exit 1; }\n" +
                "echo '" + keys_json("PROCESS", std::chrono::hours(1), "SessionToken") + "'"));
  const auto keys = chain();
  std::string said;
  EXPECT_EQ(code_of([&] { keys->get({}); }, &said), ErrorCode::unavailable);
  EXPECT_NE(said.find("no network"), std::string::npos) << said;
  write_text(home_ / "up", "");
  EXPECT_EQ(keys->get({}).access_key_id, "PROCESS");
}

TEST_F(AwsCredentialsTest, RefusesWhatAProcessShouldNotSay) {
  const std::pair<std::string, std::string> cases[] = {
      {"echo HUSHED", "is not valid JSON"},
      {"echo '{\"Version\": 2, \"SecretAccessKey\": \"HUSHED\"}'", "a Version other than 1"},
      {"echo '{\"SecretAccessKey\": \"HUSHED\"}'", "'Version' is missing"},
      {"echo '{\"Version\": 1, \"SecretAccessKey\": \"HUSHED\"}'", "'AccessKeyId' is missing"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": \"\", \"SecretAccessKey\": \"HUSHED\"}'",
       "empty key"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": \"A\", \"SecretAccessKey\": \"HUSHED\", "
       "\"Expiration\": \"HUSHED\"}'",
       "Expiration is not a time"},
      {"head -c 2000000 /dev/zero", "more than 1 MiB"}};
  for (const auto& [text, message] : cases) {
    config("[default]\ncredential_process = " + script(text));
    expect_failure(ErrorCode::invalid, {"profile 'default'", message});
  }
  for (const char* command : {"/no/such/program", "'unclosed", ""}) {
    config("[default]\nregion = r\ncredential_process = \"\"" + std::string(command) + "\n");
    if (*command != 0) expect_failure(ErrorCode::invalid, {"profile 'default'"});
  }
  config("[default]\ncredential_process = " +
         script("echo '" + keys_json("OLD", std::chrono::seconds(-5)) + "'"));
  expect_failure(ErrorCode::unavailable, {"have expired", "clock"});
}

// A hand-over failed for good where the process that renews them was a minute late.
TEST_F(AwsCredentialsTest, ExpiredKeysMayBeRenewedLater) {
  const auto give = [&](const std::string& id, std::chrono::seconds life) {
    write_text(home_ / "keys.json", keys_json(id, life, "SessionToken"));
  };
  config("[default]\ncredential_process = cat '" + (home_ / "keys.json").string() + "'\n");
  give("OLD", std::chrono::seconds(-5));
  const auto keys = chain();
  std::string said;
  EXPECT_EQ(code_of([&] { keys->get({}); }, &said), ErrorCode::unavailable);
  EXPECT_NE(said.find("have expired: renew them"), std::string::npos) << said;
  give("NEW", std::chrono::hours(1));
  EXPECT_EQ(keys->get({}).access_key_id, "NEW");
}

TEST_F(AwsCredentialsTest, KillsAProcessThatDoesNotEnd) {
  const std::string command =
      script("sleep 1000 & echo $! > '" + (home_ / "pid").string() + ".new'\nmv '" +
             (home_ / "pid").string() + ".new' '" + (home_ / "pid").string() + "'\nwait");
  std::string said;
  EXPECT_EQ(
      code_of([&] { run_credential_process(command, "S", {}, std::chrono::seconds(2)); }, &said),
      ErrorCode::unavailable);
  EXPECT_NE(said.find("was killed"), std::string::npos) << said;
  const pid_t child = std::stoi(read_text(home_ / "pid"));
  EXPECT_TRUE(eventually([&] {
    // Gone, or a zombie that is not reaped.
    std::string status;
    try {
      status = read_text("/proc/" + std::to_string(child) + "/stat");
    } catch (...) {
      return true;
    }
    return status.empty() || status.find(") Z") != std::string::npos;
  }));

  std::stop_source stop;
  Context context;
  context.stop = stop.get_token();
  const auto before = Clock::now();
  std::jthread stopper([&] {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(home_ / "started"); }));
    stop.request_stop();
  });
  const std::string waits = script("touch '" + (home_ / "started").string() + "'; sleep 1000");
  EXPECT_EQ(code_of([&] { run_credential_process(waits, "S", context); }), ErrorCode::cancelled);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(50));
}

// Roles ------------------------------------------------------------------------------------------

TEST_F(AwsCredentialsTest, AssumesAChainOfRoles) {
  config(
      "[profile a]\nrole_arn = arn:A\nsource_profile = b\nexternal_id = e/1\n"
      "duration_seconds = 900\nrole_session_name = me\nregion = eu-central-1\n"
      "[profile b]\nrole_arn = arn:B\nsource_profile = c\n"
      "[profile c]\nrole_arn = arn:C\nsource_profile = c\naws_access_key_id = STATIC\n"
      "aws_secret_access_key = x\n");
  serve_sts([](const ServedRequest& request) {
    return reply_with(sts_xml(form_fields(request.body)["RoleArn"], std::chrono::hours(1)));
  });
  const AwsCredentials keys = get("a");
  EXPECT_EQ(keys.access_key_id, "arn:A");
  EXPECT_EQ(keys.session_token, "token-of-arn:A");
  EXPECT_EQ(keys.source, "role arn:A of profile 'a'");
  ASSERT_EQ(seen().size(), 2u);

  const ServedRequest b = seen()[0], a = seen()[1];
  EXPECT_EQ(form_fields(b.body)["RoleArn"], "arn:B");
  EXPECT_NE(b.headers.at("authorization").find("Credential=STATIC/"), std::string::npos);
  EXPECT_FALSE(b.headers.contains("x-amz-security-token"));
  auto form = form_fields(a.body);
  EXPECT_NE(form["RoleSessionName"], "");
  EXPECT_EQ(form, (std::map<std::string, std::string>{{"Action", "AssumeRole"},
                                                      {"Version", "2011-06-15"},
                                                      {"RoleArn", "arn:A"},
                                                      {"RoleSessionName", "me"},
                                                      {"ExternalId", "e/1"},
                                                      {"DurationSeconds", "900"}}));
  EXPECT_NE(a.headers.at("authorization").find("Credential=arn:B/"), std::string::npos);
  EXPECT_NE(a.headers.at("authorization").find("/eu-central-1/sts/"), std::string::npos);
  EXPECT_EQ(a.headers.at("x-amz-security-token"), "token-of-arn:B");

  // A profile that is its own source has its own keys.
  EXPECT_EQ(get("c").access_key_id, "arn:C");
  EXPECT_NE(seen()[2].headers.at("authorization").find("Credential=STATIC/"), std::string::npos);
}

TEST_F(AwsCredentialsTest, RefusesRolesWithoutASource) {
  config(
      "[profile a]\nrole_arn = A\nsource_profile = b\n[profile b]\nrole_arn = B\n"
      "source_profile = c\n[profile c]\nrole_arn = C\nsource_profile = a\n"
      "[profile self]\nrole_arn = S\nsource_profile = self\n"
      "[profile none]\nrole_arn = N\n[profile empty]\n"
      "[profile both]\nrole_arn = N\nsource_profile = a\ncredential_source = Environment\n"
      "[profile gone]\nrole_arn = N\nsource_profile = nobody\n"
      "[profile hollow]\nrole_arn = N\nsource_profile = empty\n"
      "[profile odd]\nrole_arn = N\ncredential_source = SharedConfig\n"
      "[profile env]\nrole_arn = N\ncredential_source = Environment\n");
  expect_failure(ErrorCode::invalid, {"a -> b -> c -> a"}, "a");
  expect_failure(ErrorCode::invalid, {"self -> self"}, "self");
  expect_failure(ErrorCode::invalid, {"either source_profile or credential_source", "none"},
                 "none");
  expect_failure(ErrorCode::invalid, {"either source_profile or credential_source", "both"},
                 "both");
  expect_failure(ErrorCode::invalid, {"'nobody' is not in"}, "gone");
  expect_failure(ErrorCode::invalid, {"'empty' has no keys"}, "hollow");
  expect_failure(ErrorCode::invalid, {"'SharedConfig'", "EcsContainer"}, "odd");
  expect_failure(ErrorCode::permission, {"credential_source Environment"}, "env");
}

TEST_F(AwsCredentialsTest, SourcesOfARoleAreTheEnvironmentContainersAndInstances) {
  config(
      "[profile env]\nrole_arn = R\ncredential_source = Environment\n"
      "[profile ecs]\nrole_arn = R\ncredential_source = EcsContainer\n");
  serve([](const ServedRequest& request) {
    if (request.method == "GET") return reply_with(keys_json("AGENT", std::chrono::hours(1)));
    return reply_with(sts_xml("ROLE", std::chrono::hours(1)));
  });
  set("AWS_ENDPOINT_URL_STS", server_->url());
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server_->url() + "/keys");
  set_keys("ENV", "x");
  EXPECT_EQ(get("env").access_key_id, "ROLE");
  EXPECT_NE(seen()[0].headers.at("authorization").find("Credential=ENV/"), std::string::npos);
  EXPECT_EQ(get("ecs").access_key_id, "ROLE");
  EXPECT_NE(seen()[2].headers.at("authorization").find("Credential=AGENT/"), std::string::npos);
}

TEST_F(AwsCredentialsTest, SaysWhyStsRefuses) {
  config(
      "[default]\nrole_arn = arn:R\nsource_profile = default\naws_access_key_id = ID\n"
      "aws_secret_access_key = HUSHED\n");
  serve_sts([](const ServedRequest&) {
    return reply_with(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/\"><Error><Code>AccessDenied</Code>"
        "<Message>not you</Message></Error></ErrorResponse>",
        403);
  });
  expect_failure(ErrorCode::permission,
                 {"profile 'default'", "arn:R", "403", "AccessDenied", "not you", server_->url()});
  EXPECT_EQ(seen().size(), 1u);
  serve_sts([](const ServedRequest&) {
    return reply_with(
        "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>late"
        "</Message></Error></ErrorResponse>",
        400);
  });
  expect_failure(ErrorCode::unavailable, {"ExpiredTokenException: late"});
  EXPECT_EQ(seen().size(), 2u) << "it is not renewed within a second";
  serve_sts([](const ServedRequest&) { return reply_with("busy HUSHED", 503); });
  expect_failure(ErrorCode::unavailable, {"503"});
  EXPECT_EQ(seen().size(), 5u);  // tried three times
  serve_sts([](const ServedRequest&) { return reply_with("<a>HUSHED</a>"); });
  expect_failure(ErrorCode::invalid, {"has no <Credentials>"});
  server_.reset();
  expect_failure(ErrorCode::unavailable, {"arn:R"});
}

// Like the AWS tools: settings for all services apply to STS.
TEST_F(AwsCredentialsTest, FindsTheEndpointOfSts) {
  serve([](const ServedRequest&) { return reply_with(sts_xml("ROLE", std::chrono::hours(1))); });
  const std::string keys =
      "role_arn = arn:R\nsource_profile = default\naws_access_key_id = ID\n"
      "aws_secret_access_key = x\n";
  config("[default]\n" + keys + "endpoint_url = " + server_->url() + "/path/\n");
  EXPECT_EQ(get().access_key_id, "ROLE");
  EXPECT_EQ(seen()[0].target, "/path/");
  config("[default]\n" + keys + "services = s\nendpoint_url = http://127.0.0.1:1\n" +
         "[services s]\nsts =\n  endpoint_url = " + server_->url() + "\n");
  EXPECT_EQ(get().access_key_id, "ROLE");
  config("[default]\n" + keys);
  set("AWS_ENDPOINT_URL", server_->url());
  EXPECT_EQ(get().access_key_id, "ROLE");
  EXPECT_EQ(seen()[2].target, "/");
}

TEST_F(AwsCredentialsTest, AssumesARoleByATokenFile) {
  write_text(home_ / "token", "first\n");
  set("AWS_WEB_IDENTITY_TOKEN_FILE", (home_ / "token").string());
  expect_failure(ErrorCode::invalid, {"AWS_ROLE_ARN"});
  set("AWS_ROLE_ARN", "arn:R");
  serve_sts([](const ServedRequest& request) {
    return reply_with(
        sts_xml(form_fields(request.body)["WebIdentityToken"], std::chrono::hours(1)));
  });
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  EXPECT_EQ(first.access_key_id, "first");
  EXPECT_FALSE(seen()[0].headers.contains("authorization"));
  auto form = form_fields(seen()[0].body);
  EXPECT_EQ(form["Action"], "AssumeRoleWithWebIdentity");
  EXPECT_EQ(form["RoleArn"], "arn:R");

  write_text(home_ / "token", "second");  // Kubernetes rotates it
  keys->refused(first);
  EXPECT_EQ(keys->get({}).access_key_id, "second");

  // A profile named by a flag uses its own settings.
  config("[profile p]\nrole_arn = arn:P\nweb_identity_token_file = " +
         (home_ / "missing").string() + "\n");
  expect_failure(ErrorCode::unavailable, {"profile 'p'", (home_ / "missing").string()}, "p");
}

// "not found" would mean that there is no such object, or no repository.
TEST_F(AwsCredentialsTest, AMissingTokenFileIsNotAMissingObject) {
  serve_container([](const ServedRequest&) { return reply_with("HUSHED"); });
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", (home_ / "missing").string());
  S3Bucket bucket("s3://bucket/run", {}, environment());
  std::string said;
  EXPECT_EQ(code_of([&] { has_object(bucket, "key", {}); }, &said), ErrorCode::unavailable);
  EXPECT_NE(said.find((home_ / "missing").string()), std::string::npos) << said;
}

// Containers and instances -----------------------------------------------------------------------

TEST_F(AwsCredentialsTest, AsksAContainersAgent) {
  serve_container([](const ServedRequest& request) {
    const auto token = request.headers.find("authorization");
    return reply_with(
        keys_json(token == request.headers.end() ? "NONE" : token->second, std::chrono::hours(1)));
  });
  EXPECT_EQ(get().access_key_id, "NONE");
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN", "by-variable");
  EXPECT_EQ(get().access_key_id, "by-variable");
  write_text(home_ / "token", "by-file\n");
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", (home_ / "token").string());
  const auto keys = chain();
  EXPECT_EQ(keys->get({}).access_key_id, "by-file");
  write_text(home_ / "token", "rotated");
  keys->refused(keys->get({}));
  EXPECT_EQ(keys->get({}).access_key_id, "rotated");
  write_text(home_ / "token", "HUSHED\r\nX-Other: 1");
  expect_failure(ErrorCode::invalid, {"one line"});
}

// A proxy may break signatures, and the agent may be away just then.
TEST_F(AwsCredentialsTest, AWrongSignatureLosesNoKeysThatAreValid) {
  std::atomic<bool> is_away = false;
  serve_container([&](const ServedRequest&) {
    return is_away ? ServedReply{.status = 400} : reply_with(keys_json("A", std::chrono::hours(1)));
  });
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  is_away = true;
  for (int i = 0; i < 16; i++) {
    keys->doubted(first);
    EXPECT_EQ(keys->get({}).access_key_id, "A");
  }
  EXPECT_EQ(seen().size(), 2u) << "it is asked once for all of them";
}

TEST_F(AwsCredentialsTest, AsksNoStrangerForKeys) {
  for (const char* url :
       {"http://example.com/x", "http://127.0.0.1.example.com/", "http://127.0.0.1@example.com/",
        "http://0x7f.1/", "http://169.254.169.254/", "http://[fd00:ec2::24]/",
        "ftp://127.0.0.1/"}) {
    set("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
    expect_failure(ErrorCode::invalid, {"AWS_CONTAINER_CREDENTIALS_FULL_URI"});
  }
  set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@example.com/");
  expect_failure(ErrorCode::invalid, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"});
}

TEST_F(AwsCredentialsTest, SaysWhyAContainerGivesNone) {
  std::atomic<int> status = 403;
  serve_container([&](const ServedRequest&) { return reply_with("HUSHED", status); });
  expect_failure(ErrorCode::permission, {"container", "403"});
  EXPECT_EQ(seen().size(), 1u);
  status = 500;
  expect_failure(ErrorCode::unavailable, {"container", "500"});
  EXPECT_EQ(seen().size(), 4u);
  status = 200;
  expect_failure(ErrorCode::unavailable, {"container", "not valid JSON"});
  EXPECT_EQ(seen().size(), 7u);
}

HttpServer::Handler instance_with(std::string role, std::string keys) {
  return [role, keys](const ServedRequest& request) {
    if (request.method == "PUT") {
      const auto ttl = request.headers.find("x-aws-ec2-metadata-token-ttl-seconds");
      return ttl == request.headers.end() ? reply_with("", 400) : reply_with("session");
    }
    const auto session = request.headers.find("x-aws-ec2-metadata-token");
    if (session == request.headers.end() || session->second != "session")
      return reply_with("", 401);
    const std::string roles = "/latest/meta-data/iam/security-credentials/";
    if (request.target == roles) return reply_with(role, role.empty() ? 404 : 200);
    return request.target == roles + role ? reply_with(keys) : reply_with("", 404);
  };
}

TEST_F(AwsCredentialsTest, AsksAnInstanceInASession) {
  serve_instance(instance_with("a-role", keys_json("INSTANCE", std::chrono::hours(1))));
  const AwsCredentials keys = get();
  EXPECT_EQ(keys.access_key_id, "INSTANCE");
  EXPECT_EQ(keys.source, "instance metadata (role a-role)");
  set("AWS_EC2_METADATA_DISABLED", "true");
  expect_failure(ErrorCode::permission, {"no AWS credentials"});
  EXPECT_EQ(seen().size(), 3u);
}

TEST_F(AwsCredentialsTest, AnInstanceWithoutARoleIsNone) {
  serve_instance(instance_with("", ""));
  expect_failure(ErrorCode::permission, {"no AWS credentials", "no role, status 404"});
}

// A mount or sync then starts from its store, as where the bucket itself does not answer.  Where
// there is no instance, a person still reads how to give keys.
TEST_F(AwsCredentialsTest, AnInstanceThatDoesNotSayMayHaveKeysLater) {
  set("AWS_METADATA_SERVICE_TIMEOUT", "30");  // this machine may be busy
  const std::vector<std::string> advice{"no AWS credentials found", "set AWS_ACCESS_KEY_ID"};
  const auto expect_later = [&](std::string why) {
    std::vector<std::string> words = advice;
    words.push_back(std::move(why));
    expect_failure(ErrorCode::unavailable, words);
  };
  const HttpServer::Handler healthy =
      instance_with("r", keys_json("INSTANCE", std::chrono::hours(1)));
  for (const char* broken : {"/token", "/security-credentials/", "/r"}) {
    for (const int status : {500, 503, 429}) {
      serve_instance([&](const ServedRequest& request) {
        return request.target.ends_with(broken) ? reply_with("", status) : healthy(request);
      });
      expect_later("status " + std::to_string(status));
    }
  }
  config("[profile p]\nrole_arn = R\ncredential_source = Ec2InstanceMetadata\n");
  server_.reset();
  expect_later("no answer from http://127.0.0.1:");
  expect_failure(ErrorCode::unavailable, {"Ec2InstanceMetadata gives no AWS credentials"}, "p");
  serve_instance([](const ServedRequest&) { return reply_with("", 403); });
  expect_failure(ErrorCode::permission, {"no AWS credentials found", "status 403"});
}

// A 200 says so too: of a role that cannot be assumed yet, and of an agent that has just started.
TEST_F(AwsCredentialsTest, AnInstanceThatAnswersWithoutKeysMayHaveThemLater) {
  const std::string refused =
      R"({"Code": "AssumeRoleUnauthorizedAccess", "Message": "not\nyet", "LastUpdated": "x"})";
  const std::pair<std::string, std::string> cases[] = {
      {refused, "AssumeRoleUnauthorizedAccess: not yet"},
      {"", "not valid JSON"},
      {"<html>HUSHED</html>", "not valid JSON"},
      {R"({"Code": "Success", "AccessKeyId": "HUSHED"})", "Success"}};
  for (const auto& [answer, words] : cases) {
    serve_instance(instance_with("a-role", answer));
    const std::size_t before = seen().size();
    expect_failure(ErrorCode::unavailable,
                   {"no AWS credentials found", "no keys for the role a-role", words});
    EXPECT_EQ(seen().size() - before, 4u) << "a session, the role, and twice its keys";
  }
  set("AWS_EC2_METADATA_DISABLED", "true");
  serve_container([&](const ServedRequest&) { return reply_with(refused); });
  expect_failure(ErrorCode::unavailable, {"container", "AssumeRoleUnauthorizedAccess: not yet"});

  std::atomic<int> asked = 0;
  serve_container([&](const ServedRequest&) {
    return reply_with(asked++ == 0 ? refused : keys_json("AGENT", std::chrono::hours(1)));
  });
  EXPECT_EQ(get().access_key_id, "AGENT");
}

TEST_F(AwsCredentialsTest, AgentsAreAskedWithoutAProxy) {
  std::atomic<unsigned> proxied = 0;
  HttpServer proxy([&](const ServedRequest&) {
    proxied++;
    return reply_with("", 404);
  });
  ::setenv("http_proxy", proxy.url().c_str(), 1);
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN", "HUSHED");
  serve_container(
      [](const ServedRequest&) { return reply_with(keys_json("AGENT", std::chrono::hours(1))); });
  EXPECT_EQ(get().access_key_id, "AGENT");
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", "");
  serve_instance(instance_with("r", keys_json("INSTANCE", std::chrono::hours(1))));
  EXPECT_EQ(get().access_key_id, "INSTANCE");
  ::unsetenv("http_proxy");
  EXPECT_EQ(proxied, 0u);
}

TEST_F(AwsCredentialsTest, AnInstanceIsNotWaitedForLong) {
  serve_instance([](const ServedRequest&) {
    ServedReply reply;
    reply.silent = true;
    return reply;
  });
  const auto before = Clock::now();
  expect_failure(ErrorCode::unavailable, {"no answer from", "set AWS_ACCESS_KEY_ID"});
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(30));
  EXPECT_EQ(seen().size(), 2u);
}

TEST_F(AwsCredentialsTest, AnInstanceThatGaveKeysIsMissed) {
  serve_instance(instance_with("a-role", keys_json("INSTANCE", std::chrono::hours(1))));
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  server_.reset();
  EXPECT_EQ(keys->get({}).access_key_id, "INSTANCE");
  keys->refused(first);
  std::string said;
  EXPECT_EQ(code_of([&] { keys->get({}); }, &said), ErrorCode::unavailable);
  EXPECT_NE(said.find("instance metadata"), std::string::npos) << said;
}

TEST_F(AwsCredentialsTest, RefusesSettingsOfAnInstanceThatAreNone) {
  set("AWS_EC2_METADATA_DISABLED", "");
  const std::pair<const char*, const char*> cases[] = {
      {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv5"},
      {"AWS_EC2_METADATA_SERVICE_ENDPOINT", "169.254.169.254"},
      {"AWS_METADATA_SERVICE_TIMEOUT", "0"},
      {"AWS_METADATA_SERVICE_NUM_ATTEMPTS", "many"}};
  for (const auto& [name, value] : cases) {
    set("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
    set(name, value);
    expect_failure(ErrorCode::invalid, {name, value});
    set(name, "");
  }
}

// An instance returns expired keys when AWS cannot renew them, and they are still accepted.
TEST_F(AwsCredentialsTest, UsesExpiredKeysOfAnInstance) {
  serve_instance(instance_with("r", keys_json("INSTANCE", std::chrono::seconds(-60))));
  EXPECT_EQ(get().access_key_id, "INSTANCE");
}

// Keeping and renewing ---------------------------------------------------------------------------

// Returns "KEYS1", "KEYS2", ... valid for `life`; fails while `down`.
struct Renewing {
  std::chrono::seconds life{3600};
  std::atomic<int> given = 0;
  std::atomic<bool> down = false;

  HttpServer::Handler handler() {
    return [this](const ServedRequest&) {
      if (down) return reply_with("", 404);
      return reply_with(keys_json("KEYS" + std::to_string(++given), life));
    };
  }
};

TEST_F(AwsCredentialsTest, KeepsKeysThatLive) {
  Renewing source;
  serve_container(source.handler());
  const auto keys = chain();
  for (int i = 0; i < 3; i++) EXPECT_EQ(keys->get({}).access_key_id, "KEYS1");
  EXPECT_EQ(source.given, 1);
}

TEST_F(AwsCredentialsTest, RenewsKeysBeforeTheyExpire) {
  Renewing source;
  source.life = std::chrono::seconds(5);
  serve_container(source.handler());
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  AwsCredentials now = first;
  EXPECT_TRUE(eventually([&] {
    now = keys->get({});
    return now.access_key_id != first.access_key_id;
  }));
  EXPECT_EQ(now.access_key_id, "KEYS2");
  EXPECT_LT(WallClock::now(), first.expires);
}

TEST_F(AwsCredentialsTest, UsesValidKeysWhileTheyCannotBeRenewed) {
  Renewing source;
  source.life = std::chrono::seconds(6);
  serve_container(source.handler());
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  source.down = true;
  EXPECT_TRUE(eventually([&] {
    if (WallClock::now() < first.expires) {
      try {
        EXPECT_EQ(keys->get({}).access_key_id, "KEYS1");
      } catch (const Error&) {
        EXPECT_GE(WallClock::now(), first.expires);
      }
    }
    return seen().size() >= 2;
  }));
  EXPECT_TRUE(eventually([&] { return WallClock::now() >= first.expires; }));
  EXPECT_EQ(code_of([&] { keys->get({}); }), ErrorCode::permission);
  EXPECT_LT(seen().size(), 20u);  // fewer than one per get()
  source.down = false;
  EXPECT_EQ(keys->get({}).access_key_id, "KEYS2");
}

TEST_F(AwsCredentialsTest, FetchesAnewWhatWasRefused) {
  credentials("[default]\naws_access_key_id = A1\naws_secret_access_key = x\n");
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  credentials("[default]\naws_access_key_id = A2\naws_secret_access_key = x\n");
  EXPECT_EQ(keys->get({}).access_key_id, "A1");  // files are not reread each time
  keys->refused(first);
  EXPECT_EQ(keys->get({}).access_key_id, "A2");
  credentials("[default]\naws_access_key_id = A3\naws_secret_access_key = x\n");
  keys->refused(first);  // newer keys have arrived since
  EXPECT_EQ(keys->get({}).access_key_id, "A2");
}

// Whoever rotates keys writes the file anew, and it was read at that moment: the daemon took the
// instance's role, which has other rights, until its keys expired hours later.
TEST_F(AwsCredentialsTest, AProfileThatGaveKeysIsMissed) {
  const std::string whole = "[x]\naws_access_key_id = ID\naws_secret_access_key = HUSHED\n";
  credentials(whole);
  serve_instance(instance_with("a-role", keys_json("INSTANCE", std::chrono::hours(1))));
  const auto keys = chain("x");
  for (const auto& [text, words] : {std::pair<std::string, std::string>{"", "none now"},
                                    {"[x]\n", "profile 'x' of"},
                                    {"[x]\naws_access_key_id = ID\n", "half of a key pair"},
                                    {"[x]\naws_access_k", "line 2"}}) {
    const AwsCredentials last = keys->get({});
    EXPECT_EQ(last.access_key_id, "ID");
    credentials(text);
    keys->refused(last);
    std::string said;
    EXPECT_EQ(code_of([&] { keys->get({}); }, &said), ErrorCode::unavailable) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_EQ(said.find("HUSHED"), std::string::npos) << said;
    credentials(whole);
  }
}

TEST_F(AwsCredentialsTest, OneThreadFetchesForAll) {
  Renewing source;
  serve_container(source.handler());
  const auto keys = chain();
  std::latch start(8);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      EXPECT_EQ(keys->get({}).access_key_id, "KEYS1");
    });
  }
  threads.clear();
  EXPECT_EQ(source.given, 1);
}

// The other threads use the valid keys while one thread waits for new ones.
TEST_F(AwsCredentialsTest, NobodyWaitsForARefreshButOne) {
  std::atomic<int> asked = 0;
  std::atomic<bool> renewed = false;
  std::latch released(1);
  serve_container([&](const ServedRequest&) {
    const int one = ++asked;
    if (one > 1) released.wait();
    return reply_with(keys_json("KEYS" + std::to_string(one), std::chrono::seconds(8)));
  });
  const auto keys = chain();
  EXPECT_EQ(keys->get({}).access_key_id, "KEYS1");
  std::jthread refresher([&] {
    EXPECT_TRUE(eventually([&] {
      (void)keys->get({});
      return asked > 1;
    }));
    renewed = true;
  });
  EXPECT_TRUE(eventually([&] { return asked > 1; }));
  EXPECT_EQ(keys->get({}).access_key_id, "KEYS1");
  EXPECT_FALSE(renewed);
  released.count_down();
  refresher.join();
  server_.reset();  // its threads use the variables above
}

// Of requests in flight when a secret was changed, the first asked for it, and the others were told
// to use the old one.
TEST_F(AwsCredentialsTest, WhoDoubtsWhileAnotherAsksWaitsForWhatItFinds) {
  const std::string go = (home_ / "go").string(), asked = (home_ / "asked").string();
  write_text(home_ / "secret", "old");
  config("[default]\ncredential_process = " +
         script("secret=$(cat '" + (home_ / "secret").string() +
                "')\n[ $secret = old ] || { : > '" + asked + "'; while [ ! -e '" + go +
                "' ]; do sleep 0.01; done; }\n" +
                R"(echo "{\"Version\": 1, \"AccessKeyId\": \"ID\", \"SecretAccessKey\": )" +
                R"(\"$secret\"}")"));
  const auto keys = chain();
  const AwsCredentials old = keys->get({});
  EXPECT_EQ(old.secret_access_key, "old");
  write_text(home_ / "secret", "new");
  const auto secret_after_doubt = [&](const Context& context) {
    keys->doubted(old);
    return keys->get(context).secret_access_key;
  };
  std::jthread first([&] { EXPECT_EQ(secret_after_doubt({}), "new"); });
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(asked); }));
  EXPECT_EQ(code_of([&] { secret_after_doubt(Context{}.within(std::chrono::milliseconds(50))); }),
            ErrorCode::timed_out);
  std::jthread second([&] { EXPECT_EQ(secret_after_doubt({}), "new"); });
  write_text(go, "");
  first.join();
  second.join();
  EXPECT_EQ(secret_after_doubt({}), "new") << "signed before, refused after the others had asked";
}

// A signature may be refused for another reason.
TEST_F(AwsCredentialsTest, KeysThatAreDoubtedStayWhereTheSourceFails) {
  Renewing source;
  serve_container(source.handler());
  const auto keys = chain();
  const AwsCredentials first = keys->get({});
  source.down = true;
  for (int i = 0; i < 3; i++) {
    keys->doubted(first);
    EXPECT_TRUE(same_keys(keys->get({}), first));
  }
  EXPECT_LT(seen().size(), 10u) << "not asked for each doubt";
}

TEST_F(AwsCredentialsTest, AWaiterHasADeadlineOfItsOwn) {
  std::latch released(1);
  std::atomic<bool> asked = false;
  serve_container([&](const ServedRequest&) {
    asked = true;
    released.wait();
    return reply_with(keys_json("KEYS", std::chrono::hours(1)));
  });
  const auto keys = chain();
  std::jthread fetcher([&] { EXPECT_EQ(keys->get({}).access_key_id, "KEYS"); });
  EXPECT_TRUE(eventually([&] { return asked.load(); }));
  EXPECT_EQ(code_of([&] { keys->get(Context{}.within(std::chrono::milliseconds(50))); }),
            ErrorCode::timed_out);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(code_of([&] {
              keys->get(Context{stop.get_token(), Clock::time_point::max()});
            }),
            ErrorCode::cancelled);
  released.count_down();
  fetcher.join();
  server_.reset();
}

TEST_F(AwsCredentialsTest, ReadsTimes) {
  const auto noon = WallClock::from_time_t(1769860800);  // 2026-01-31T12:00:00Z
  for (const char* text :
       {"2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456Z", "2026-01-31T13:00:00+01:00",
        "2026-01-31T06:30:00-0530", "2026-01-31 12:00:00Z"}) {
    EXPECT_EQ(parse_iso_time(text), noon) << text;
  }
  EXPECT_EQ(parse_iso_time("9999-12-31T23:59:59Z"), WallClock::time_point::max());
  for (const char* text :
       {"", "2026-01-31", "2026-01-31T12:00:00", "2026-13-31T12:00:00Z", "2026-01-31T12:00:00Zx",
        "x026-01-31T12:00:00Z", "2026-01-31T24:00:00Z"}) {
    EXPECT_EQ(parse_iso_time(text), std::nullopt) << text;
  }
}

// Core files -------------------------------------------------------------------------------------

std::string core_of(const TempDir& directory) {
  for (const auto& item : std::filesystem::directory_iterator(directory.path())) {
    if (item.path().filename().string().starts_with("core")) {
      return read_file(item.path(), 1ull << 34);
    }
  }
  return {};
}

// Runs `body` in a child in `directory`, then crashes with the default contents of a core file.
// Returns: whether there is a core file.
bool crash(const TempDir& directory, const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    rlimit limit{};
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    const File filter(::open("/proc/self/coredump_filter", O_WRONLY));
    if (setrlimit(RLIMIT_CORE, &limit) != 0 || chdir(directory.path().c_str()) != 0 ||
        write(filter.fd(), "0x33\n", 5) != 5) {
      _exit(1);
    }
    body();
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) && WCOREDUMP(status);
}

TEST_F(AwsCredentialsTest, SecretsAreNotInCoreFiles) {
  const std::string secret = random_hex(20);  // only in the memory of this process and the child
  const TempDir open_dump, closed_dump;
  const std::string pattern = read_text("/proc/sys/kernel/core_pattern");
  if (!pattern.starts_with("core") || !crash(open_dump, [&] { set_keys("ID", secret); })) {
    GTEST_SKIP() << "core files do not go where a process works: core_pattern is " << pattern;
  }
  EXPECT_NE(core_of(open_dump).find(secret), std::string::npos);  // proves that this test can see
                                                                  // the secret
  std::filesystem::remove_all(open_dump.path());

  EXPECT_TRUE(crash(closed_dump, [&] {
    set_keys("ID", secret);
    if (get().secret_access_key != secret) _exit(1);
  }));
  const std::string core = core_of(closed_dump);
  EXPECT_TRUE(
      core.starts_with("\x7F"
                       "ELF"));
  EXPECT_EQ(core.find(secret), std::string::npos);
}

}  // namespace
}  // namespace weightfs
