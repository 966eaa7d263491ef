// NoMemory: as long as it lives, operator new throws std::bad_alloc, in every thread, after the
// next `left` calls.
//
// A program that has this brings an operator new of its own (no_memory.cpp).  Not so under a
// sanitizer, which has one: tests skip themselves there (kSanitized).
#pragma once

namespace weightfs::test {

class NoMemory {
 public:
  explicit NoMemory(unsigned left = 0) noexcept;
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

  /// Whether it has thrown.
  [[nodiscard]] bool was_missed() const noexcept;
};

}  // namespace weightfs::test
