// Fuzz: what the fuzz targets share.
//
// A target is one function of bytes, LLVMFuzzerTestOneInput.  With WEIGHTFS_FUZZ it is linked with
// libFuzzer, which searches for bytes that make it fail; in every build the committed corpus
// (tests/data/corpus) goes through it as a unit test (replay_main.cpp).
//
// Targets of the codec hold the chosen variant to what `scalar` does; $WEIGHTFS_KERNELS names it.
// They make blocks out of few bytes of input, and keep them in memory of exactly their size, so
// that AddressSanitizer sees each step beyond it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/variant_table.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace weightfs::fuzz {

using Bytes = std::vector<std::byte>;

/// Ends the process, which is how a fuzzer learns of a failure.
inline void require(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "%s: %s\n", kernels::chosen_variant().name.data(), what);
  std::abort();
}

/// The specification, and the variant that is held to it.
inline const kernels::Variant& scalar() { return kernels::variants().front(); }
inline const kernels::Variant& variant() { return kernels::chosen_variant(); }

/// One for all inputs: they come one at a time.
inline kernels::Scratch& scratch() {
  static kernels::Scratch scratch;
  return scratch;
}

/// Takes values from the front of an input; behind its end all are zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  std::uint8_t u8();
  std::uint16_t u16();
  Bytes bytes(std::size_t count);  // fewer if there are no more
  Bytes rest() { return bytes(rest_.size()); }

 private:
  std::span<const std::byte> rest_;
};

/// The block that an input is about.
struct Block {
  kernels::Kind kind{};
  std::size_t elements = 0;  // 0 .. kBlockElements
  Bytes bytes;
};

/// Reads a kind, a number of elements, how to fill them (a pattern and a seed), and bytes that
/// replace the first ones.
Block take_block(Input& input);

/// A copy of a block with some elements changed: a density, a size of steps, a seed.
Bytes take_changed(Input& input, const Block& block);

/// Changes single bits of what an encoder gave: positions and masks, and where it is cut off.
void take_damage(Input& input, Bytes& coded);

}  // namespace weightfs::fuzz
