#include "store/json.hpp"

#include <set>
#include <vector>

#include "store/error.hpp"

namespace weightfs {
namespace {

constexpr int kJsonDepthMax = 32;

std::string text_of(std::string_view what) { return std::string(what); }

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  // The library keeps the last of two equal keys: one text, two readings.  So watch the keys.
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kJsonDepthMax) problem = "is nested deeper than 32 levels";
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(value.get_ref<const std::string&>()).second) {
      problem = "has the key '" + value.get<std::string>() + "' twice";
    }
    if (!problem.empty()) throw Error(ErrorCode::corrupt, text_of(what) + " " + problem);
    return true;
  };
  // The library takes a NUL for the end of the text, and skips a byte order mark.
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF")) {
    throw Error(ErrorCode::corrupt,
                text_of(what) + " is not valid JSON: it holds a NUL or a byte order mark");
  }
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    // Not the library's message: it repeats the text, which may be no UTF-8.
    throw Error(ErrorCode::corrupt,
                text_of(what) + " is not valid JSON: byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    throw Error(ErrorCode::corrupt, text_of(what) + " is not valid JSON");
  }
}

const Json& json_field(const Json& object, std::string_view name, std::string_view what) {
  if (!object.is_object()) throw Error(ErrorCode::corrupt, text_of(what) + " is not a JSON object");
  const auto found = object.find(name);
  if (found == object.end()) {
    throw Error(ErrorCode::corrupt, text_of(what) + ": field '" + text_of(name) + "' is missing");
  }
  return *found;
}

std::string json_string(const Json& object, std::string_view name, std::string_view what) {
  const Json& value = json_field(object, name, what);
  if (!value.is_string()) {
    throw Error(ErrorCode::corrupt,
                text_of(what) + ": field '" + text_of(name) + "' must be a string");
  }
  return value.get<std::string>();
}

std::uint64_t json_uint(const Json& object, std::string_view name, std::string_view what) {
  const Json& value = json_field(object, name, what);
  if (!value.is_number_unsigned()) {
    throw Error(ErrorCode::corrupt, text_of(what) + ": field '" + text_of(name) +
                                        "' must be an integer from 0 to 2^64 - 1");
  }
  return value.get<std::uint64_t>();
}

}  // namespace weightfs
