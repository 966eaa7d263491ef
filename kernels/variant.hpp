// Variant: one implementation of all block operations for one kind of processor.
//
// There is one table.  Its first entry, `scalar`, is the specification; the others are the targets
// of Highway that were compiled and that this machine runs (`avx2`, `avx3_dl`, ...), worst first.
// All give the same bytes for every input (tests/kernels/twins_test.cpp holds them to it).  CUDA
// works on batches of chunks instead: kernels/chunk_coder.hpp and kernels/gpu.hpp.
//
// Threads: the table is constant; choose_variant() is for the start of a program, before threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/block.hpp"
#include "kernels/changes.hpp"
#include "kernels/diff.hpp"
#include "kernels/scratch.hpp"

namespace weightfs::kernels {

/// The operations on one block; contracts where they are declared for callers (diff.hpp,
/// changes.hpp, encode.hpp, decode.hpp, patch.hpp, hash.hpp).
struct Variant {
  std::string_view name;

  DiffSummary (*summarize_diff)(Kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept;
  void (*find_changes)(Kind, ByteSpan old_block, ByteSpan new_block, Changes&) noexcept;

  std::size_t (*encode_block)(Kind, ByteSpan old_block, ByteSpan new_block, Scratch&,
                              std::vector<std::byte>& coded);
  bool (*decode_block)(Kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                       Scratch&) noexcept;

  std::size_t (*make_patch)(Kind, ByteSpan old_block, ByteSpan new_block, Scratch&,
                            std::vector<std::byte>& patch);
  bool (*apply_patch)(Kind, ByteSpan patch, std::span<std::byte> block, Scratch&) noexcept;
  bool (*fold_patches)(Kind, std::size_t elements, std::span<const ByteSpan> patches, Scratch&,
                       std::vector<std::byte>& folded);
  bool (*invert_patch)(Kind, std::size_t elements, ByteSpan patch, Scratch&,
                       std::vector<std::byte>& inverse);

  std::uint64_t (*hash_chunk)(ByteSpan chunk) noexcept;
};

/// Every variant that runs on this machine; never empty, the first one is `scalar`, the last one
/// the fastest.
std::span<const Variant> variants() noexcept;

/// The variant in use: the last one, unless another was chosen.
const Variant& chosen_variant() noexcept;

/// Chooses by name; `simd` is the last one.
///
/// Returns: false if there is no such variant on this machine; the choice is as it was.
[[nodiscard]] bool choose_variant(std::string_view name) noexcept;

}  // namespace weightfs::kernels
