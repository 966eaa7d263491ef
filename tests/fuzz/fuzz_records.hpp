// What the fuzz targets of records share.  A record is bytes of a bucket, or of a file, that
// anybody may have written: parsing them gives a value or an Error, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/record_reader.hpp"
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

/// What a record with a hash of its own accepts it writes again, and reads again.  The hash is made
/// right first, so every field can be reached.
template <typename Record>
void check_record(const std::uint8_t* data, std::size_t size) {
  try_to([&] {
    Json json = parse_json(text_of(data, size), "input");
    if (!json.is_object()) return;
    json[kRecordHash] = to_hex(hash_of_record(json));
    const std::string again = Record::parse(json.dump(), "input").serialize();
    require(Record::parse(again, "again").serialize() == again, "a record is not what it was");
  });
}

}  // namespace weightfs::fuzz
