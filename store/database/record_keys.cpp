#include "store/database/record_keys.hpp"

#include <fmt/format.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs {

std::string version_key(std::uint64_t version) {
  std::string key;
  append_be64(key, version);
  return key;
}

std::uint64_t version_of_key(std::string_view key, std::size_t size_bytes,
                             std::string_view family) {
  if (key.size() != size_bytes) throw_bad_record(family);
  return load_be(key.substr(0, 8));
}

void throw_bad_record(std::string_view family) {
  throw Error(ErrorCode::corrupt, fmt::format("a record in family '{}' is malformed", family));
}

}  // namespace weightfs
