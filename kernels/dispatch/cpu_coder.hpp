// CPU coder: the ChunkCoder that uses a variant, on the caller's threads.
//
// Threads: as ChunkCoder.
#pragma once

#include <memory>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/block/variant.hpp"

namespace weightfs::kernels {

/// Uses the chosen variant.
std::unique_ptr<ChunkCoder> make_cpu_coder();

/// For tests: uses `variant`, which must outlive the coder.
std::unique_ptr<ChunkCoder> make_cpu_coder(const Variant& variant);

}  // namespace weightfs::kernels
