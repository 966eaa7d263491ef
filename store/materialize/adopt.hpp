// Adopt: turns files of a version that this host published into the version's images, without
// fetching or writing their bytes.
//
// Threads: all calls may run in parallel; ImageTable::lock_images() admits one at a time per store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/version_images.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Like PublishResult::images of publish(), but rebuilt from the manifest, the layout and the pack
/// headers, for a version whose publisher is gone.
/// Throws Error: as make_plan().
VersionImages images_of(History& history, Store& store, std::uint64_t version,
                        const Context& context);

/// Gives the files of the version below `source` a second name in the store's images, makes them
/// read-only (0444) with the version's time, and records the images as complete and unsynced.  Does
/// nothing if they are complete already.  The names below `source` stay, and other files there are
/// not looked at; the caller removes them.  Killed at any point, it can be called again.
///
/// After a failure the store has nothing of the version; the sync then fetches it.
///
/// Requires: `lock` is of this store; the files hold what was published, nobody writes them, and
/// `source` is on the store's file system.
/// Throws Error: not_found, invalid (no regular file, or of another size), corrupt (a small file
/// has another hash), no_space, io; each names the file.  busy: the version is partial; nothing was
/// changed.
void adopt_images(Store& store, const VersionImages& images, const std::filesystem::path& source,
                  const ImagesLock& lock);

}  // namespace weightfs
