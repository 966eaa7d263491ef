// Pack bytes: how much a delta, or a skip delta, is to fetch.
//
// Threads: a pure function.
#pragma once

#include <cstdint>

#include "store/format/object_refs.hpp"

namespace weightfs {

/// Bytes of all packs that a delta names.
std::uint64_t pack_bytes(const DeltaRef& delta) noexcept;

}  // namespace weightfs
