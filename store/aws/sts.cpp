#include "store/aws/sts.hpp"

#include <pugixml.hpp>

#include "store/aws/answers.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

constexpr int kStsAttempts = 3;

std::string own_sts_endpoint(const std::string& region) {
  return "https://sts." + region +
         (region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com");
}

HttpOptions sts_options(const std::string& ca_bundle, bool plain) {
  HttpOptions options;
  options.ca_bundle = ca_bundle;
  options.ca_variable = "AWS_CA_BUNDLE";
  options.http_allowed = plain;
  options.connections_max = 2;
  return options;
}

void append_field(std::string& form, std::string_view name, std::string_view value) {
  if (value.empty()) return;
  form += (form.empty() ? "" : "&") + std::string(name) + "=" + uri_encode(value, false);
}

std::string form_of(std::string_view action, const RoleRequest& role) {
  std::string form;
  append_field(form, "Action", action);
  append_field(form, "Version", "2011-06-15");
  append_field(form, "RoleArn", role.role_arn);
  append_field(form, "RoleSessionName",
               role.session_name.empty() ? "weightfs-" + random_hex(8) : role.session_name);
  append_field(form, "ExternalId", role.external_id);
  append_field(form, "DurationSeconds", role.duration_seconds);
  return form;
}

// The first element `name` anywhere below `node`, whatever its namespace.
pugi::xml_node find_element(const pugi::xml_node& node, std::string_view name) {
  return node.find_node([&](const pugi::xml_node& one) { return one.name() == name; });
}

AwsCredentials parse_sts_keys(const std::string& text, const RoleRequest& role) {
  const std::string source = "role " + role.role_arn + " of " + role.source;
  pugi::xml_document document;
  const bool is_xml = static_cast<bool>(document.load_buffer(text.data(), text.size()));
  const pugi::xml_node found = find_element(document, "Credentials");
  AwsCredentials keys;
  keys.access_key_id = found.child_value("AccessKeyId");
  keys.secret_access_key = found.child_value("SecretAccessKey");
  keys.session_token = found.child_value("SessionToken");
  keys.source = source;
  if (!is_xml || keys.access_key_id.empty() || keys.secret_access_key.empty() ||
      keys.session_token.empty()) {
    throw Error(ErrorCode::invalid, source + ": the answer of STS has no <Credentials>");
  }
  keys.expires = get_iso_time(found.child_value("Expiration"), source + ": Expiration");
  return keys;
}

struct StsRefusal {
  int status;
  std::string code, message;

  [[nodiscard]] bool is_worth_a_retry() const {
    return status >= 500 || status == 429 || code == "Throttling" ||
           code == "IDPCommunicationError";
  }
  /// What it was asked with has expired, and may be renewed.
  [[nodiscard]] bool is_expired() const { return code.starts_with("ExpiredToken"); }
};

StsRefusal parse_sts_refusal(const HttpReply& reply) {
  pugi::xml_document document;
  document.load_buffer(reply.text.data(), reply.text.size());
  const pugi::xml_node error = find_element(document, "Error");
  return {reply.status, error.child_value("Code"), error.child_value("Message")};
}

[[noreturn]] void throw_refusal(const StsRefusal& refusal, const RoleRequest& role,
                                const std::string& host) {
  std::string said = "status " + std::to_string(refusal.status);
  if (!refusal.code.empty()) said += ", " + refusal.code + ": " + refusal.message;
  const bool may_pass = refusal.is_worth_a_retry() || refusal.is_expired();
  throw Error(may_pass ? ErrorCode::unavailable : ErrorCode::permission,
              role.source + ": " + host + " gives no keys for the role " + role.role_arn + " (" +
                  said + "): check the role's trust policy and the keys that request it");
}

}  // namespace

AwsSts::AwsSts(const std::string& endpoint, std::string region, const std::string& ca_bundle)
    : region_(std::move(region)),
      endpoint_(parse_service_url(endpoint.empty() ? own_sts_endpoint(region_) : endpoint,
                                  "AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL or endpoint_url")),
      signer_(region_, "sts"),
      client_(sts_options(ca_bundle, endpoint_.is_plain())) {}

AwsCredentials AwsSts::assume_role(const RoleRequest& role, const AwsCredentials& with,
                                   const Context& context) {
  return ask(form_of("AssumeRole", role), &with, role, context);
}

AwsCredentials AwsSts::assume_role_with_token(const RoleRequest& role, const std::string& token,
                                              const Context& context) {
  std::string form = form_of("AssumeRoleWithWebIdentity", role);
  append_field(form, "WebIdentityToken", token);
  return ask(form, nullptr, role, context);
}

AwsCredentials AwsSts::ask(const std::string& form, const AwsCredentials* with,
                           const RoleRequest& role, const Context& context) {
  const TextSource body(form);
  const HttpTarget target{endpoint_.scheme_and_host, endpoint_.path + "/", {}};
  for (int attempt = 1;; attempt++) {
    HttpRequest request;
    request.method = "POST";
    request.url = target.url();
    request.headers = {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
    request.body = &body;
    request.body_bytes = form.size();
    if (with != nullptr) {
      signer_.sign(request, target, to_hex(sha256(as_bytes(form))), *with,
                   std::chrono::system_clock::now());
    }
    try {
      const HttpReply reply = client_.send(request, context);
      if (reply.ok()) return parse_sts_keys(reply.text, role);
      const StsRefusal refusal = parse_sts_refusal(reply);
      if (attempt == kStsAttempts || !refusal.is_worth_a_retry()) {
        throw_refusal(refusal, role, endpoint_.scheme_and_host);
      }
    } catch (const TransportError& error) {
      if (attempt == kStsAttempts || error.code() != ErrorCode::unavailable) {
        throw Error(error.within(role.source + ": no keys for the role " + role.role_arn));
      }
    }
    context.pause(std::chrono::milliseconds(200) * attempt, "asking STS again");
  }
}

}  // namespace weightfs
