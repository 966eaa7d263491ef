// Control client: sends requests to a daemon of this host, at its control socket
// (fs/control/server.hpp).
//
// Threads: pure functions of the system's state; each blocks its caller.
#pragma once

#include <cstdint>
#include <filesystem>

#include "fs/control/requests.hpp"
#include "store/base/context.hpp"
#include "store/inspect/patch_diff.hpp"

namespace weightfs::fs {

/// Blocks until the daemon replies; ends with Error cancelled when context.stop fires.  A hand-over
/// is then taken back; if it is too late for that, its order is returned.
/// Throws Error: unavailable (no daemon there, or it ended meanwhile), timed_out, and the daemon's
/// errors.
WaitEnd control_wait(const std::filesystem::path& socket, const WaitFor& what,
                     const Context& context);
std::uint64_t control_hand_over(const std::filesystem::path& socket, const HandOverRequest& request,
                                const Context& context);
PublishQueue::Rebased control_rebase(const std::filesystem::path& socket,
                                     const RebaseRequest& request, const Context& context);
/// Returns: the version.
std::uint64_t control_pin(const std::filesystem::path& socket, const PinRequest& request,
                          const Context& context);
PatchDiffPage control_diff(const std::filesystem::path& socket, const DiffRequest& request,
                           const Context& context);
/// Returns: how many pins ended.
std::uint64_t control_unpin(const std::filesystem::path& socket, const UnpinRequest& request,
                            const Context& context);

}  // namespace weightfs::fs
