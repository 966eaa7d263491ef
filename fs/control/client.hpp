// Control client: asks a daemon of this host at its control socket (fs/control/server.hpp).
//
// Threads: pure functions of the system's state; each blocks its caller.
#pragma once

#include <cstdint>
#include <filesystem>

#include "fs/control/requests.hpp"
#include "store/base/context.hpp"

namespace weightfs::fs {

/// The client's side; blocks, can be killed, and ends with Error cancelled when context.stop fires.
/// A hand-over is then taken back; if that comes too late its order is returned all the same.
/// Throws Error: unavailable (no daemon there, or it ended meanwhile), timed_out, and what the
/// daemon says.
WaitEnd control_wait(const std::filesystem::path& socket, const WaitFor& what,
                     const Context& context);
std::uint64_t control_hand_over(const std::filesystem::path& socket, const HandOverRequest& request,
                                const Context& context);
PublishQueue::Rebased control_rebase(const std::filesystem::path& socket,
                                     const RebaseRequest& request, const Context& context);
/// Returns: the version.
std::uint64_t control_pin(const std::filesystem::path& socket, const PinRequest& request,
                          const Context& context);
/// Returns: how many pins ended.
std::uint64_t control_unpin(const std::filesystem::path& socket, const UnpinRequest& request,
                            const Context& context);

}  // namespace weightfs::fs
