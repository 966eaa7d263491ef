#include "store/aws/sigv4.hpp"

#include <algorithm>
#include <ctime>
#include <map>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string lowered_name(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Trims spaces, and folds several into one.
std::string folded(std::string_view value) {
  std::string text;
  bool space = false;
  for (const char c : value) {
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      space = true;
      continue;
    }
    if (space && !text.empty()) text += ' ';
    space = false;
    text += c;
  }
  return text;
}

// The Host header: the port only if it is not the scheme's default.
std::string host_of(std::string_view scheme_and_host) {
  const std::size_t begin = scheme_and_host.find("://") + 3;
  std::string host = lowered_name(scheme_and_host.substr(begin));
  const std::string_view own_port = scheme_and_host.starts_with("http:") ? ":80" : ":443";
  if (host.ends_with(own_port)) host.resize(host.size() - own_port.size());
  return host;
}

std::string amz_time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts)};
}

// Encoded, sorted by name and then by value; "name=" if there is no value.
std::string canonical_query(const HttpTarget& target) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const auto& [name, value] : target.query) {
    items.emplace_back(uri_encode(name, false), uri_encode(value, false));
  }
  std::sort(items.begin(), items.end());
  std::string query;
  for (const auto& [name, value] : items) {
    if (!query.empty()) query += '&';
    query += name + "=" + value;
  }
  return query;
}

bool is_made_here(const std::string& lower_name) {
  return lower_name == "host" || lower_name == "x-amz-date" ||
         lower_name == "x-amz-content-sha256" || lower_name == "x-amz-security-token" ||
         lower_name == "authorization";
}

bool is_signed(const std::string& lower_name) {
  return lower_name != "user-agent" && lower_name != "expect" && lower_name != "connection" &&
         lower_name != "transfer-encoding" && lower_name != "x-amzn-trace-id";
}

struct CanonicalHeaders {
  std::string lines, names;  // "name:value\n" of each; "name;name"
};

CanonicalHeaders canonical_headers(const HttpRequest& request) {
  std::map<std::string, std::string> values;
  for (const HttpHeader& header : request.headers) {
    const std::string name = lowered_name(header.name);
    if (!is_signed(name)) continue;
    const auto [place, is_new] = values.try_emplace(name, folded(header.value));
    if (!is_new) place->second += "," + folded(header.value);
  }
  CanonicalHeaders canonical;
  for (const auto& [name, value] : values) {
    canonical.lines += name + ":" + value + "\n";
    if (!canonical.names.empty()) canonical.names += ';';
    canonical.names += name;
  }
  return canonical;
}

std::string hmac_text(std::string_view key, std::string_view text) {
  return std::string(as_text(hmac_sha256(key, text)));
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

std::string HttpTarget::url() const {
  std::string text = scheme_and_host + uri_encode(path, true);
  if (!query.empty()) text += "?" + canonical_query(*this);
  return text;
}

void Signer::sign(HttpRequest& request, const HttpTarget& target, std::string_view body_sha256_hex,
                  const AwsCredentials& credentials,
                  std::chrono::system_clock::time_point now) const {
  const std::string time = amz_time(now), day = time.substr(0, 8);
  request.url = target.url();
  std::erase_if(request.headers,
                [](const HttpHeader& header) { return is_made_here(lowered_name(header.name)); });
  request.headers.push_back({"Host", host_of(target.scheme_and_host)});
  request.headers.push_back({"x-amz-date", time});
  request.headers.push_back({"x-amz-content-sha256", std::string(body_sha256_hex)});
  if (!credentials.session_token.empty()) {
    request.headers.push_back({"x-amz-security-token", credentials.session_token});
  }

  const CanonicalHeaders headers = canonical_headers(request);
  const std::string canonical = request.method + "\n" + uri_encode(target.path, true) + "\n" +
                                canonical_query(target) + "\n" + headers.lines + "\n" +
                                headers.names + "\n" + std::string(body_sha256_hex);
  const std::string scope = day + "/" + region_ + "/" + service_ + "/aws4_request";
  const std::string to_sign = std::string(kAlgorithm) + "\n" + time + "\n" + scope + "\n" +
                              to_hex(sha256(as_bytes(canonical)));
  const std::string signature =
      to_hex(hmac_sha256(key_of(day, credentials.secret_access_key), to_sign));
  request.headers.push_back({"Authorization", std::string(kAlgorithm) +
                                                  " Credential=" + credentials.access_key_id + "/" +
                                                  scope + ", SignedHeaders=" + headers.names +
                                                  ", Signature=" + signature});
}

std::string Signer::key_of(const std::string& day, const std::string& secret) const {
  const std::scoped_lock lock(mutex_);
  std::string wanted = day + secret;
  if (key_of_ != wanted) {
    key_ = hmac_text(hmac_text(hmac_text(hmac_text("AWS4" + secret, day), region_), service_),
                     "aws4_request");
    key_of_ = std::move(wanted);
  }
  return key_;
}

}  // namespace weightfs
