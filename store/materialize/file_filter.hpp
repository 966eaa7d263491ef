// File filter: which files of a version this host keeps (`--only`), and which of them its store
// has.
//
// Small files (blobs) are always kept; of the files of the layout those that match one of the
// globs, or all if there are no globs.  A file that is not kept does not exist in the version's
// image directory, so nothing can mistake it for data; a record says that it is absent.
//
//     FileSet              files of a layout, by index: what the code of a version works with
//     std::vector<bool>    all files of a version, by path, bytewise: as the store records them
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "store/format/chunk_batches.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// The files that are not kept; empty if all are.
FileSet left_out(const Layout& layout, std::span<const std::string> only);

/// The files of the layout that are not in `without`; empty (which means all) if that is empty.
FileSet all_but(const Layout& layout, const FileSet& without);

/// Whether every file of the layout that is in `absent` is in `left_out` too: a host that lacks
/// only `absent` has what it wants.
bool is_enough(const FileSet& absent, const FileSet& left_out) noexcept;

/// Bytes of the files of the set.
std::uint64_t bytes_of(const Layout& layout, const FileSet& files) noexcept;

/// By path, as Store::complete_images() takes it.
std::vector<bool> by_path(const Manifest& manifest, const Layout& layout, const FileSet& files);

/// The files of a complete version that the store does not have; empty if it has all.
FileSet absent_files(const Store& store, const Version& version, const Layout& layout);

/// Whether the store has all files of a version that `only` keeps.  May ask the bucket for the
/// manifest and the layout of a version that lacks files.
/// Throws Error: as History::get() and layout().
bool has_kept_files(const Store& store, History& history, std::uint64_t version,
                    std::span<const std::string> only, const Context& context);

}  // namespace weightfs
