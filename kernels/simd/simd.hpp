// Simd: the operations compiled by Highway, once for each target.
//
// The files of kernels/simd are compiled for all targets (hwy/foreach_target.h).  The functions
// here return the one for the target that hwy::GetChosenTarget() names at the time of the call;
// kernels/dispatch/variant_table.cpp visits each target once, at the start.  Internal to kernels/.
#pragma once

#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/block/variant.hpp"

/// The targets that have a way of their own for blocks with many changes: those with bit extract
/// and deposit.
#define WEIGHTFS_DENSE_TARGET (HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2)

namespace weightfs::kernels::simd {

decltype(Variant::summarize_diff) summarize_diff() noexcept;  // diff.cpp
decltype(Variant::find_changes) find_changes() noexcept;      // diff.cpp
decltype(Variant::encode_block) encode_block() noexcept;      // encode.cpp
decltype(Variant::decode_block) decode_block() noexcept;      // decode.cpp
decltype(Variant::decode_logged) decode_logged() noexcept;
decltype(Variant::apply_patch) apply_patch() noexcept;  // patch.cpp
decltype(Variant::make_patch) make_patch() noexcept;
decltype(Variant::fold_patches) fold_patches() noexcept;
decltype(Variant::invert_patch) invert_patch() noexcept;
decltype(Variant::patch_of_log) patch_of_log() noexcept;

/// libxxhash's, which has its own dispatcher.
std::uint64_t hash_chunk(ByteSpan chunk) noexcept;

}  // namespace weightfs::kernels::simd
