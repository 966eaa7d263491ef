// Hook that runs a command, as the user of the mount, without a shell (store/os/child_process.hpp).
//
// Its environment consists of PATH, LANG, WEIGHTFS_VERSION, WEIGHTFS_PATH, WEIGHTFS_TAG,
// WEIGHTFS_URL (of the repository) and WEIGHTFS_MOUNTPOINT. Exit code 0 means that the version is
// loaded.  A command cannot be asked for its version, so success is remembered, also across
// restarts of the daemon.
//
// A command that is still running ends with the daemon, but not if that is killed.  So what is
// started is remembered too, and ended before anything else is started: two never run at once. None
// is started in a store that cannot remember it, which is found out first.  (Its number is known
// only when it runs, so a kill within the same millisecond is not covered.)
//
// Threads: one call at a time.
#pragma once

#include <string>
#include <vector>

#include "fs/hooks/hook.hpp"
#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {

class ExecHook final : public Hook {
 public:
  /// `repository`: its URL, without secrets.  `memory`: the id of the command that was started last
  /// (ChildPlan::started); it may throw Error, which tell() then throws.
  ExecHook(const HookOptions& spec, std::string repository, std::filesystem::path mount_point,
           HookMemory memory = {});
  std::optional<std::uint64_t> find_reported(const Context& context) override;
  void tell(const HookTarget& target, const Context& context) override;
  [[nodiscard]] bool is_told_for_good() const noexcept override { return true; }

 private:
  const std::vector<std::string> argv_;
  const std::string repository_;
  const std::filesystem::path mount_point_;
  const HookMemory memory_;
};

}  // namespace weightfs::fs
