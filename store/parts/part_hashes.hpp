// Part hashes: the hashes of the files of a part, as its object has them.
//
// Threads: pure functions.  Format: docs/FORMAT.md, "Parts".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/format/layout.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// `with_pieces`: of a part with a snapshot.  `hashes`: by the part's own layout.
std::string serialize_part_hashes(const SnapshotHashes& hashes, bool with_pieces);

/// The size of that, given the part's layout.
std::uint64_t part_hashes_size(const Layout& layout, bool with_pieces) noexcept;

/// Throws Error: corrupt, naming `what`.
SnapshotHashes parse_part_hashes(std::string_view bytes, const Layout& layout, bool with_pieces,
                                 std::string_view what);

}  // namespace weightfs
