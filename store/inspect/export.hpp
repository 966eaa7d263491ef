// Export: writes a version as plain files.  Works from the bucket, independently of any daemon.
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

}  // namespace weightfs
