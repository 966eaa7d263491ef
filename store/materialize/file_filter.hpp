// File filter: which files of a version this host keeps (`--only`), and which of them the store
// contains.
//
// Small files (blobs) are always kept. Files of the layout are kept if they match one of the globs,
// or if there are no globs.  A file that is not kept does not exist in the version's image
// directory, so it cannot be mistaken for data; a record says that it is absent.
//
//     FileSet              files of a layout, by index: used by all code about versions
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

/// The files that are not kept; empty if all are kept.
FileSet left_out(const Layout& layout, std::span<const std::string> only);

/// The files of the layout that are not in `without`; if `without` is empty, an empty set, meaning
/// all.
FileSet all_but(const Layout& layout, const FileSet& without);

/// Whether every file of the layout that is in `absent` is also in `left_out`: a host that lacks
/// only `absent` has all it wants.
bool is_enough(const FileSet& absent, const FileSet& left_out) noexcept;

/// Total size of the files in the set.
std::uint64_t bytes_of(const Layout& layout, const FileSet& files) noexcept;

/// By path, as ImageTable::complete_images() takes it.
std::vector<bool> by_path(const Manifest& manifest, const Layout& layout, const FileSet& files);

/// The files of a complete version that the store lacks; empty if it has all.
FileSet absent_files(const Store& store, const Version& version, const Layout& layout);

/// Whether the store has all files of a version that `only` keeps.  May fetch the manifest and the
/// layout from the bucket if the version lacks files.
/// Throws Error: as History::get() and layout().
bool has_kept_files(const Store& store, History& history, std::uint64_t version,
                    std::span<const std::string> only, const Context& context);

}  // namespace weightfs
