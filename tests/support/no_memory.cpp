#include "tests/support/no_memory.hpp"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr long kEnough = std::numeric_limits<long>::max();
std::atomic<long> allocations_left = kEnough;

}  // namespace

#ifndef WEIGHTFS_SANITIZED
namespace {

bool may_allocate() noexcept { return allocations_left == kEnough || --allocations_left >= 0; }

}  // namespace

// All other forms call these.
void* operator new(std::size_t size) {
  void* const memory = may_allocate() ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace weightfs::test {

NoMemory::NoMemory(unsigned left) noexcept { allocations_left = left; }
NoMemory::~NoMemory() { allocations_left = kEnough; }
bool NoMemory::was_missed() const noexcept { return allocations_left < 0; }

}  // namespace weightfs::test
