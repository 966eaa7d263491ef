#include "fs/hooks/engine_http.hpp"

#include <fmt/format.h>

#include <charconv>

#include "store/format/manifest.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kEngineReplyBytesMax = 1u << 20, kReplyShownMax = 300,
                      kTokenBytesMax = 16u << 10;

/// The reply as one line, truncated.
std::string shown_reply(const HttpReply& reply) {
  std::string text = reply.text.substr(0, kReplyShownMax);
  for (char& c : text) {
    if (c >= 0 && c < ' ') c = ' ';
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string read_token(const std::filesystem::path& file) {
  std::string token = read_file(file, kTokenBytesMax);
  while (!token.empty() && token.back() <= ' ') token.pop_back();
  for (const char c : token) {
    if (c >= 0 && c < ' ') {
      throw Error(ErrorCode::invalid,
                  fmt::format("{} is not a token file: expected one line", file.string()));
    }
  }
  return token;
}

}  // namespace

HttpOptions engine_http_options() {
  return {.ca_bundle = {},
          .connect_timeout = std::chrono::seconds(5),
          .stall_timeout = std::chrono::hours(24),
          .http_allowed = true};
}

EngineHttp::EngineHttp(HttpClient& client, std::string url, std::filesystem::path token_file)
    : client_(client), url_(std::move(url)), token_file_(std::move(token_file)) {}

HttpReply EngineHttp::send(std::string_view path, const Json* body, const char* method,
                           const Context& context) const {
  const std::string text =
      body == nullptr ? "" : body->dump(-1, ' ', false, Json::error_handler_t::replace);
  const TextSource source(text);
  HttpRequest request;
  request.method = method;
  request.url = url_ + std::string(path);
  request.text_bytes_max = kEngineReplyBytesMax;
  request.headers.push_back({"Accept", "application/json"});
  if (!token_file_.empty()) {
    request.headers.push_back({"Authorization", "Bearer " + read_token(token_file_)});
  }
  if (body != nullptr) {
    request.headers.push_back({"Content-Type", "application/json"});
    request.body = &source;
    request.body_bytes = text.size();
  }
  return client_.send(request, context);
}

HttpReply EngineHttp::get(std::string_view path, const Context& context) const {
  return send(path, nullptr, "GET", context);
}

HttpReply EngineHttp::post(std::string_view path, const Json* body, const Context& context) const {
  return send(path, body, "POST", context);
}

Json EngineHttp::object_of(const HttpReply& reply) {
  Json json = Json::parse(reply.text, nullptr, false);
  return json.is_object() ? json : Json::object();
}

void EngineHttp::check(const HttpReply& reply, std::string_view path, std::string_view hint) const {
  const Json object = object_of(reply);
  const auto success = object.find("success");
  if (reply.ok() && (success == object.end() || *success != false)) return;
  const std::string url = url_.substr(0, url_.find_first_of("?#"));
  std::string text = fmt::format("{}{} answers {}", url, path, reply.status);
  if (const std::string said = shown_reply(reply); !said.empty()) text += ": " + said;
  if (!hint.empty()) text += fmt::format("; {}", hint);
  throw EngineError(reply.status, text);
}

std::uint64_t version_of_text(std::string_view text) noexcept {
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && !text.starts_with('0') && version <= kVersionMax ? version : 0;
}

std::optional<std::uint64_t> find_version(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return std::nullopt;
  if (field->is_string()) return version_of_text(field->get_ref<const std::string&>());
  if (field->is_number_unsigned() && field->get<std::uint64_t>() <= kVersionMax) {
    return field->get<std::uint64_t>();
  }
  return 0;
}

}  // namespace weightfs::fs
