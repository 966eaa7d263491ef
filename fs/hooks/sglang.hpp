// Hook of SGLang.
//
//     POST /pause_generation           {"mode": "retract"}   404 on older releases: skipped
//     POST /update_weights_from_disk   {"model_path", "weight_version", "flush_cache": true,
//                                       "abort_all_requests": false}
//     POST /continue_generation        {}                    only if the update succeeded
//     GET  /model_info                 {"weight_version": "42", ...}
//     GET  /get_weight_version         the same, on older releases
//
// Threads: one call at a time.
#pragma once

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

class SglangHook final : public Hook {
 public:
  SglangHook(HttpClient& client, const HookOptions& spec);
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;

 private:
  const EngineHttp http_;
};

}  // namespace weightfs::fs
