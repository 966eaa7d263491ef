// Scalar: the specification of every operation on a block, in plain C++.
//
// The contracts are in the headers for callers (diff.hpp, encode.hpp, decode.hpp, patch.hpp,
// hash.hpp).  Internal to kernels/, for the variant table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/changes.hpp"
#include "kernels/block/diff_summary.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels::scalar {

DiffSummary summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept;
std::size_t encode_block(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                         std::vector<std::byte>& coded);
bool decode_block(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                  Scratch& scratch) noexcept;
bool decode_logged(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                   Scratch& scratch, std::vector<std::byte>& log);
std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch);
bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block, Scratch& scratch) noexcept;
bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                  Scratch& scratch, std::vector<std::byte>& folded);
bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                  std::vector<std::byte>& inverse);
bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                  std::vector<std::byte>& patch);
std::uint64_t hash_chunk(ByteSpan chunk) noexcept;

}  // namespace weightfs::kernels::scalar
