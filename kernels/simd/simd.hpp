// Simd: the operations as Highway compiles them, once for each target.
//
// Each simd_*.cpp is compiled for all targets (hwy/foreach_target.h).  The functions here give the
// one for the target that hwy::GetChosenTarget() names at the time of the call;
// kernels/dispatch/variant_table.cpp goes through the targets once, at start.  Internal to
// kernels/.
#pragma once

#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/block/variant.hpp"

namespace weightfs::kernels::simd {

decltype(Variant::summarize_diff) summarize_diff() noexcept;  // simd_diff.cpp
decltype(Variant::find_changes) find_changes() noexcept;      // simd_diff.cpp
decltype(Variant::encode_block) encode_block() noexcept;      // simd_encode.cpp
decltype(Variant::decode_block) decode_block() noexcept;      // simd_decode.cpp
decltype(Variant::apply_patch) apply_patch() noexcept;        // simd_patch.cpp
decltype(Variant::make_patch) make_patch() noexcept;
decltype(Variant::fold_patches) fold_patches() noexcept;
decltype(Variant::invert_patch) invert_patch() noexcept;

/// libxxhash's, which has a dispatcher of its own.
std::uint64_t hash_chunk(ByteSpan chunk) noexcept;

}  // namespace weightfs::kernels::simd
