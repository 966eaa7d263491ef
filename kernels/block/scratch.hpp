// Scratch: working memory of the block operations.
//
// Coding a block takes up to two megabytes of arrays.  Allocating and touching them anew for each
// block would cost more than the work, so each thread keeps one Scratch and passes it in.
//
// Threads: belongs to one thread at a time.  Contents: only guesses and counters are kept from one
// call to the next.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "kernels/block/changes.hpp"

namespace weightfs::kernels {

class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  Scratch() : memory_(new (std::align_val_t{kAlignment}) std::byte[kBytes]) {}

  /// Releases all arrays.  Called by the operations when they begin.
  void reset() noexcept { taken_ = 0; }

  /// An uninitialised array, aligned to kAlignment, valid until reset().
  ///
  /// Requires: all arrays together fit into kBytes; Value is trivial.
  template <typename Value>
  Value* take(std::size_t count) noexcept {
    std::byte* const at = memory_.get() + taken_;
    taken_ += (count * sizeof(Value) + kAlignment - 1) / kAlignment * kAlignment;
    assert(taken_ <= kBytes);
    return new (at) Value[count];
  }

  /// The encoder's initial guess of a property of the block: its value in the last block.  A wrong
  /// guess costs time but does not change the result.
  unsigned& ebase_guess() noexcept { return ebase_guess_; }

  /// The same of whether many elements change.
  bool& dense_guess() noexcept { return dense_guess_; }

  /// How many blocks were encoded, or decoded, by the way for blocks with many changes: for tests.
  std::uint64_t& dense_blocks() noexcept { return dense_blocks_; }

  /// The changes of the current block.
  Changes& take_changes() noexcept { return *take<Changes>(1); }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept {
      ::operator delete[](memory, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t taken_ = 0;
  unsigned ebase_guess_ = 0;
  bool dense_guess_ = false;
  std::uint64_t dense_blocks_ = 0;
};

}  // namespace weightfs::kernels
