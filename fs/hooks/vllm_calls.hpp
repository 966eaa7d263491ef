// vLLM calls: its development endpoints (VLLM_SERVER_DEV_MODE=1), and what each answer means.
//
//     GET  /weight_info             {"weight_version": "42"}        404 on older releases
//     GET  /server_info             how it was configured
//     POST /pause?mode=keep         requests freeze, none is aborted
//     POST /collective_rpc          calls a method of each worker; {"results": [one for each rank]}
//     POST /reset_prefix_cache      {"success": false} while running requests have blocks
//     POST /update_weight_version   404 on older releases
//     POST /resume
//
// What fails in one of several workers leaves the answers of the others behind (vLLM 0.32,
// MultiprocExecutor.collective_rpc), and each later call gets them instead of its own.  So no
// method is called that an engine may not have, and who calls one looks at every rank's answer.
// Nor does a call have a timeout: what vLLM gives up to wait for is left behind as well.
//
// Threads: one call at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

inline constexpr std::string_view kVllmOutOfStep =
    "a call that failed, or was given up, may have left the answers of some of its ranks behind; "
    "restart vLLM";

/// How an engine was configured; the same for as long as its process lives.
struct VllmEngine {
  std::string reason;           // why it cannot take changes in place; "": it can
  std::string process = {};     // another one after a restart; "": it does not say
  std::size_t ranks = 0;        // that answer a call of a method; 0: it does not say
  bool caches_prefixes = true;  // keys and values of one request may be used by another
};

/// How often something is tried that is not yet so.
struct VllmPace {
  Clock::duration first = std::chrono::milliseconds(20);  // then twice as long each time
  Clock::duration longest = std::chrono::milliseconds(250);
  Clock::duration patience = std::chrono::seconds(5);  // for caches
};

class VllmCalls {
 public:
  VllmCalls(HttpClient& client, const HookOptions& spec, VllmPace pace);

  /// The version in its label; 0: not one of weightfs; nullopt: it has none.
  [[nodiscard]] std::optional<std::uint64_t> find_label(const Context& context) const;

  /// One that does not know the question takes no changes.  Throws Error, TransportError.
  [[nodiscard]] VllmEngine describe(const Context& context) const;

  /// `clears`: caches are emptied, and running requests computed anew, as vLLM does by itself.
  void pause(bool clears, const Context& context) const;
  void resume(const Context& context) const;

  /// Of each rank, in vLLM's order.  Throws Error io.
  [[nodiscard]] std::vector<Json> call(std::string_view method, const Json& arguments,
                                       const Context& context) const;
  /// The ranks' answers, which are null if all is well; empty: it does not show them.  Throws
  /// EngineError.
  std::vector<Json> reload(const std::filesystem::path& version, const Context& context) const;

  void post(std::string_view path, const Json* body, std::string_view hint,
            const Context& context) const;

  /// After this no request that comes later uses what was computed with other weights.  `keeps`:
  /// running requests go on with the keys and values that they have, where that harms no other.
  /// Returns whether they do.
  bool reset_caches(const VllmEngine& engine, bool keeps, const Context& context) const;

  /// Sets the label, where there is one.
  void label(std::uint64_t version, const Context& context);

 private:
  [[nodiscard]] HttpReply reset_prefixes(std::string_view query, const Context& context) const;
  void reset_until_done(std::string_view query, const Context& context) const;

  const EngineHttp http_;
  const VllmPace pace_;
  bool has_labels_ = true;  // has /update_weight_version, as far as is known
};

/// Waits between tries, longer each time.
class VllmWait {
 public:
  explicit VllmWait(const VllmPace& pace) : next_(pace.first), longest_(pace.longest) {}
  /// Throws as Context::pause().
  void wait(const Context& context, std::string_view what);

 private:
  Clock::duration next_;
  const Clock::duration longest_;
};

}  // namespace weightfs::fs
