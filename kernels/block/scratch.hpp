// Scratch: working memory of the block operations.
//
// Coding a block takes up to two megabytes of arrays.  Allocating and touching them anew for each
// block would cost more than the work, so a caller keeps one Scratch a thread and lends it.
//
// Threads: belongs to one thread at a time.  Contents: only a guess is kept from one call to the
// next.
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <new>

#include "kernels/block/changes.hpp"

namespace weightfs::kernels {

class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  Scratch() : memory_(new (std::align_val_t{kAlignment}) std::byte[kBytes]) {}

  /// Forgets what was taken.  Called by the operations when they begin.
  void reset() noexcept { taken_ = 0; }

  /// An uninitialised array, aligned to kAlignment, valid until reset().
  ///
  /// Requires: all that is taken fits into kBytes; Value is trivial.
  template <typename Value>
  Value* take(std::size_t count) noexcept {
    std::byte* const at = memory_.get() + taken_;
    taken_ += (count * sizeof(Value) + kAlignment - 1) / kAlignment * kAlignment;
    assert(taken_ <= kBytes);
    return new (at) Value[count];
  }

  /// The encoder's guess of a property of the block before it has seen it: that of the last block.
  /// A wrong guess costs time and changes no result.
  unsigned& ebase_guess() noexcept { return ebase_guess_; }

  /// The changes of the block in hand.
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
};

}  // namespace weightfs::kernels
