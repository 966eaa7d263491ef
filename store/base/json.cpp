#include "store/base/json.hpp"

#include <set>
#include <utility>
#include <vector>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kJsonDepthMax = 32;

std::string text_of(std::string_view what) { return std::string(what); }

/// Parses a text as events, to reject what the library's tree would hide (it keeps the last of two
/// equal keys, so that one text has two readings), and excessive depth. The library can check this
/// while it builds the tree, but then takes quadratic time.
class StrictReader {
 public:
  explicit StrictReader(std::string_view what) : what_(what) {}

  // The events of Json::sax_parse.
  bool null() { return true; }
  bool boolean(bool /*value*/) { return true; }
  bool number_integer(Json::number_integer_t /*value*/) { return true; }
  bool number_unsigned(Json::number_unsigned_t /*value*/) { return true; }
  bool number_float(Json::number_float_t /*value*/, const std::string& /*text*/) { return true; }
  bool string(std::string& /*value*/) { return true; }
  bool binary(Json::binary_t& /*value*/) { return true; }
  bool start_object(std::size_t /*elements*/) { return open(); }
  bool end_object() { return close(); }
  bool start_array(std::size_t /*elements*/) { return open(); }
  bool end_array() { return close(); }
  bool key(std::string& key) {
    const auto [place, is_new] = keys_.back().insert(std::move(key));
    if (!is_new) fail("has the key '" + *place + "' twice");
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& /*error*/) {
    // Not the library's message, because it quotes the text, which may be invalid UTF-8.
    fail("is not valid JSON: byte " + std::to_string(position));
  }

 private:
  bool open() {
    if (keys_.size() == kJsonDepthMax) {
      fail("is nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorCode::corrupt, text_of(what_) + " " + problem);
  }

  std::string_view what_;
  std::vector<std::set<std::string>> keys_;  // of each open object; empty for arrays
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  // The library would take a NUL for the end of the text, and skip a byte order mark.
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF")) {
    throw Error(ErrorCode::corrupt,
                text_of(what) + " is not valid JSON: it holds a NUL or a byte order mark");
  }
  try {
    StrictReader reader(what);
    Json::sax_parse(text, &reader);
    return Json::parse(text);
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
