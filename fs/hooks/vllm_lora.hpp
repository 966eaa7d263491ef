// Hook of a LoRA adapter in vLLM (--enable-lora, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1): a version is
// an adapter's directory.
//
//     GET  /v1/models                 {"data": [{"id": NAME, "root": PATH}, ...]}
//     POST /v1/load_lora_adapter      {"lora_name", "lora_path", "load_inplace"}
//     POST /v1/unload_lora_adapter    {"lora_name"}: instead of load_inplace, where that is not
//                                     known or not wanted; the name is then missing for a moment
//     POST /reset_prefix_cache?reset_running_requests=true
//
// The prefix cache knows an adapter only by its name, so it would mix the results of two versions
// (vLLM #42125).  Its reset needs VLLM_SERVER_DEV_MODE=1; without it the hook fails, and says so.
// An engine without prefix caching needs no reset: reset=no.
//
// Threads: one call at a time.
#pragma once

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

class VllmLoraHook final : public Hook {
 public:
  /// `versions`: MOUNTPOINT/versions, which holds every adapter that is a version of weightfs.
  VllmLoraHook(HttpClient& client, const HookOptions& spec, std::filesystem::path versions);
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;

 private:
  /// Where the adapter was loaded from; nullopt: it is not loaded.
  [[nodiscard]] std::optional<std::string> find_root(const Context& context) const;
  [[nodiscard]] HttpReply load(const HookTarget& target, bool in_place,
                               const Context& context) const;
  void unload(const Context& context) const;

  const EngineHttp http_;
  const std::string name_;
  const bool is_in_place_, is_reset_;
  const std::filesystem::path versions_;
};

}  // namespace weightfs::fs
