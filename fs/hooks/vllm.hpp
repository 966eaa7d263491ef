// Hook of vLLM: its development endpoints (VLLM_SERVER_DEV_MODE=1).
//
//     POST /pause?mode=keep                                 requests freeze, none is aborted
//     POST /collective_rpc  reload_weights(weights_path)
//     POST /reset_prefix_cache?reset_running_requests=true  no old key or value is used again
//     POST /update_weight_version                           404 on older releases
//     POST /resume
//     GET  /weight_info     {"weight_version": "42"}        404 on older releases
//
// It is resumed only after every other step has succeeded: a failed reload leaves weights that must
// not be used.
//
// Threads: one call at a time.
#pragma once

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

class VllmHook final : public Hook {
 public:
  VllmHook(HttpClient& client, const HookOptions& spec);
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;

 private:
  void step(std::string_view path, const Json* body, std::string_view hint,
            const Context& context) const;
  void label(const HookTarget& target, const Context& context);

  const EngineHttp http_;
  const std::chrono::milliseconds timeout_;
  bool has_labels_ = true;  // has /update_weight_version, as far as is known
};

}  // namespace weightfs::fs
