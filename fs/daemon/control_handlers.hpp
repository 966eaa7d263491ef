// Control handlers: replies of a mount's control socket, from what the mount shows and, on a
// writer's mount, from its queue.
//
// Threads: the handlers may be called from any thread.
#pragma once

#include "fs/control/server.hpp"
#include "fs/fuse/session.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

/// Keeps the references.
ControlHandlers make_control_handlers(Sync& sync, const Writing& writing, LoaderPins& pins);

}  // namespace weightfs::fs
