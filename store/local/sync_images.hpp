// Sync images: makes the files of a complete version survive a power cut, when readers have them
// already.
//
// Threads: all calls may run in parallel; of one version one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "store/base/context.hpp"
#include "store/local/image_table.hpp"

namespace weightfs {

/// What became of a version that was to be synced.
enum class SyncedImages {
  synced,      // and recorded as such; or it was before
  unrecorded,  // to be tried again: there is no room for the record, mostly; the log says why
  stopped,     // `is_stopped` said so
  gone,        // not complete, or made anew meanwhile
};

/// Syncs files and directories of a complete version, then records that (ImageTable::mark_synced).
/// One file at a time is open, and written in slices: `is_stopped` is asked between two of them;
/// empty: goes on to the end.
///
/// A disk that did not take a file says so once, to whoever asks first, and the same file may
/// belong to several versions (hard links).  So the file is marked (store/local/image_times.hpp),
/// and a version with such a file is never synced: it is an error for each of them.
///
/// Throws Error: io, naming the file: it is missing, or the disk did not take it, so what a reader
/// will get is not known.  Who calls this forgets the version (ImageTable::forget_images).
SyncedImages sync_images(ImageTable& images, std::uint64_t version,
                         const std::function<bool()>& is_stopped = {});

/// Syncs every unsynced version, the newest first: for who has no ImageSyncer.  What the disk did
/// not take is removed, with an error in the log.  `is_stopped`: as above; what is left unsynced is
/// checked by whoever opens the store next.
void sync_all_images(ImageTable& images, const std::function<bool()>& is_stopped = {});

/// Syncs one image, as above: for who gives it a name that must be durable at once.
/// Throws LostWrite: the disk did not take it; Error: as fsync_file(), and as Context::check(),
/// which is asked between two slices.
void sync_image(const std::filesystem::path& path, const Context& context);

}  // namespace weightfs
