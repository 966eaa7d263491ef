#include "fs/hooks/vllm.hpp"

#include <fmt/format.h>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kVllmDevHint =
    "start vLLM with VLLM_SERVER_DEV_MODE=1, in a release that has this endpoint";
constexpr std::string_view kVllmPausedHint = "vLLM stays paused; the update is retried";
constexpr std::string_view kVllmReloadHint =
    "vLLM stays paused; the update is retried. Restart vLLM if that does not help (a "
    "release whose reload_weights takes no weights_path is too old)";

}  // namespace

VllmHook::VllmHook(HttpClient& client, const HookOptions& spec)
    : http_(client, spec.url, spec.token_file), timeout_(spec.timeout) {}

std::optional<std::uint64_t> VllmHook::find_reported(const Context& context) {
  const HttpReply reply = http_.get("/weight_info", context);
  if (reply.status == 404) return std::nullopt;
  http_.check(reply, "/weight_info", "");
  const auto version = find_version(EngineHttp::object_of(reply), "weight_version");
  // An engine that cannot be given a label shows the one that it was started with.
  return has_labels_ ? version : std::nullopt;
}

void VllmHook::step(std::string_view path, const Json* body, std::string_view hint,
                    const Context& context) const {
  const HttpReply reply = http_.post(path, body, context);
  http_.check(reply, path, reply.status == 404 ? kVllmDevHint : hint);
}

void VllmHook::label(const HookTarget& target, const Context& context) {
  const Json body{{"new_version", std::to_string(target.version)}};
  const HttpReply reply = http_.post("/update_weight_version", &body, context);
  has_labels_ = reply.status != 404;
  if (has_labels_) http_.check(reply, "/update_weight_version", kVllmPausedHint);
}

void VllmHook::tell(const HookTarget& target, const Context& context) {
  step("/pause?mode=keep", nullptr, "", context);
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(timeout_).count();
  const Json reload{
      {"method", "reload_weights"},
      {"timeout", seconds},
      {"kwargs", {{"weights_path", target.path.string()}, {"is_checkpoint_format", true}}}};
  step("/collective_rpc", &reload, kVllmReloadHint, context);
  step("/reset_prefix_cache?reset_running_requests=true", nullptr, kVllmPausedHint, context);
  label(target, context);
  step("/resume", nullptr, kVllmPausedHint, context);
}

}  // namespace weightfs::fs
