// Hook of any server that loads weights on request, at one URL.
//
//     POST URL   {"version": 42, "path": "/mnt/w/versions/42", "tag": "step-42", "url": "s3://..."}
//                2xx when the version is loaded
//     GET  URL   {"version": 42}, or "42"; 404, 405 or 501: it cannot say
//
// Threads: one call at a time.
#pragma once

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

class HttpHook final : public Hook {
 public:
  /// `repository`: its URL, without secrets.
  HttpHook(HttpClient& client, const HookOptions& spec, std::string repository);
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;

 private:
  const EngineHttp http_;
  const std::string repository_;
};

}  // namespace weightfs::fs
