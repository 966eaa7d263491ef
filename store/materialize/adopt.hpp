// Adopt: makes the images of a version out of files that this host already has because it published
// them, without fetching or writing their bytes.
//
// Threads: all calls may run in parallel; Store::lock_images() lets one of them at a store.
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

/// The same as PublishResult::images of publish(), for a version whose publisher is gone: from the
/// manifest, the layout and the headers of its packs.
/// Throws Error: as make_plan().
VersionImages images_of(History& history, Store& store, std::uint64_t version,
                        const Context& context);

/// Gives the files of the version below `source` a second name in the store's images, makes them
/// read-only (0444) with the version's time, syncs them and records the images as complete.  Does
/// nothing if they are complete already.  The names below `source` stay, and other files there are
/// not looked at; the caller removes them.  Killed at any point, it can be called again.
///
/// After a failure nothing of the version is in the store; the sync fetches it then.
///
/// Requires: `lock` is of this store; the files hold what was published, their bytes are synced,
/// nobody writes them, and `source` is on the store's file system.
/// Throws Error: not_found, invalid (no regular file, or of another size), corrupt (a small file
/// has another hash), no_space, io; each names the file.  busy: the version is partial; nothing was
/// changed.
void adopt_images(Store& store, const VersionImages& images, const std::filesystem::path& source,
                  const ImagesLock& lock);

}  // namespace weightfs
