#include "kernels/dispatch/hash.hpp"

#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {

std::uint64_t hash_chunk(ByteSpan chunk) noexcept { return chosen_variant().hash_chunk(chunk); }

}  // namespace weightfs::kernels
