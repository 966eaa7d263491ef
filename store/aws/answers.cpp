#include "store/aws/answers.hpp"

#include <algorithm>
#include <ctime>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/http/reply_checks.hpp"

namespace weightfs {
namespace {

// Reads digits from the front of a text; a failure is remembered.
class TimeReader {
 public:
  explicit TimeReader(std::string_view text) : rest_(text) {}

  int number(std::size_t digits, int least, int most) {
    int value = 0;
    for (std::size_t i = 0; i < digits; i++) {
      const char c = i < rest_.size() ? rest_[i] : 'x';
      if (c < '0' || c > '9') good_ = false;
      value = value * 10 + (c - '0');
    }
    rest_.remove_prefix(std::min(digits, rest_.size()));
    if (value < least || value > most) good_ = false;
    return value;
  }
  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) good_ = false;
  }
  void skip_digits() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of("0123456789"), rest_.size()));
  }
  [[nodiscard]] bool is_done() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// The offset of a time zone from UTC, in seconds.
int read_zone(TimeReader& reader) {
  if (reader.take('Z')) return 0;
  const bool behind = reader.take('-');
  if (!behind) reader.expect('+');
  const int hours = reader.number(2, 0, 23);
  reader.take(':');
  const int minutes = reader.number(2, 0, 59);
  return (behind ? -1 : 1) * (hours * 3600 + minutes * 60);
}

std::string optional_text(const Json& object, std::string_view name, const std::string& what) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  return json_string(object, name, what);
}

}  // namespace

std::optional<std::chrono::system_clock::time_point> parse_iso_time(std::string_view text) {
  TimeReader reader(text);
  std::tm parts{};
  parts.tm_year = reader.number(4, 1970, 9999) - 1900;
  reader.expect('-');
  parts.tm_mon = reader.number(2, 1, 12) - 1;
  reader.expect('-');
  parts.tm_mday = reader.number(2, 1, 31);
  if (!reader.take(' ')) reader.expect('T');
  parts.tm_hour = reader.number(2, 0, 23);
  reader.expect(':');
  parts.tm_min = reader.number(2, 0, 59);
  reader.expect(':');
  parts.tm_sec = reader.number(2, 0, 60);
  if (reader.take('.')) reader.skip_digits();
  const int zone_seconds = read_zone(reader);
  if (!reader.is_done()) return std::nullopt;
  // Dates such as the year 9999: time_point counts nanoseconds and ends in 2262.
  if (parts.tm_year > 300) return std::chrono::system_clock::time_point::max();
  return std::chrono::system_clock::from_time_t(timegm(&parts) - zone_seconds);
}

std::chrono::system_clock::time_point get_iso_time(std::string_view text, std::string_view what) {
  const auto time = parse_iso_time(text);
  if (time) return *time;
  throw Error(ErrorCode::invalid,
              std::string(what) + " is not a time: expected one such as 2026-01-31T12:00:00Z");
}

AwsCredentials parse_json_keys(std::string_view json, std::string_view token_field,
                               const std::string& source) {
  AwsCredentials keys;
  keys.source = source;
  try {
    const Json object = parse_json(json, "the answer");
    keys.access_key_id = json_string(object, "AccessKeyId", "the answer");
    keys.secret_access_key = json_string(object, "SecretAccessKey", "the answer");
    keys.session_token = optional_text(object, token_field, "the answer");
    const std::string expiration = optional_text(object, "Expiration", "the answer");
    if (!expiration.empty()) keys.expires = get_iso_time(expiration, "the answer's Expiration");
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid, error.what()).within(source);
  }
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) {
    throw Error(ErrorCode::invalid, source + ": the answer has an empty key");
  }
  return keys;
}

std::string find_json_refusal(std::string_view json) {
  try {
    const Json object = parse_json(json, "the answer");
    const std::string code = json_string(object, "Code", "the answer");
    return printable(code + ": " + optional_text(object, "Message", "the answer"));
  } catch (const Error&) {
    return "";
  }
}

std::string shown_key_id(std::string_view access_key_id) {
  if (access_key_id.size() < 8) return "...";
  return "..." + std::string(access_key_id.substr(access_key_id.size() - 4));
}

}  // namespace weightfs
