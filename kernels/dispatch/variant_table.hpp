// Variant table: every implementation of the block operations that this machine runs.
//
// Its first entry, `scalar`, is the specification; the others are the targets of Highway that were
// compiled and that this machine runs (`avx2`, `avx3_dl`, ...), worst first.
//
// Threads: the table is constant; choose_variant() is for the start of a program, before threads.
#pragma once

#include <span>
#include <string_view>

#include "kernels/block/variant.hpp"

namespace weightfs::kernels {

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
