// The inner loops of end_to_end.py: of the formats that weightfs is compared with, and of the
// made-up run. end_to_end.py compiles this for the machine it runs on, as a shared library, and
// calls it from several threads: each call works on one tensor.

#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>

namespace {

// ZSTD_compressCCtx and ZSTD_decompressDCtx with a context per thread: a new one for each tensor
// would be unfair.
struct Contexts {
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_DCtx* decompress = ZSTD_createDCtx();
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeDCtx(decompress);
  }
};

Contexts& contexts() {
  thread_local Contexts mine;
  return mine;
}

void xor_words(uint64_t* __restrict out, const uint64_t* a, const uint64_t* b, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; ++i) out[i] = a[i] ^ b[i];
}

void xor_into(uint64_t* target, const uint64_t* __restrict changes, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; ++i) target[i] ^= changes[i];
}

uint64_t next_random(uint64_t* state) {  // splitmix64
  uint64_t x = (*state += 0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

extern "C" {

// A step of training: an element changes with a chance (of 65536) that depends on its exponent, by
// one unit in the last place, one in 32 by two. Returns how many changed.
size_t peers_step(uint16_t* bits, size_t count, uint64_t seed, const uint16_t* chance) {
  size_t changed = 0;
  for (size_t i = 0; i < count; i += 4) {
    uint64_t random = next_random(&seed);
    for (size_t k = i; k < i + 4 && k < count; ++k, random >>= 16) {
      if ((random & 0xFFFF) >= chance[(bits[k] >> 7) & 0xFF]) continue;
      uint64_t how = next_random(&seed);
      int by = (how & 62) == 0 ? 2 : 1;
      bits[k] = static_cast<uint16_t>(how & 1 ? bits[k] + by : bits[k] - by);
      ++changed;
    }
  }
  return changed;
}

// XOR and zstd level 1: one frame for a tensor. `sum`: 16 bytes of XXH3-128, or 4 of adler32.
size_t peers_xor_encode(void* frame, size_t room, void* scratch, const void* after,
                        const void* before, size_t bytes, int adler, void* sum) {
  xor_words(static_cast<uint64_t*>(scratch), static_cast<const uint64_t*>(after),
            static_cast<const uint64_t*>(before), bytes);
  if (adler) {
    auto value = static_cast<uint32_t>(adler32_z(1, static_cast<const Bytef*>(after), bytes));
    std::memcpy(sum, &value, sizeof(value));
  } else {
    XXH128_hash_t value = XXH3_128bits(after, bytes);
    std::memcpy(sum, &value, sizeof(value));
  }
  return ZSTD_compressCCtx(contexts().compress, frame, room, scratch, bytes, 1);
}

// Returns 0 if the tensor has the right bytes.
int peers_xor_apply(void* target, void* scratch, const void* frame, size_t size, size_t bytes,
                    int adler, const void* sum) {
  if (ZSTD_decompressDCtx(contexts().decompress, scratch, bytes, frame, size) != bytes) return 1;
  xor_into(static_cast<uint64_t*>(target), static_cast<const uint64_t*>(scratch), bytes);
  if (adler) {
    auto value = static_cast<uint32_t>(adler32_z(1, static_cast<const Bytef*>(target), bytes));
    return std::memcmp(sum, &value, sizeof(value)) != 0;
  }
  XXH128_hash_t value = XXH3_128bits(target, bytes);
  return std::memcmp(sum, &value, sizeof(value)) != 0;
}

// Index and value of each element that differs. Returns how many.
size_t peers_sparse_encode(int32_t* index, uint16_t* value, const uint16_t* after,
                           const uint16_t* before, size_t count) {
  constexpr size_t kBlock = 32;  // one or two vectors
  size_t found = 0;
  for (size_t i = 0; i < count; i += kBlock) {
    size_t end = i + kBlock < count ? i + kBlock : count;
    uint16_t differ = 0;
    for (size_t k = i; k < end; ++k) differ |= static_cast<uint16_t>(after[k] ^ before[k]);
    if (differ == 0) continue;
    for (size_t k = i; k < end; ++k) {
      index[found] = static_cast<int32_t>(k);
      value[found] = after[k];
      found += after[k] != before[k];
    }
  }
  return found;
}

void peers_sparse_apply(uint16_t* target, const int32_t* index, const uint16_t* value,
                        size_t count) {
  for (size_t i = 0; i < count; ++i) target[index[i]] = value[i];
}

}  // extern "C"
