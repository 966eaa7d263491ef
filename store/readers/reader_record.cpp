#include "store/readers/reader_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "store/base/json.hpp"
#include "store/format/manifest.hpp"
#include "store/format/record_reader.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kReaderFormat = 1;
constexpr std::size_t kTextBytesMax = 1'024;  // of a string that is read
// Of strings that are written: 64 engines and their escapes stay below the limit of the record.
constexpr std::size_t kPlaceBytes = 1'000;
constexpr std::size_t kWordBytes = 64;
constexpr std::size_t kNameBytes = 256;
constexpr std::uint64_t kReaderTimeMax = 253'402'300'799;  // the end of the year 9999
constexpr std::uint64_t kPidMax = 1u << 31;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

/// Cut between characters of UTF-8, without control characters.
std::string text_to_write(std::string text, std::size_t most) {
  if (text.size() > most) {
    while (most > 0 && (text[most] & 0xC0) == 0x80) most--;
    text.resize(most);
  }
  std::ranges::replace_if(text, is_control, '?');
  return text;
}

class ReaderReader : public RecordReader {
 public:
  using RecordReader::RecordReader;

  [[nodiscard]] std::string text(const Json& json, std::string_view name) const {
    std::string text = json_string(json, name, what());
    if (text.size() > kTextBytesMax) {
      fail(fmt::format("field '{}' has {} bytes, more than {}", name, text.size(), kTextBytesMax));
    }
    if (std::ranges::any_of(text, is_control)) {
      fail(fmt::format("field '{}' has control characters", name));
    }
    return text;
  }

  [[nodiscard]] bool yes(const Json& json, std::string_view name) const {
    const Json& value = json_field(json, name, what());
    if (!value.is_boolean()) fail(fmt::format("field '{}' must be true or false", name));
    return value.get<bool>();
  }

  [[nodiscard]] std::vector<ReaderEngine> engines(const Json& json) const {
    const Json& all = array(json, "engines");
    if (all.size() > kReaderEnginesMax) {
      fail(fmt::format("it has {} engines, more than {}", all.size(), kReaderEnginesMax));
    }
    std::vector<ReaderEngine> engines;
    for (const Json& one : all) {
      engines.push_back(
          {text(one, "name"), text(one, "state"), number(one, "version", kVersionMax)});
    }
    return engines;
  }
};

}  // namespace

std::string ReaderRecord::serialize() const {
  Json list = Json::array();
  for (const ReaderEngine& engine : engines) {
    if (list.size() == kReaderEnginesMax) break;
    list.push_back({{"name", text_to_write(engine.name, kNameBytes)},
                    {"state", text_to_write(engine.state, kWordBytes)},
                    {"version", engine.version}});
  }
  const Json json{{"engines", std::move(list)},
                  {"every", std::clamp<std::uint64_t>(every_s, 1, kReaderEveryMax)},
                  {"follow", text_to_write(follow, kNameBytes)},
                  {"format", kReaderFormat},
                  {"health", text_to_write(health, kWordBytes)},
                  {"host", text_to_write(host, kNameBytes)},
                  {"id", id},
                  {"lag_seconds", lag_seconds},
                  {"lag_versions", lag_versions},
                  {"left", has_left},
                  {"newest", newest},
                  {"pid", pid},
                  {"place", text_to_write(place, kPlaceBytes)},
                  {"repository", repository},
                  {"since", since},
                  {"time", time},
                  {"version", version},
                  {"whole", is_whole}};
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore);
}

ReaderRecord ReaderRecord::parse(std::string_view bytes, std::string_view what) {
  const ReaderReader reader(what);
  if (bytes.size() > kReaderBytesMax) {
    reader.fail(fmt::format("it has {} bytes, more than {}", bytes.size(), kReaderBytesMax));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json, kReaderFormat);
  ReaderRecord record;
  record.id = reader.nonce(json, "id");
  record.repository = reader.nonce(json, "repository");
  record.host = reader.text(json, "host");
  record.place = reader.text(json, "place");
  record.pid = reader.number(json, "pid", kPidMax);
  record.follow = reader.text(json, "follow");
  record.version = reader.number(json, "version", kVersionMax);
  record.newest = reader.number(json, "newest", kVersionMax);
  record.is_whole = reader.yes(json, "whole");
  record.lag_versions = reader.number(json, "lag_versions", kVersionMax);
  record.lag_seconds = reader.number(json, "lag_seconds", kReaderTimeMax);
  record.health = reader.text(json, "health");
  record.engines = reader.engines(json);
  record.since = reader.number(json, "since", kReaderTimeMax);
  record.time = reader.number(json, "time", kReaderTimeMax);
  record.every_s = reader.number(json, "every", kReaderEveryMax);
  if (record.every_s == 0) reader.fail("field 'every' must be at least 1");
  record.has_left = reader.yes(json, "left");
  return record;
}

}  // namespace weightfs
