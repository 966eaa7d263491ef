#include "fs/hooks/vllm_calls.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kVllmDevHint =
    "start vLLM with VLLM_SERVER_DEV_MODE=1, in a release that has this endpoint";
constexpr std::string_view kVllmPausedHint = "vLLM stays paused; the update is retried";
constexpr std::string_view kVllmCallHint =
    "the update is retried; restart vLLM if that does not help";
constexpr std::string_view kVllmReloadHint =
    "vLLM stays paused; the update is retried. Restart vLLM if that does not help (a "
    "release whose reload_weights takes no weights_path is too old)";

constexpr std::string_view kVllmRpc = "/collective_rpc", kVllmPrefixes = "/reset_prefix_cache";
constexpr std::string_view kVllmExtension = "weightfs.vllm.backend.WorkerExtension";
constexpr std::string_view kVllmBackend = "weightfs";
constexpr auto kVllmDescribeTimeout = std::chrono::seconds(60);  // it runs pip, once

/// null: there is nothing.
Json find_at(const Json& object, const char* pointer) {
  const Json::json_pointer at(pointer);
  return object.contains(at) ? object.at(at) : Json();
}

std::string reason_against(const Json& config) {
  if (find_at(config, "/parallel_config/worker_extension_cls") != kVllmExtension ||
      find_at(config, "/weight_transfer_config/backend") != kVllmBackend) {
    return "vLLM was not started with the worker extension of weightfs";
  }
  if (find_at(config, "/parallel_config/data_parallel_size") != 1) {
    return "vLLM has data-parallel ranks, and shows the state of the first one alone";
  }
  if (!find_at(config, "/parallel_config/world_size").is_number_unsigned()) {
    return "vLLM does not say how many ranks it has";
  }
  return "";
}

VllmEngine engine_of(const Json& config) {
  VllmEngine engine{.reason = reason_against(config)};
  const Json ranks = find_at(config, "/parallel_config/world_size");
  if (ranks.is_number_unsigned()) engine.ranks = ranks.get<std::size_t>();
  const Json process = find_at(config, "/instance_id");
  if (process.is_string()) engine.process = process.get<std::string>();
  engine.caches_prefixes = find_at(config, "/cache_config/enable_prefix_caching") != false ||
                           !find_at(config, "/kv_transfer_config").is_null();
  return engine;
}

bool is_success(const HttpReply& reply) {
  const Json object = EngineHttp::object_of(reply);
  const auto success = object.find("success");
  return reply.ok() && (success == object.end() || *success != false);
}

}  // namespace

void VllmWait::wait(const Context& context, std::string_view what) {
  context.pause(next_, what);
  next_ = std::min(2 * next_, longest_);
}

VllmCalls::VllmCalls(HttpClient& client, const HookOptions& spec, VllmPace pace)
    : http_(client, spec.url, spec.token_file), pace_(pace) {}

std::optional<std::uint64_t> VllmCalls::find_label(const Context& context) const {
  const HttpReply reply = http_.get("/weight_info", context);
  if (reply.status == 404) return std::nullopt;
  http_.check(reply, "/weight_info", "");
  const auto version = find_version(EngineHttp::object_of(reply), "weight_version");
  // An engine that cannot be given a label shows the one that it was started with.
  return has_labels_ ? version : std::nullopt;
}

VllmEngine VllmCalls::describe(const Context& context) const {
  const HttpReply reply =
      http_.get("/server_info?config_format=json", context.within(kVllmDescribeTimeout));
  if (reply.status != 404) http_.check(reply, "/server_info", "");
  return engine_of(find_at(EngineHttp::object_of(reply), "/vllm_config"));
}

void VllmCalls::post(std::string_view path, const Json* body, std::string_view hint,
                     const Context& context) const {
  const HttpReply reply = http_.post(path, body, context);
  http_.check(reply, path, reply.status == 404 ? kVllmDevHint : hint);
}

void VllmCalls::pause(bool clears, const Context& context) const {
  post(clears ? "/pause?mode=keep" : "/pause?mode=keep&clear_cache=false", nullptr, "", context);
}

void VllmCalls::resume(const Context& context) const {
  post("/resume", nullptr, kVllmPausedHint, context);
}

std::vector<Json> VllmCalls::call(std::string_view method, const Json& arguments,
                                  const Context& context) const {
  const Json body{{"method", method}, {"args", arguments}};
  const HttpReply reply = http_.post(kVllmRpc, &body, context);
  http_.check(reply, fmt::format("{} {}", kVllmRpc, method), kVllmCallHint);
  const Json results = find_at(EngineHttp::object_of(reply), "/results");
  if (!results.is_array()) {
    throw Error(ErrorCode::io,
                fmt::format("{} {}: vLLM answers without results of the ranks", kVllmRpc, method));
  }
  return results;
}

std::vector<Json> VllmCalls::reload(const std::filesystem::path& version,
                                    const Context& context) const {
  const Json body{{"method", "reload_weights"},
                  {"kwargs", {{"weights_path", version.string()}, {"is_checkpoint_format", true}}}};
  const HttpReply reply = http_.post(kVllmRpc, &body, context);
  http_.check(reply, kVllmRpc, reply.status == 404 ? kVllmDevHint : kVllmReloadHint);
  const Json results = find_at(EngineHttp::object_of(reply), "/results");
  return results.is_array() ? results.get<std::vector<Json>>() : std::vector<Json>{};
}

HttpReply VllmCalls::reset_prefixes(std::string_view query, const Context& context) const {
  HttpReply reply = http_.post(std::string(kVllmPrefixes) + std::string(query), nullptr, context);
  if (reply.status == 404) http_.check(reply, kVllmPrefixes, kVllmDevHint);
  return reply;
}

/// Transfers to other memory that are under way hold blocks, and end.
void VllmCalls::reset_until_done(std::string_view query, const Context& context) const {
  const auto end = Clock::now() + pace_.patience;
  VllmWait wait(pace_);
  for (;;) {
    const HttpReply reply = reset_prefixes(query, context);
    if (is_success(reply)) return;
    if (Clock::now() >= end) http_.check(reply, kVllmPrefixes, kVllmPausedHint);
    wait.wait(context, "vLLM did not reset its prefix cache");
  }
}

bool VllmCalls::reset_caches(const VllmEngine& engine, bool keeps, const Context& context) const {
  const bool is_whole = engine.reason.empty();
  if (is_whole) {
    post("/reset_mm_cache", nullptr, kVllmPausedHint, context);
    post("/reset_encoder_cache", nullptr, kVllmPausedHint, context);
  }
  if (keeps) {
    if (!engine.caches_prefixes) return true;
    if (is_success(reset_prefixes(is_whole ? "?reset_external=true" : "", context))) return true;
  }
  reset_until_done(is_whole ? "?reset_running_requests=true&reset_external=true"
                            : "?reset_running_requests=true",
                   context);
  return false;
}

void VllmCalls::label(std::uint64_t version, const Context& context) {
  const Json body{{"new_version", std::to_string(version)}};
  const HttpReply reply = http_.post("/update_weight_version", &body, context);
  has_labels_ = reply.status != 404;
  if (has_labels_) http_.check(reply, "/update_weight_version", kVllmPausedHint);
}

}  // namespace weightfs::fs
