// Publish first: how work of a writer's mount gives way to its hand-overs.
//
// Threads: all calls may run in parallel.
#pragma once

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs::fs {

/// Whether a hand-over is under way: one that waits for the user, or for the bucket, is not.
[[nodiscard]] bool is_publishing(const PublishQueue& queue);

/// Returns when nothing waits to be published, or is being published; or when it is told to stop.
void wait_published(const PublishQueue& queue, const Context& context);

/// Makes a skip delta of what the store's history leads to, while nothing waits to be published.
/// Returns: false if that is not enough, or if what it is made of takes the room that a publish
/// needs.
/// Throws Error: what make_skip() throws.
bool make_skip_in_turn(const PublishQueue& queue, Store& store, History& history,
                       const VersionPair& versions, const Context& context);

}  // namespace weightfs::fs
