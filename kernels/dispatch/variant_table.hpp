// Variant table: all implementations of the block operations that this machine can run.
//
// The first entry, `scalar`, is the specification.  The others are the targets of Highway that were
// compiled and that this machine supports (`avx2`, `avx3_dl`, ...), worst first.
//
// Threads: the table is constant; choose_variant() must be called before threads are started.
#pragma once

#include <span>
#include <string_view>

#include "kernels/block/variant.hpp"

namespace weightfs::kernels {

/// Every variant that this machine can run; never empty.  The first is `scalar`, the last the
/// fastest.
std::span<const Variant> variants() noexcept;

/// The variant in use: the last one, unless another was chosen.
const Variant& chosen_variant() noexcept;

/// Chooses by name; `simd` is the last one.
///
/// Returns: false if this machine has no such variant; the choice is unchanged.
[[nodiscard]] bool choose_variant(std::string_view name) noexcept;

}  // namespace weightfs::kernels
