// The part of the bucket doctor that is about S3: settings, keys, connection, clock.

#include "fs/doctor/service.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "store/aws/credentials.hpp"
#include "store/base/error.hpp"
#include "store/http/client.hpp"
#include "store/s3/address.hpp"
#include "store/s3/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kSkewNoted{60};
constexpr std::chrono::seconds kSkewMax{15 * 60};  // S3 services refuse a larger skew

using State = Finding::State;
using std::chrono::system_clock;

constexpr auto kServiceTime = std::chrono::seconds(20);

/// As messages may show it, without the secret.
std::string key_text(const AwsCredentials& keys) {
  const std::string& id = keys.access_key_id;
  std::string text = fmt::format(
      "key ...{} from {}", id.substr(id.size() - std::min<std::size_t>(id.size(), 4)), keys.source);
  if (keys.expires == system_clock::time_point::max()) return text;
  const auto left =
      std::chrono::duration_cast<std::chrono::minutes>(keys.expires - system_clock::now());
  return text + fmt::format(", valid for {} min more; renewed automatically", left.count());
}

Finding credentials_finding(const S3Settings& settings, const Context& context) {
  if (!settings.sign) return {"credentials", State::note, "none (--no-sign-request)"};
  try {
    AwsCredentialChain chain(settings.identity(), process_environment());
    return {"credentials", State::good, key_text(chain.get(context))};
  } catch (const Error& error) {
    if (context.stop.stop_requested()) throw;
    return {"credentials", State::bad, error.what()};
  }
}

/// Sends a request without a signature: any reply proves the connection and shows the clock.
bool ask_endpoint(const S3Address& address, const S3Settings& settings, const Context& context,
                  std::vector<Finding>& findings) {
  HttpRequest request;
  request.method = "HEAD";
  request.url = address.scheme_and_host + "/";
  HttpReply reply;
  try {
    HttpClient client({.ca_bundle = settings.ca_bundle, .http_allowed = settings.http_allowed});
    reply = client.send(request, context);
  } catch (const Error& error) {
    if (context.stop.stop_requested()) throw;
    findings.push_back({"reach", State::bad,
                        fmt::format("{}; check --endpoint-url, the network and the proxy "
                                    "(HTTPS_PROXY, NO_PROXY)",
                                    error.what())});
    return false;
  }
  findings.push_back({"reach", State::good, fmt::format("answers ({})", reply.status)});
  if (const auto date = read_refusal(reply).date) {
    findings.push_back(clock_finding(
        std::chrono::duration_cast<std::chrono::seconds>(system_clock::now() - *date)));
  }
  return true;
}

}  // namespace

bool look_at_service(const std::string& canonical_url, const BucketOptions& options,
                     const Context& context, std::vector<Finding>& findings) {
  S3Settings settings;
  S3Address address;
  try {
    settings = find_s3_settings(options, process_environment());
    address = s3_address(canonical_url, settings);
  } catch (const Error& error) {
    findings.push_back({"settings", State::bad, error.what()});
    return false;
  }
  const bool in_path = address.base_path.find(address.bucket) != std::string::npos;
  findings.push_back(
      {"endpoint", State::good,
       fmt::format(
           "{}{}, the bucket in the {}", address.scheme_and_host,
           settings.endpoint.empty() && !address.is_hf ? " (AWS's endpoint of the region)" : "",
           in_path ? "path" : "host name")});
  findings.push_back({"region", State::good, address.is_hf ? "us-east-1" : settings.region});
  const Context soon = context.within(kServiceTime);
  Finding credentials = credentials_finding(settings, soon);
  const bool has_keys = credentials.state != State::bad;
  findings.push_back(std::move(credentials));
  return ask_endpoint(address, settings, soon, findings) && has_keys;
}

Finding clock_finding(std::chrono::seconds ahead) {
  const auto off = std::chrono::seconds(std::abs(ahead.count()));
  if (off < std::chrono::seconds(2)) return {"clock", State::good, "the same as the service's"};
  const std::string text =
      fmt::format("{} s {} the service's", off.count(), ahead.count() > 0 ? "ahead of" : "behind");
  if (off < kSkewNoted) return {"clock", State::good, text};
  if (off < kSkewMax) {
    return {
        "clock", State::note,
        text + ": times in `log` are wrong, and at 15 min requests are refused; run timedatectl"};
  }
  return {
      "clock", State::note,
      text + ": weightfs signs with the service's time instead, other tools fail; run timedatectl"};
}

}  // namespace weightfs::fs
