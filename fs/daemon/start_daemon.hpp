// Start daemon: runs a mount in the background.
//
// Threads: the calling process has one.
#pragma once

#include "fs/daemon/daemon.hpp"
#include "store/base/context.hpp"

namespace weightfs::fs {

/// Runs run_daemon in a daemonised child, waits until it is ready, and rethrows its errors.
///
/// Throws Error: also io if the child died (says where its log is), cancelled by a signal.
/// Requires: the calling process has one thread.
MountReady start_daemon(const HostOptions& host, const MountOptions& options,
                        const Progress& progress);

}  // namespace weightfs::fs
