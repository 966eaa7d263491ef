#include "store/aws/endpoints.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "store/aws/answers.hpp"
#include "store/aws/config.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/log.hpp"
#include "store/http/service_url.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kContainerHost = "http://169.254.170.2";
constexpr std::string_view kContainerSource = "container (AWS_CONTAINER_CREDENTIALS_*)";
constexpr std::string_view kInstanceSource = "instance metadata";
constexpr std::string_view kRolesPath = "/latest/meta-data/iam/security-credentials/";
constexpr unsigned kContainerAttempts = 3;
constexpr std::uint64_t kAgentTokenBytesMax = 1u << 20;

// Agents are on this host or its link: a proxy cannot reach them, but would see their tokens.
HttpOptions agent_options(std::chrono::milliseconds timeout) {
  HttpOptions options;
  options.direct = true;
  options.connect_timeout = options.stall_timeout = timeout;
  options.http_allowed = true;
  options.connections_max = 1;
  return options;
}

// Other host names could resolve to any address, so only "localhost" is allowed besides numbers.
bool is_agent_host(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127) return true;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6)) return true;
  return host == "localhost" || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "fd00:ec2::23";
}

void check_agent_url(const std::string& url) {
  const std::size_t host = url.find("://");
  const std::size_t end = host == std::string::npos ? host : url.find_first_of("/?#", host + 3);
  const ServiceUrl parts =
      parse_service_url(url.substr(0, end), "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!parts.is_plain() || is_agent_host(parts.host)) return;
  throw Error(ErrorCode::invalid, "AWS_CONTAINER_CREDENTIALS_FULL_URI: keys are not taken from " +
                                      parts.scheme_and_host +
                                      ": expected https, or http to this host, 169.254.170.2, "
                                      "169.254.170.23 or fd00:ec2::23");
}

std::string agent_token(const Environment& environment) {
  std::string token;
  if (const auto path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    token = read_file(*path, kAgentTokenBytesMax);
  } else {
    token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  }
  while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
  if (token.find_first_of("\r\n") != std::string::npos) {
    throw Error(ErrorCode::invalid, "AWS_CONTAINER_AUTHORIZATION_TOKEN[_FILE]: expected one line");
  }
  return token;
}

bool is_worth_asking_again(const HttpReply& reply) {
  return reply.status >= 500 || reply.status == 429;
}

// Throws Error: unavailable, with what a 2xx says instead: an agent that cannot get keys now
// answers so.
AwsCredentials keys_of(const HttpReply& reply, const std::string& source) {
  try {
    return parse_json_keys(reply.text, "Token", source);
  } catch (const Error& error) {
    const std::string said = find_json_refusal(reply.text);
    throw Error(ErrorCode::unavailable, said.empty() ? error.what() : source + ": " + said);
  }
}

bool is_worth_asking_for_keys_again(const HttpReply& reply) {
  if (!reply.ok()) return is_worth_asking_again(reply);
  try {
    keys_of(reply, "");
    return false;
  } catch (const Error&) {
    return true;
  }
}

// Sends a request up to `attempts` times, while `is_worth_it` says so of the reply.
HttpReply ask_agent(HttpClient& client, const HttpRequest& request, unsigned attempts,
                    bool (*is_worth_it)(const HttpReply&), const Context& context) {
  for (unsigned attempt = 1;; attempt++) {
    try {
      HttpReply reply = client.send(request, context);
      if (attempt >= attempts || !is_worth_it(reply)) return reply;
    } catch (const TransportError& error) {
      if (attempt >= attempts || error.code() != ErrorCode::unavailable) throw;
    }
    context.pause(std::chrono::milliseconds(100) * attempt, "asking for AWS keys again");
  }
}

unsigned parse_count(const std::string& text, std::string_view what) {
  unsigned count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count > 0 && count <= 60) {
    return count;
  }
  throw Error(ErrorCode::invalid,
              std::string(what) + " is '" + text + "': expected a number from 1 to 60");
}

// AWS could not renew the keys but still accepts them: "static stability" in the SDKs.
void extend_expired(AwsCredentials& keys) {
  const auto now = std::chrono::system_clock::now();
  if (keys.expires > now) return;
  log_warning("instance metadata returned expired AWS keys; they are used for now");
  keys.expires = now + std::chrono::minutes(10);
}

}  // namespace

std::optional<AwsCredentials> AwsContainer::find(const Context& context) {
  const auto relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const auto full = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative && !full) return std::nullopt;
  HttpRequest request;
  request.url = relative ? std::string(kContainerHost) + *relative : *full;
  if (relative && !relative->starts_with('/')) {
    throw Error(ErrorCode::invalid,
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI: expected a path that begins with '/'");
  }
  check_agent_url(request.url);
  request.headers = {{"Accept", "application/json"}};
  const std::string token = agent_token(environment_);
  if (!token.empty()) request.headers.push_back({"Authorization", token});

  const HttpReply reply = ask(request, context);
  if (reply.ok()) return keys_of(reply, std::string(kContainerSource));
  throw Error(is_worth_asking_again(reply) ? ErrorCode::unavailable : ErrorCode::permission,
              std::string(kContainerSource) + ": the agent returned no keys: status " +
                  std::to_string(reply.status) +
                  ": check AWS_CONTAINER_AUTHORIZATION_TOKEN[_FILE] and the task's or pod's role");
}

HttpReply AwsContainer::ask(const HttpRequest& request, const Context& context) {
  if (!client_) client_.emplace(agent_options(std::chrono::seconds(2)));
  try {
    return ask_agent(*client_, request, kContainerAttempts, is_worth_asking_for_keys_again,
                     context);
  } catch (const TransportError& error) {
    throw Error(error.within(kContainerSource));
  }
}

std::string AwsInstance::setting(std::string_view variable, std::string_view name,
                                 std::string_view otherwise) const {
  if (const auto value = environment_(variable)) return *value;
  return profile_.find(name).value_or(std::string(otherwise));
}

std::string AwsInstance::endpoint() const {
  const std::string mode = setting("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
                                   "ec2_metadata_service_endpoint_mode", "IPv4");
  const bool is_v6 = mode.size() == 4 && mode.ends_with('6');
  if (!is_v6 && !(mode.size() == 4 && mode.ends_with('4'))) {
    throw Error(ErrorCode::invalid,
                "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE is '" + mode + "': expected IPv4 or IPv6");
  }
  const std::string url =
      setting("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint",
              is_v6 ? "http://[fd00:ec2::254]" : "http://169.254.169.254");
  const ServiceUrl parts = parse_service_url(url, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  return parts.scheme_and_host + parts.path;
}

std::optional<AwsCredentials> AwsInstance::find(const Context& context, NoInstanceKeys& none) {
  if (is_on(environment_("AWS_EC2_METADATA_DISABLED"))) {
    none.why = "disabled by AWS_EC2_METADATA_DISABLED";
    return std::nullopt;
  }
  const std::string base = endpoint();
  try {
    auto keys = ask_for_keys(base, context, none);
    gave_keys_ = gave_keys_ || keys;
    if (keys || !gave_keys_) return keys;
  } catch (const TransportError& error) {
    if (gave_keys_) throw Error(error.within(kInstanceSource));
    // An instance whose network is not up looks like a host that is none.
    none = {"no answer from " + base, error.code() == ErrorCode::unavailable};
    return std::nullopt;
  }
  throw Error(ErrorCode::unavailable, std::string(kInstanceSource) + ": " + none.why);
}

// First a session (IMDSv2): its token needs a PUT, which a tricked proxy does not send.
std::optional<AwsCredentials> AwsInstance::ask_for_keys(const std::string& base,
                                                        const Context& context,
                                                        NoInstanceKeys& none) {
  const auto refused = [&](const std::string& what, const HttpReply& reply) {
    none = {what + ", status " + std::to_string(reply.status), is_worth_asking_again(reply)};
    return std::nullopt;
  };
  HttpRequest session;
  session.method = "PUT";
  session.url = base + "/latest/api/token";
  session.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  const HttpReply token = ask(session, is_worth_asking_again, context);
  if (!token.ok()) return refused("no IMDSv2 session", token);
  HttpRequest request;
  request.url = base + std::string(kRolesPath);
  request.headers = {{"x-aws-ec2-metadata-token", token.text}};
  const HttpReply roles = ask(request, is_worth_asking_again, context);
  const std::string role = roles.text.substr(0, roles.text.find_first_of("\r\n"));
  if (is_worth_asking_again(roles)) return refused("no answer about the instance's role", roles);
  if (!roles.ok() || role.empty()) return refused("the instance has no role", roles);
  request.url += uri_encode(role, false);
  const HttpReply reply = ask(request, is_worth_asking_for_keys_again, context);
  const std::string no_keys = "no keys for the role " + role;
  if (!reply.ok()) return refused(no_keys, reply);
  try {
    AwsCredentials keys = keys_of(reply, no_keys);
    keys.source = std::string(kInstanceSource) + " (role " + role + ")";
    extend_expired(keys);
    return keys;
  } catch (const Error& error) {
    none = {error.what(), true};
    return std::nullopt;
  }
}

HttpReply AwsInstance::ask(const HttpRequest& request, bool (*is_worth_it)(const HttpReply&),
                           const Context& context) {
  if (!client_) {
    const unsigned seconds =
        parse_count(setting("AWS_METADATA_SERVICE_TIMEOUT", "metadata_service_timeout", "1"),
                    "AWS_METADATA_SERVICE_TIMEOUT");
    attempts_ = parse_count(
        setting("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "metadata_service_num_attempts", "2"),
        "AWS_METADATA_SERVICE_NUM_ATTEMPTS");
    client_.emplace(agent_options(std::chrono::seconds(seconds)));
  }
  return ask_agent(*client_, request, attempts_, is_worth_it, context);
}

}  // namespace weightfs
