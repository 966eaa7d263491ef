#include "tests/support/fake_hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs::test {
namespace {

std::string header_or_empty(const ServedRequest& request, const std::string& name) {
  const auto header = request.headers.find(name);
  return header == request.headers.end() ? "" : header->second;
}

ServedReply hub_refusal(int status, std::string code) {
  return {.status = status,
          .headers = {{"X-Error-Code", std::move(code)}, {"X-Error-Message", "so says the fake"}}};
}

}  // namespace

FakeHub::FakeHub()
    : links_(std::make_unique<HttpServer>(
          [this](const ServedRequest& request) { return answer_link(request); })),
      hub_(std::make_unique<HttpServer>(
          [this](const ServedRequest& request) { return answer(request); })) {}

FakeHub::~FakeHub() = default;

std::string FakeHub::url() const { return hub_->url(); }

Environment FakeHub::environment(std::map<std::string, std::string, std::less<>> more) const {
  more.emplace("HF_ENDPOINT", url());
  more.emplace("AWS_MAX_ATTEMPTS", "3");
  return [all = std::move(more)](std::string_view name) -> std::optional<std::string> {
    const auto value = all.find(name);
    return value == all.end() ? std::nullopt : std::optional(value->second);
  };
}

void FakeHub::put(const std::string& key, std::string bytes, bool is_large) {
  const std::lock_guard lock(mutex_);
  objects_.insert_or_assign("/" + key, Object{std::move(bytes), is_large});
}

void FakeHub::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  objects_.erase("/" + key);
}

void FakeHub::before(Before before) {
  const std::lock_guard lock(mutex_);
  before_ = std::move(before);
}

void FakeHub::before_link(Before before) {
  const std::lock_guard lock(mutex_);
  before_link_ = std::move(before);
}

void FakeHub::set_token(std::string token) {
  const std::lock_guard lock(mutex_);
  token_ = std::move(token);
}

std::vector<std::string> FakeHub::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::size_t FakeHub::count(std::string_view part_of_request) const {
  const std::vector<std::string> all = requests();
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const auto& request) {
    return request.find(part_of_request) != std::string::npos;
  }));
}

std::optional<ServedReply> FakeHub::begin(const std::string& verb, const ServedRequest& request,
                                          const Before FakeHub::*before) {
  Before fault;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(verb + " " + request.path());
    fault = this->*before;
  }
  return fault ? fault(request) : std::nullopt;
}

std::optional<FakeHub::Object> FakeHub::find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto object = objects_.find(path);
  return object == objects_.end() ? std::nullopt : std::optional(object->second);
}

ServedReply FakeHub::answer(const ServedRequest& request) {
  if (auto fault = begin(request.method, request, &FakeHub::before_)) return std::move(*fault);
  {
    const std::lock_guard lock(mutex_);
    const bool is_known = header_or_empty(request, "authorization") == "Bearer " + token_;
    if (!token_.empty() && !is_known) return hub_refusal(401, "GatedRepo");
  }
  const auto object = find(request.path());
  if (!object) return hub_refusal(404, "EntryNotFound");
  if (!object->is_large) {
    ServedReply reply = range_of(request, object->bytes);
    reply.headers.push_back({"ETag", "\"0123456789012345678901234567890123456789\""});
    return reply;
  }
  return {.status = 302,
          .headers = {
              {"Location",
               fmt::format("{}{}?signature={}", links_->url(), request.target, signature_.load())},
              {"X-Linked-Size", std::to_string(object->bytes.size())},
              {"X-Linked-Etag", fmt::format("\"{}\"", to_hex(sha256(as_bytes(object->bytes))))}}};
}

ServedReply FakeHub::answer_link(const ServedRequest& request) {
  if (!header_or_empty(request, "authorization").empty()) {
    leaks_++;
    return {.status = 400};
  }
  if (auto fault = begin("LINK", request, &FakeHub::before_link_)) return std::move(*fault);
  const auto query = request.query();
  const auto signature = query.find("signature");
  if (signature == query.end() || signature->second != std::to_string(signature_)) {
    return {.status = 403};
  }
  const auto object = find(request.path());
  return object ? range_of(request, object->bytes) : ServedReply{.status = 404};
}

ServedReply FakeHub::range_of(const ServedRequest& request, const std::string& bytes) const {
  unsigned long long first = 0, last = 0;
  const std::string range = header_or_empty(request, "range");
  const bool has_range = std::sscanf(range.c_str(), "bytes=%llu-%llu", &first, &last) == 2;
  if (request.method == "HEAD") {
    return {.headers = {{"Content-Length", std::to_string(bytes.size())}}};
  }
  if (!has_range || ignores_range) return {.body = bytes};
  if (first >= bytes.size()) {
    return {.status = 416, .headers = {{"Content-Range", fmt::format("bytes */{}", bytes.size())}}};
  }
  const std::string part = bytes.substr(first, last + 1 - first);
  return {.status = 206,
          .headers = {{"Content-Range", fmt::format("bytes {}-{}/{}", first,
                                                    first + part.size() - 1, bytes.size())}},
          .body = part};
}

}  // namespace weightfs::test
