// Record keys: the parts of keys that several column families share
// (store/database/column_families).
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weightfs {

/// be64 version.
std::string version_key(std::uint64_t version);

/// The version at the start of a key.  `size_bytes`: the size of a whole key of the family.
/// Throws Error: corrupt if it has another size.
std::uint64_t version_of_key(std::string_view key, std::size_t size_bytes, std::string_view family);

/// Throws Error: corrupt.
[[noreturn]] void throw_bad_record(std::string_view family);

}  // namespace weightfs
