// Hook of vLLM.  Where it can, an engine takes the change alone (vllm_in_place.hpp); else
//
//     pause, reload_weights(MOUNTPOINT/versions/N), caches, label, resume
//
// in the words of vllm_calls.hpp.  It is in place if the engine was started with the worker
// extension of weightfs, and this hook has brought it to the version that it has, and each rank is
// ready before the pause.  An engine that is new to the hook, or was started again, is reloaded: a
// label proves nothing.  So is one in which something fails in the pause.
//
// Without the extension nobody sees the answers of single ranks.  So if a reload fails there in one
// of several, or its answer does not come, nothing is told to that process any more, also after a
// restart of the daemon: what it answers may be what a rank answered to an earlier reload
// (vllm_calls.hpp).  A daemon that is ended in a reload notes nothing: to restart vLLM after each
// of them would cost more than a rank that fails just then.
//
// It is resumed only after every other step has succeeded: a failed reload leaves weights that must
// not be used.
//
// Threads: one call at a time.
#pragma once

#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"
#include "fs/hooks/vllm_calls.hpp"
#include "fs/hooks/vllm_in_place.hpp"

namespace weightfs::fs {

class VllmHook final : public Hook {
 public:
  /// `memory`: the process whose ranks are out of step; "": none.  Throws nothing.
  VllmHook(HttpClient& client, const HookOptions& spec, std::filesystem::path mount_point,
           VllmPace pace = {}, HookMemory memory = {});
  VllmHook(const VllmHook&) = delete;
  VllmHook& operator=(const VllmHook&) = delete;
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;
  [[nodiscard]] std::optional<HookUpdate> find_update() const override { return update_; }
  [[nodiscard]] std::uint64_t base_of_change() const noexcept override;

 private:
  void forget();
  [[nodiscard]] VllmEngine ask(const Context& context);
  [[nodiscard]] VllmEngine look(const Context& context);
  [[nodiscard]] std::string stage(const VllmEngine& engine, const std::optional<VllmHeld>& held,
                                  std::uint64_t version, const Context& context) const;
  /// What the engine has then; nullopt: nobody knows.
  [[nodiscard]] std::optional<VllmHeld> change(const VllmEngine& engine, const VllmHeld& held,
                                               const HookTarget& target, HookUpdate& update,
                                               const Context& context) const;
  [[nodiscard]] std::optional<VllmHeld> reload(const VllmEngine& engine, const HookTarget& target,
                                               const Context& context);
  void reload_unseen(const VllmEngine& engine, const HookTarget& target, const Context& context);
  void set_out_of_step(const std::string& process);
  void check_in_step(const Context& context);

  const bool is_in_place_, keeps_running_;
  const std::chrono::milliseconds timeout_;
  VllmCalls calls_;
  const VllmInPlace in_place_;
  const HookMemory memory_;
  std::optional<VllmEngine> engine_;  // nullopt: it must be looked at
  std::optional<VllmHeld> held_;      // nullopt: only a reload says
  std::uint64_t told_ = 0;
  std::string out_of_step_;  // the process whose ranks' answers are not believed; "": none
  std::optional<HookUpdate> update_;
};

}  // namespace weightfs::fs
