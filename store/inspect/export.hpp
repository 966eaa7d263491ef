// Export: writes a version, or a change, as plain files: from the bucket, independently of any
// daemon, or as copies of what a mount shows, without the bucket.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Writes a version into `directory`, which must be absent or empty.  All files appear there at
/// once, by a rename; a failure leaves nothing.
/// Throws Error: exists (the directory is not empty), and as make_plan and write_version.
void export_version(History& history, std::uint64_t version, const std::filesystem::path& directory,
                    const Context& context, const Progress& progress,
                    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

/// The same with the files of a directory, which is a version as a mount or a sync shows it.
/// Progress: "copying".
/// Returns: the bytes of all files.
/// Throws Error: exists, not_found (a file is gone, or `version` is no directory), io, no_space,
/// cancelled.
std::uint64_t copy_version(const std::filesystem::path& version,
                           const std::filesystem::path& directory, const Context& context,
                           const Progress& progress);

/// Copies a file to `file`, which must not exist; it appears only when it is complete.
/// Throws Error: exists, not_found, io, unsupported (as the mount says), no_space, cancelled.
/// Returns: its size.
std::uint64_t copy_delta(const std::filesystem::path& delta, const std::filesystem::path& file,
                         const Context& context, const Progress& progress);

}  // namespace weightfs
