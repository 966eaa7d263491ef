#include "store/hub/hub_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <mutex>
#include <utility>

#include "store/aws/sigv4.hpp"
#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/http/reply_checks.hpp"

namespace weightfs {
namespace {

constexpr unsigned kHubParallelRequests = 16;
constexpr std::string_view kHubUserAgent = "weightfs/" WEIGHTFS_VERSION;

HttpOptions hub_http_options(const HubSettings& settings) {
  HttpOptions options;
  options.ca_bundle = settings.ca_bundle;
  options.ca_variable = "SSL_CERT_FILE or REQUESTS_CA_BUNDLE";
  options.connections_max = RetryLoop::kRequestsMax;
  options.http_allowed = settings.endpoint.starts_with("http://");
  return options;
}

/// "https://host:port" of a URL, in lower case: the host decides who sees the token.
std::string origin_of(std::string_view url) {
  const std::size_t host = url.find("://");
  if (host == url.npos) return "";
  std::string origin(url.substr(0, url.find_first_of("/?#", host + 3)));
  std::transform(origin.begin(), origin.end(), origin.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return origin;
}

/// Whether the place that the Hub redirected to has expired; 416 concerns only the range.
bool is_hub_link_stale(const HttpReply& reply) { return !reply.ok() && reply.status != 416; }

bool is_redirect_away(const HttpReply& reply) { return reply.status >= 300 && reply.status < 400; }

std::optional<std::uint64_t> number_of(std::optional<std::string_view> text) {
  std::uint64_t number = 0;
  if (!text || text->empty()) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return number;
}

/// An ETag that is a SHA-256: "x" or W/"x"; nullopt: it is another.
std::optional<Sha256> sha256_of_etag(std::optional<std::string_view> etag) {
  if (!etag) return std::nullopt;
  if (etag->starts_with("W/")) etag->remove_prefix(2);
  if (etag->size() >= 2 && etag->front() == '"' && etag->back() == '"') {
    *etag = etag->substr(1, etag->size() - 2);
  }
  Sha256 hash{};
  if (!from_hex(*etag, hash)) return std::nullopt;
  return hash;
}

/// What the Hub calls the reason, on one line.
std::string reason_of(const HttpReply& reply) {
  constexpr std::size_t kMost = 200;
  std::string reason(reply.find("X-Error-Message").value_or("").substr(0, kMost));
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');
  return reason.empty() ? "" : fmt::format(" ({})", reason);
}

Error absent(const HttpReply& reply) {
  const std::string_view code = reply.find("X-Error-Code").value_or("");
  std::string_view what = "there is no such file: it, its commit or the whole model was removed";
  if (code == "EntryNotFound") what = "that commit has no such file";
  if (code == "RevisionNotFound") what = "there is no such commit: it was removed, or never was";
  if (code == "RepoNotFound") what = "there is no such model: it was removed or renamed";
  return {ErrorCode::not_found, fmt::format("{}: {}{}", reply.status, what, reason_of(reply))};
}

Error forbidden(const HttpReply& reply, const HubToken& token) {
  const bool is_gated = reply.find("X-Error-Code") == "GatedRepo";
  const std::string whose =
      token.token.empty()
          ? fmt::format(
                "no token was sent (none found: {}); set HF_TOKEN, or log in with: hf auth "
                "login",
                token.source)
          : fmt::format("the token of {} may not read it", token.source);
  return {ErrorCode::permission,
          fmt::format("{}: {}{}{}", reply.status, whose,
                      is_gated ? "; the model is gated: ask for access on its page" : "",
                      reason_of(reply))};
}

Error error_of(const HttpReply& reply, bool is_transient, const HubToken& token) {
  if (reply.status == 404 || reply.status == 410) return absent(reply);
  if (reply.status == 401 || reply.status == 403) return forbidden(reply, token);
  return {is_transient ? ErrorCode::unavailable : ErrorCode::invalid,
          fmt::format("the Hub answers {}{}", reply.status, reason_of(reply))};
}

}  // namespace

/// What one call has learned from its attempts.
struct HubReader::Try {
  HubToken token;
  std::optional<HttpReply> answer;
  bool renewed_token = false;
};

HubReader::HubReader(HubSettings settings, Environment environment)
    : settings_(std::move(settings)),
      environment_(std::move(environment)),
      retries_(std::max(1u, settings_.attempts_max)),
      redirects_(settings_.endpoint.starts_with("http://")),
      token_(find_hub_token(environment_)),
      http_(hub_http_options(settings_)) {}

std::size_t HubReader::get(std::string_view key, std::uint64_t offset_bytes,
                           std::span<std::byte> into, const Context& context) {
  check_key(key);
  if (into.empty()) return 0;
  const Call call{.key = key,
                  .headers = {{"Range", fmt::format("bytes={}-{}", offset_bytes,
                                                    offset_bytes + into.size() - 1)}},
                  .into = into,
                  .problem = [&](const HttpReply& reply) {
                    return range_problem(reply, offset_bytes, into.size());
                  }};
  const HttpReply reply = send(call, context);
  if (reply.status == 416) return 0;
  fetched_bytes_ += reply.received_bytes;
  return reply.received_bytes;
}

HubFile HubReader::describe(std::string_view key, const Context& context) {
  check_key(key);
  const Call call{.key = key, .method = "HEAD", .follow = false};
  const HttpReply reply = send(call, context);
  HubFile file{number_of(reply.find("X-Linked-Size")), sha256_of_etag(reply.find("X-Linked-Etag"))};
  if (!file.size_bytes && reply.ok()) file.size_bytes = number_of(reply.find("Content-Length"));
  return file;
}

unsigned HubReader::parallel_requests() const noexcept { return kHubParallelRequests; }

std::string_view HubReader::remedy() const noexcept {
  return "the Hub does not serve what was published; publish a version with --snapshot, whose "
         "bytes "
         "lie in the bucket";
}

HttpReply HubReader::send(const Call& call, const Context& context) {
  Try state;
  state.token = token();
  retries_.run(
      about(call), doing(call),
      [&](Attempts& attempts) {
        return take(call, state, attempts, exchange(call, state.token, context));
      },
      context);
  return std::move(*state.answer);
}

HubReader::Outcome HubReader::take(const Call& call, Try& state, Attempts& attempts,
                                   HttpReply reply) {
  if (!reply.ok() && reply.status != 416 && (call.follow || !is_redirect_away(reply))) {
    return judge(call, state, attempts, reply);
  }
  const std::string problem = call.problem ? call.problem(reply) : "";
  if (!problem.empty()) {
    attempts.cause = Error(ErrorCode::unavailable, problem).within(about(call));
    return Outcome::again;
  }
  state.answer = std::move(reply);
  return Outcome::answered;
}

HubReader::Outcome HubReader::judge(const Call& call, Try& state, Attempts& attempts,
                                    const HttpReply& reply) {
  const bool is_transient = reply.status == 408 || reply.status == 429 || reply.status >= 500;
  attempts.throttled = reply.status == 429 || reply.status == 503;
  attempts.retry_after = find_retry_after(reply);
  attempts.cause = error_of(reply, is_transient, state.token).within(about(call));
  if (is_transient) return Outcome::again;
  if (attempts.cause->code() != ErrorCode::permission || state.renewed_token) {
    return Outcome::refused;
  }
  state.renewed_token = true;
  HubToken fresh = look_up_token();
  if (fresh.token == state.token.token) return Outcome::refused;
  state.token = std::move(fresh);
  return Outcome::again_at_once;
}

/// Sends one request and follows its redirects, as far as the call wants it.
HttpReply HubReader::exchange(const Call& call, const HubToken& token, const Context& context) {
  if (call.follow) {
    if (auto reply = ask_again(call, context)) return std::move(*reply);
  }
  std::string url = settings_.endpoint + "/" + uri_encode(call.key, true);
  for (unsigned hops = 0;; hops++) {
    HttpReply reply = request(call, url, token, context);
    const auto next = redirects_.next(reply, url);
    if (!next || (!call.follow && !is_ours(*next))) {
      if (is_ours(url)) return reply;
      if (is_hub_link_stale(reply)) {
        // Another host's error about the file is not an answer of the Hub.
        throw TransportError(
            ErrorCode::unavailable, TransportError::Kind::other,
            fmt::format("the host that the Hub redirects to answers {}", reply.status));
      }
      redirects_.keep(call.key, url);
      return reply;
    }
    if (hops == kRedirectsMax) {
      throw TransportError(ErrorCode::unavailable, TransportError::Kind::other,
                           "the Hub redirects too often");
    }
    url = *next;
  }
}

/// Asks where an earlier request for the file was redirected to; nullopt: that is over.
std::optional<HttpReply> HubReader::ask_again(const Call& call, const Context& context) {
  const auto url = redirects_.find(call.key);
  if (!url) return std::nullopt;
  try {
    HttpReply reply = request(call, *url, {}, context);
    if (!is_hub_link_stale(reply)) return reply;
  } catch (const TransportError& error) {
    log_debug(fmt::format("a host that the Hub redirected to failed: {}", error.what()));
  }
  redirects_.forget(call.key);
  return std::nullopt;
}

HttpReply HubReader::request(const Call& call, const std::string& url, const HubToken& token,
                             const Context& context) {
  HttpRequest request{
      .method = call.method, .url = url, .headers = call.headers, .into = call.into};
  request.headers.push_back({"User-Agent", std::string(kHubUserAgent)});
  request.headers.push_back({"Accept-Encoding", "identity"});  // sizes are those of the file
  if (!token.token.empty() && is_ours(url)) {
    request.headers.push_back({"Authorization", "Bearer " + token.token});
  }
  return http_.send(request, context);
}

bool HubReader::is_ours(std::string_view url) const {
  return origin_of(url) == origin_of(settings_.endpoint);
}

HubToken HubReader::token() const {
  const std::lock_guard lock(mutex_);
  return token_;
}

HubToken HubReader::look_up_token() {
  HubToken fresh = find_hub_token(environment_);
  const std::lock_guard lock(mutex_);
  token_ = fresh;
  return fresh;
}

std::string HubReader::about(const Call& call) const {
  return fmt::format("cannot read {}/{}", settings_.endpoint, call.key);
}

std::string HubReader::doing(const Call& call) const {
  return fmt::format("reading {}/{}", settings_.endpoint, call.key);
}

}  // namespace weightfs
