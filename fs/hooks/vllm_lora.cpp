#include "fs/hooks/vllm_lora.hpp"

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kLoraLoadPath = "/v1/load_lora_adapter";
constexpr std::string_view kLoraUnloadPath = "/v1/unload_lora_adapter";
constexpr std::string_view kLoraResetPath = "/reset_prefix_cache?reset_running_requests=true";
constexpr std::string_view kLoraHint =
    "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1";
constexpr std::string_view kLoraResetHint =
    "otherwise the cache of the old adapter is reused: start vLLM with "
    "VLLM_SERVER_DEV_MODE=1, or without prefix caching and use reset=no";

}  // namespace

VllmLoraHook::VllmLoraHook(HttpClient& client, const HookOptions& spec,
                           std::filesystem::path versions)
    : http_(client, spec.url, spec.token_file),
      name_(spec.name),
      is_in_place_(spec.is_in_place),
      is_reset_(spec.is_reset),
      versions_(std::move(versions)) {}

std::optional<std::string> VllmLoraHook::find_root(const Context& context) const {
  const HttpReply reply = http_.get("/v1/models", context);
  http_.check(reply, "/v1/models", "");
  const Json object = EngineHttp::object_of(reply);
  const auto data = object.find("data");
  if (data == object.end() || !data->is_array()) return std::nullopt;
  for (const Json& model : *data) {
    if (!model.is_object() || model.value("id", Json()) != name_) continue;
    const Json root = model.value("root", Json());
    return root.is_string() ? root.get<std::string>() : std::string();
  }
  return std::nullopt;
}

std::optional<std::uint64_t> VllmLoraHook::find_reported(const Context& context) {
  const auto root = find_root(context);
  if (!root) return 0;
  const std::filesystem::path path(*root);
  return path.parent_path() == versions_ ? version_of_text(path.filename().string()) : 0;
}

HttpReply VllmLoraHook::load(const HookTarget& target, bool in_place,
                             const Context& context) const {
  Json body{{"lora_name", name_}, {"lora_path", target.path.string()}};
  if (in_place) body["load_inplace"] = true;
  return http_.post(kLoraLoadPath, &body, context);
}

void VllmLoraHook::unload(const Context& context) const {
  const Json body{{"lora_name", name_}};
  http_.check(http_.post(kLoraUnloadPath, &body, context), kLoraUnloadPath, kLoraHint);
}

void VllmLoraHook::tell(const HookTarget& target, const Context& context) {
  const bool is_loaded = find_root(context).has_value();
  if (is_loaded && !is_in_place_) unload(context);
  HttpReply reply = load(target, is_loaded && is_in_place_, context);
  // A release without load_inplace refuses a name that is loaded.
  if (reply.status == 400 && is_loaded && is_in_place_) {
    unload(context);
    reply = load(target, false, context);
  }
  http_.check(reply, kLoraLoadPath, reply.status == 404 ? kLoraHint : "");
  if (!is_reset_) return;
  const HttpReply reset = http_.post(kLoraResetPath, nullptr, context);
  http_.check(reset, kLoraResetPath, kLoraResetHint);
}

}  // namespace weightfs::fs
