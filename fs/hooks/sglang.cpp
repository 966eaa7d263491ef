#include "fs/hooks/sglang.hpp"

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kSglangPausedHint = "SGLang stays paused; the update is retried";

}  // namespace

SglangHook::SglangHook(HttpClient& client, const HookOptions& spec)
    : http_(client, spec.url, spec.token_file) {}

std::optional<std::uint64_t> SglangHook::find_reported(const Context& context) {
  for (const std::string_view path : {"/model_info", "/get_weight_version"}) {
    const HttpReply reply = http_.get(path, context);
    if (reply.status == 404) continue;
    http_.check(reply, path, "");
    if (const auto version = find_version(EngineHttp::object_of(reply), "weight_version")) {
      return version;
    }
  }
  return std::nullopt;
}

void SglangHook::tell(const HookTarget& target, const Context& context) {
  const Json pause{{"mode", "retract"}};
  const HttpReply paused = http_.post("/pause_generation", &pause, context);
  if (paused.status != 404) http_.check(paused, "/pause_generation", "");

  const Json update{{"model_path", target.path.string()},
                    {"weight_version", std::to_string(target.version)},
                    {"flush_cache", true},
                    {"abort_all_requests", false}};
  const std::string_view path = "/update_weights_from_disk";
  http_.check(http_.post(path, &update, context), path, kSglangPausedHint);

  if (paused.status == 404) return;
  const Json resume = Json::object();
  const HttpReply resumed = http_.post("/continue_generation", &resume, context);
  http_.check(resumed, "/continue_generation", kSglangPausedHint);
}

}  // namespace weightfs::fs
