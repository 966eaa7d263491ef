// What the fuzz targets of records share.  A record is bytes of a bucket, or of a file, that
// anybody may have written: parsing them gives a value or an Error, and nothing else.
#pragma once

#include <cstdint>
#include <string_view>

#include "store/base/error.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace weightfs::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `parse`, which may throw an Error.  What else it throws ends the process.
template <typename Parse>
void try_to(Parse&& parse) {
  try {
    parse();
  } catch (const Error& error) {
    require(*error.what() != '\0', "an Error without words");
  }
}

}  // namespace weightfs::fuzz
