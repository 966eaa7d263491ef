// Keep images: after a publish, what was published becomes the images of its version in the
// publisher's store, so that the next publish codes against them and decodes nothing.
//
//     clone     where the file system can share the blocks of two files (FICLONE); else copy
//     compare   every chunk with the hash that it was published with, every small file likewise
//     record    the version is complete here; all others go, but for those that are pinned by hand
//
// A hard link is never made: whoever has the source open, or may open it, could write to it later.
//
// Threads: all calls may run in parallel; ImageTable::lock_images() lets one of them at a store.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/format/version_images.hpp"
#include "store/local/store.hpp"

namespace weightfs {

/// Progress: "keeping", bytes of the version.  Nothing is synced: the version is complete and
/// unsynced (store/local/image_table.hpp).
///
/// Requires: `images` is what was published from `reader`.
/// Throws Error: busy (the source is not what was published any more), no_space, cancelled, io.
/// After a failure nothing of the version is in the store; others may be gone.
void keep_images(Store& store, const CheckpointReader& reader, const VersionImages& images,
                 unsigned threads, const Context& context, const Progress& progress);

/// Removes the images of other versions, but for those that are pinned by hand.
void remove_other_images(Store& store, std::uint64_t version);

}  // namespace weightfs
