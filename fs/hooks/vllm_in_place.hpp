// vLLM in place: brings each rank of an engine from one version to another by the change alone,
// read from MOUNTPOINT/deltas.  The engine's side is the Python package in scripts/python.
//
//     before the pause    weightfs_stage(N, M), then weightfs_status until each rank is ready
//     in the pause        start_weight_update, update_weights, weightfs_status: each has M,
//                         finish_weight_update with the label
//     if it asks for it   weightfs_mark, a reload of M, weightfs_compare, weightfs_hold(M)
//
// Invariants
//   * Each rank's answer is looked at, in each call.  Too few of them, or answers of another call,
//     are an error: see vllm_calls.hpp.
//   * Only a reload by an explicit path, or an update in place after one, says what a rank has, and
//     only to the hook that made it (VllmHeld).
//
// Threads: one call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fs/hooks/hook.hpp"
#include "fs/hooks/vllm_calls.hpp"

namespace weightfs::fs {

/// What weightfs_status says about one rank.
struct VllmRank {
  std::string instance;  // another one after a restart
  std::string mount;     // "": none
  std::string state;     // "idle", "staging", "ready", "failed"
  std::string error;     // why it failed
  std::string refused;   // why it is never updated in place; "": it may be
  std::uint64_t held = 0, from = 0, to = 0;
  bool needs_proof = false;
  bool is_updating = false;  // between start_weight_update and finish_weight_update
  bool is_learning = false;  // it watches the model's loader, and then puts the model back
};

/// What a hook knows about an engine that it has brought to a version.
struct VllmHeld {
  std::uint64_t version = 0;
  std::vector<std::string> instances = {};  // of the ranks
  std::string refused = {};                 // why the next version is not in place; "": it may be
};

class VllmInPlace {
 public:
  /// `mount_point`: canonical.  `calls`: outlives this.
  VllmInPlace(const VllmCalls& calls, std::filesystem::path mount_point, VllmPace pace);

  /// Makes all ranks ready for the change from `held` to `version`, while they work.
  /// Throws Error: why they are not; then the engine is as it was.
  void stage(const VllmEngine& engine, const VllmHeld& held, std::uint64_t version,
             const Context& context) const;

  struct Applied {
    VllmHeld held;
    bool needs_proof = false;
  };
  /// In the pause, after stage(): each rank has the version.
  /// Throws Error; then nobody knows what the engine has: abandon(), and reload it.
  [[nodiscard]] Applied apply(const VllmEngine& engine, const VllmHeld& held, std::uint64_t version,
                              const Context& context) const;

  /// In the pause, after apply(): reloads the version, and compares.  If that differs, `refused`
  /// says how; the engine has what was reloaded.  Throws Error as apply().
  [[nodiscard]] VllmHeld prove(const VllmEngine& engine, const HookTarget& target,
                               const Context& context) const;

  /// Ends an update that was begun, if there is one, so that another one can begin.  Throws Error:
  /// nobody knows whether there is one.
  void abandon(const VllmEngine& engine, const Context& context) const;

  /// Loads the whole version.  Throws Error; then nobody knows what the engine has.
  [[nodiscard]] VllmHeld reload(const VllmEngine& engine, const HookTarget& target,
                                const Context& context) const;

 private:
  using Ranks = std::vector<VllmRank>;
  [[nodiscard]] Ranks ask(const VllmEngine& engine, std::string_view method, const Json& arguments,
                          const Context& context) const;
  [[nodiscard]] Ranks hold(const VllmEngine& engine, std::uint64_t version,
                           const Context& context) const;
  [[nodiscard]] Ranks wait_staged(const VllmEngine& engine, const Context& context) const;
  void load(const VllmEngine& engine, const HookTarget& target, const Context& context) const;
  void check_known(const Ranks& ranks, const VllmHeld& held) const;
  void check_mount(const VllmRank& rank) const;

  const VllmCalls& calls_;
  const std::filesystem::path mount_point_;
  const VllmPace pace_;
};

}  // namespace weightfs::fs
