// Variant: an implementation of all block operations for one kind of processor.
//
// All variants give the same bytes for every input (tests/kernels/twins_test.cpp enforces this).
// kernels/dispatch/variant_table.hpp lists those that this machine can run.  CUDA works on batches
// of chunks instead: kernels/block/chunk_coder.hpp and kernels/dispatch/gpu.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/changes.hpp"
#include "kernels/block/diff_summary.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

/// The operations on one block.  Their contracts are in the headers for callers (diff.hpp,
/// changes.hpp, encode.hpp, decode.hpp, patch.hpp, hash.hpp).
struct Variant {
  std::string_view name;

  DiffSummary (*summarize_diff)(Kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept;
  void (*find_changes)(Kind, ByteSpan old_block, ByteSpan new_block, Changes&) noexcept;

  std::size_t (*encode_block)(Kind, ByteSpan old_block, ByteSpan new_block, Scratch&,
                              std::vector<std::byte>& coded);
  bool (*decode_block)(Kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                       Scratch&) noexcept;
  bool (*decode_logged)(Kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                        Scratch&, std::vector<std::byte>& log);

  std::size_t (*make_patch)(Kind, ByteSpan old_block, ByteSpan new_block, Scratch&,
                            std::vector<std::byte>& patch);
  bool (*apply_patch)(Kind, ByteSpan patch, std::span<std::byte> block, Scratch&) noexcept;
  bool (*fold_patches)(Kind, std::size_t elements, std::span<const ByteSpan> patches, Scratch&,
                       std::vector<std::byte>& folded);
  bool (*invert_patch)(Kind, std::size_t elements, ByteSpan patch, Scratch&,
                       std::vector<std::byte>& inverse);
  bool (*patch_of_log)(Kind, std::size_t elements, ByteSpan log, Scratch&,
                       std::vector<std::byte>& patch);

  std::uint64_t (*hash_chunk)(ByteSpan chunk) noexcept;
};

}  // namespace weightfs::kernels
