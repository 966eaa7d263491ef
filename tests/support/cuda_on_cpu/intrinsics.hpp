// What device code can use: qualifiers, vector types, barriers, warp collectives, bits, atomics.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "scheduler.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static  // one block runs at a time

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;
inline constexpr int warpSize = 32;

// Every waiting call records its own source line.
#define CUDA_ON_CPU_SITE cuda_on_cpu::Site site = {__builtin_FILE(), __builtin_LINE()}

// Barriers -------------------------------------------------------------------------------------

inline void __syncthreads(CUDA_ON_CPU_SITE) {
  cuda_on_cpu::scheduler().barrier("__syncthreads", site, 0);
}
inline int __syncthreads_count(int vote, CUDA_ON_CPU_SITE) {
  return static_cast<int>(cuda_on_cpu::scheduler().barrier("__syncthreads_count", site, vote != 0));
}
inline int __syncthreads_or(int vote, CUDA_ON_CPU_SITE) {
  return cuda_on_cpu::scheduler().barrier("__syncthreads_or", site, vote != 0) != 0;
}
inline int __syncthreads_and(int vote, CUDA_ON_CPU_SITE) {
  return cuda_on_cpu::scheduler().barrier("__syncthreads_and", site, vote == 0) == 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, CUDA_ON_CPU_SITE) {
  cuda_on_cpu::scheduler().exchange("__syncwarp", site, mask, 0);
}
inline void __threadfence() { cuda_on_cpu::scheduler().fence(); }
inline void __threadfence_block() { cuda_on_cpu::scheduler().fence(); }
inline void __threadfence_system() { cuda_on_cpu::scheduler().fence(); }

// Warp collectives -----------------------------------------------------------------------------

namespace cuda_on_cpu {

template <typename T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// `from` is the lane to read; if it is outside the segment of `width` lanes, the caller's own.
template <typename T>
T shuffle(const char* call, Site site, unsigned mask, T value, int from, int width) {
  const int self = static_cast<int>(scheduler().lane());
  const int segment = self / width;
  if (from < 0 || from / width != segment) from = self;
  const Lanes& lanes = scheduler().exchange(call, site, mask, to_bits(value));
  if ((mask >> from & 1) == 0)
    scheduler().fail(call, site, mask,
                     "it reads lane " + std::to_string(from) + ", which takes no part");
  return from_bits<T>(lanes[static_cast<std::size_t>(from)]);
}

/// One bit for each lane of the mask whose value passes the test.
template <typename Test>
unsigned vote(const char* call, Site site, unsigned mask, std::uint64_t value, Test test) {
  const Lanes& lanes = scheduler().exchange(call, site, mask, value);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && test(lanes[lane])) votes |= 1u << lane;
  return votes;
}

template <typename T, typename Combine>
T reduce(const char* call, Site site, unsigned mask, T value, Combine combine) {
  const Lanes& lanes = scheduler().exchange(call, site, mask, to_bits(value));
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && lane != scheduler().lane())
      value = combine(value, from_bits<T>(lanes[lane]));
  return value;
}

inline bool is_set(std::uint64_t value) { return value != 0; }

}  // namespace cuda_on_cpu

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_ON_CPU_SITE) {
  const int first = static_cast<int>(cuda_on_cpu::scheduler().lane()) / width * width;
  return cuda_on_cpu::shuffle("__shfl_sync", site, mask, value, first + (source & (width - 1)),
                              width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_SITE) {
  const int from = static_cast<int>(cuda_on_cpu::scheduler().lane() - delta);
  return cuda_on_cpu::shuffle("__shfl_up_sync", site, mask, value, from, width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_SITE) {
  const int from = static_cast<int>(cuda_on_cpu::scheduler().lane() + delta);
  return cuda_on_cpu::shuffle("__shfl_down_sync", site, mask, value, from, width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDA_ON_CPU_SITE) {
  const int from = static_cast<int>(cuda_on_cpu::scheduler().lane()) ^ lanes;
  return cuda_on_cpu::shuffle("__shfl_xor_sync", site, mask, value, from, width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_ON_CPU_SITE) {
  return cuda_on_cpu::vote("__ballot_sync", site, mask, predicate != 0, cuda_on_cpu::is_set);
}
inline int __any_sync(unsigned mask, int predicate, CUDA_ON_CPU_SITE) {
  return cuda_on_cpu::vote("__any_sync", site, mask, predicate != 0, cuda_on_cpu::is_set) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDA_ON_CPU_SITE) {
  return cuda_on_cpu::vote("__all_sync", site, mask, predicate != 0, cuda_on_cpu::is_set) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, CUDA_ON_CPU_SITE) {
  const std::uint64_t own = cuda_on_cpu::to_bits(value);
  return cuda_on_cpu::vote("__match_any_sync", site, mask, own,
                           [own](std::uint64_t other) { return other == own; });
}
/// Only the caller: the hardware guarantees no more.
inline unsigned __activemask() { return 1u << cuda_on_cpu::scheduler().lane(); }

#define CUDA_ON_CPU_REDUCE(name, type, expression)                                 \
  inline type name(unsigned mask, type value, CUDA_ON_CPU_SITE) {                  \
    return cuda_on_cpu::reduce(#name, site, mask, value,                           \
                               [](type a, type b) -> type { return expression; }); \
  }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, int,
                   static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
CUDA_ON_CPU_REDUCE(__reduce_min_sync, unsigned, std::min(a, b))
CUDA_ON_CPU_REDUCE(__reduce_min_sync, int, std::min(a, b))
CUDA_ON_CPU_REDUCE(__reduce_max_sync, unsigned, std::max(a, b))
CUDA_ON_CPU_REDUCE(__reduce_max_sync, int, std::max(a, b))
CUDA_ON_CPU_REDUCE(__reduce_and_sync, unsigned, a& b)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef CUDA_ON_CPU_REDUCE
#undef CUDA_ON_CPU_SITE

// Bits -----------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((std::uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}

/// Byte i of the result is byte (selector >> 4 i & 7) of the eight bytes y:x.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned picked = 0;
  for (unsigned i = 0; i < 4; ++i) {
    picked |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  }
  return picked;
}

/// max(0, min(a + b, c)) of both signed halves.
inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned c) {
  unsigned both = 0;
  for (unsigned shift = 0; shift < 32; shift += 16) {
    const auto half = [shift](unsigned x) { return static_cast<std::int16_t>(x >> shift); };
    const auto sum = static_cast<std::int16_t>(half(a) + half(b));
    both |= static_cast<unsigned>(std::max<int>(0, std::min(sum, half(c)))) << shift;
  }
  return both;
}

// Memory ---------------------------------------------------------------------------------------

template <typename T>
T __ldg(const T* address) {
  return *address;
}

namespace cuda_on_cpu {

/// Replaces *address with change(*address), lets other threads run, and returns the old value.
template <typename T, typename Change>
T atomic_change(T* address, Change change) {
  scheduler().yield();
  const std::atomic_ref<T> cell(*address);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace cuda_on_cpu

// The second parameter takes no part in deduction, as with CUDA's overloads.
#define CUDA_ON_CPU_ATOMIC(name, expression)                                                  \
  template <typename T>                                                                       \
  T name(T* address, std::type_identity_t<T> value) {                                         \
    return cuda_on_cpu::atomic_change(address,                                                \
                                      [value](T old) { return static_cast<T>(expression); }); \
  }
CUDA_ON_CPU_ATOMIC(atomicAdd, old + value)
CUDA_ON_CPU_ATOMIC(atomicSub, old - value)
CUDA_ON_CPU_ATOMIC(atomicMin, std::min(old, value))
CUDA_ON_CPU_ATOMIC(atomicMax, std::max(old, value))
CUDA_ON_CPU_ATOMIC(atomicAnd, old& value)
CUDA_ON_CPU_ATOMIC(atomicOr, old | value)
CUDA_ON_CPU_ATOMIC(atomicXor, old ^ value)
CUDA_ON_CPU_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef CUDA_ON_CPU_ATOMIC
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return cuda_on_cpu::atomic_change(address,
                                    [=](T old) { return old == expected ? desired : old; });
}
