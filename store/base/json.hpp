// Json: strict reading of untrusted JSON.  Home of nlohmann/json; included by .cpp files only.
//
// Stricter than the library: duplicate keys are rejected, the depth is bounded (32), trailing bytes
// are rejected, and numbers read as integers must be exact.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace weightfs {

using Json = nlohmann::json;

/// Throws Error: corrupt, naming `what` and the place.
Json parse_json(std::string_view text, std::string_view what);

/// Field access with messages: "WHAT: field 'x' is missing", "... must be a string".
const Json& json_field(const Json& object, std::string_view name, std::string_view what);
std::string json_string(const Json& object, std::string_view name, std::string_view what);
std::uint64_t json_uint(const Json& object, std::string_view name, std::string_view what);

}  // namespace weightfs
