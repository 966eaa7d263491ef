// Coded blocks: every form of a block, whatever the encoder would take, and damage to it.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/encode.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/xr.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// Changes for a test to use, of those that others are done with: new ones cost more than the
/// tests.
struct KeepChanges {
  void operator()(kernels::Changes* changes) const { free_ones().emplace_back(changes); }
  static std::vector<std::unique_ptr<kernels::Changes>>& free_ones() {
    static thread_local std::vector<std::unique_ptr<kernels::Changes>> free;
    return free;
  }
};
inline std::unique_ptr<kernels::Changes, KeepChanges> take_changes() {
  auto& free = KeepChanges::free_ones();
  if (free.empty()) KeepChanges()(std::make_unique<kernels::Changes>().release());
  std::unique_ptr<kernels::Changes, KeepChanges> changes(free.back().release());
  free.pop_back();
  return changes;
}

/// What the encoders of single modes are given.  `classed` lies in scratch() until the next call
/// that takes it.
struct FoundChanges {
  std::unique_ptr<kernels::Changes, KeepChanges> changes = take_changes();
  unsigned ebase = 0;
  kernels::ClassedChanges classed;
};

inline FoundChanges find(kernels::Kind kind, const Bytes& old_block, const Bytes& new_block,
                         unsigned ebase) {
  FoundChanges found;
  found.ebase = ebase;
  kernels::find_changes(kind, old_block, new_block, *found.changes);
  scratch().reset();
  found.classed = kernels::classify(kind, old_block, *found.changes, ebase, scratch());
  return found;
}

/// With the ebase that the encoder takes.
inline FoundChanges find(kernels::Kind kind, const Bytes& old_block, const Bytes& new_block) {
  return find(kind, old_block, new_block, kernels::choose_ebase(kind, old_block));
}

inline Bytes encode_one(kernels::Kind kind, const Bytes& old_block, const Bytes& new_block) {
  Bytes coded;
  kernels::encode_block(kind, old_block, new_block, scratch(), coded);
  return coded;
}

/// The block as EF, whatever its size; nullopt if EF cannot express it.
inline std::optional<Bytes> encode_as_ef(kernels::Kind kind, const Bytes& old_block,
                                         const Bytes& new_block) {
  const FoundChanges found = find(kind, old_block, new_block, 0);
  Bytes coded;
  if (!kernels::encode_ef(*found.changes, new_block.size() / kernels::width_bytes(kind), kNoLimit,
                          coded)) {
    EXPECT_TRUE(coded.empty());
    return std::nullopt;
  }
  return coded;
}

/// The block as XR or XS with these parameters, whatever its size; nullopt if that cannot express
/// it.
inline std::optional<Bytes> encode_as(kernels::Mode mode, kernels::Kind kind,
                                      const FoundChanges& found, unsigned z) {
  Bytes coded;
  if (!kernels::encode_xr(kind, mode, found.ebase, z, found.classed, kNoLimit, coded)) {
    EXPECT_TRUE(coded.empty());
    return std::nullopt;
  }
  return coded;
}

/// With the parameters that the encoder takes.
inline std::optional<Bytes> encode_as(kernels::Mode mode, kernels::Kind kind,
                                      const Bytes& old_block, const Bytes& new_block) {
  const FoundChanges found = find(kind, old_block, new_block);
  return encode_as(mode, kind, found, kernels::choose_z(kind, found.classed));
}

inline Bytes encode_as_raw(const Bytes& new_block) {
  Bytes coded = {static_cast<std::byte>(kernels::Mode::raw)};
  coded.insert(coded.end(), new_block.begin(), new_block.end());
  return coded;
}

/// Decodes into memory of exactly the block's size, so that sanitizers see each step beyond it.
inline std::optional<Bytes> decode_one(kernels::Kind kind, const Bytes& old_block,
                                       const Bytes& coded) {
  Bytes decoded(old_block.size());
  if (!kernels::decode_block(kind, old_block, coded, decoded, scratch())) return std::nullopt;
  return decoded;
}

/// Up to three bits turned over, and sometimes another length.
inline Bytes damaged(Bytes coded, Random& rng) {
  const std::size_t flips = 1 + rng() % 3;
  for (std::size_t i = 0; i < flips && !coded.empty(); ++i) {
    // Every other damage hits the header, where most of the checks are.
    const std::size_t reach =
        rng() % 2 == 0 ? std::min<std::size_t>(coded.size(), 8) : coded.size();
    coded[rng() % reach] ^= static_cast<std::byte>(1U << (rng() % 8));
  }
  if (rng() % 4 == 0) coded.resize(rng() % (coded.size() + 9));
  coded.shrink_to_fit();
  return coded;
}

}  // namespace weightfs::test
