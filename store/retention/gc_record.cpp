#include "store/retention/gc_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/manifest.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kRecordFormat = 1;
constexpr std::uint64_t kRecordTimeMax = 253'402'300'799;  // the end of the year 9999
constexpr std::size_t kPackDigitsMax = 9;
constexpr std::string_view kRecordHash = "sha256", kPackSuffix = ".safetensors";

Json json_of_ranges(const VersionRanges& set) {
  Json json = Json::array();
  for (const auto& [first, last] : set.ranges()) json.push_back({first, last});
  return json;
}

Sha256 hash_without_itself(Json json) {
  json.erase(std::string(kRecordHash));
  return sha256(as_bytes(json.dump()));
}

bool is_decimal(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit) &&
         (text.front() != '0' || text.size() == 1);
}

/// Reads the fields of a record; messages name it.
struct RecordReader {
  const Json& json;
  std::string_view what;

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what, message));
  }

  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t most) const {
    const std::uint64_t value = json_uint(json, name, what);
    if (value > most) fail(fmt::format("field '{}' is {}, more than {}", name, value, most));
    return value;
  }

  [[nodiscard]] Sha256 hash(std::string_view name) const {
    Sha256 value{};
    if (!from_hex(json_string(json, name, what), value)) {
      fail(fmt::format("field '{}' must be a SHA-256", name));
    }
    return value;
  }

  [[nodiscard]] const Json& array(std::string_view name) const {
    const Json& value = json_field(json, name, what);
    if (!value.is_array()) fail(fmt::format("field '{}' must be an array", name));
    return value;
  }

  [[nodiscard]] VersionRanges ranges(std::string_view name, std::uint64_t head) const {
    VersionRanges set;
    std::uint64_t free_from = 1;  // the lowest version that the next range may begin with
    for (const Json& range : array(name)) {
      const bool is_pair = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                           range[1].is_number_unsigned();
      if (!is_pair) fail(fmt::format("field '{}' must hold pairs of versions", name));
      const auto first = range[0].get<std::uint64_t>(), last = range[1].get<std::uint64_t>();
      if (first < free_from || last < first || last > head) {
        fail(fmt::format("field '{}' has the range {} to {}, in the wrong place or above head {}",
                         name, first, last, head));
      }
      set.add({first, last});
      free_from = last + 2;
    }
    return set;
  }

  [[nodiscard]] std::vector<std::string> keys(std::uint64_t head) const {
    std::vector<std::string> keys;
    for (const Json& entry : array("objects")) {
      if (!entry.is_string()) fail("field 'objects' must hold strings");
      std::string key = entry.get<std::string>();
      const auto place = find_version_key(key);
      if (!place || place->version > head) {
        fail(fmt::format("it names '{}', which no record may name", printable_key(key)));
      }
      if (!keys.empty() && keys.back() >= key) fail("its objects are not in order");
      keys.push_back(std::move(key));
    }
    return keys;
  }

  static std::string printable_key(std::string_view key) {
    std::string text(key.substr(0, 200));
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
    }
    return text;
  }
};

void check_record_form(const Json& json, std::string_view bytes, std::string_view what) {
  const std::uint64_t format = json_uint(json, "format", what);
  const Json& features = json_field(json, "required_features", what);
  const bool is_newer = format > kRecordFormat || (features.is_array() && !features.empty());
  if (is_newer) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: it was written by a newer weightfs; update this one", what));
  }
  if (format == 0 || !features.is_array() || json.dump() != bytes) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: the JSON is not in canonical form", what));
  }
}

}  // namespace

std::optional<VersionKey> find_version_key(std::string_view key) {
  VersionKey found;
  std::string_view rest;
  if (key.starts_with(keys::kPacks)) {
    found.kind = VersionKey::Kind::pack;
    rest = key.substr(keys::kPacks.size());
  } else if (key.starts_with(keys::kSnapshots)) {
    found.kind = VersionKey::Kind::snapshot;
    rest = key.substr(keys::kSnapshots.size());
  } else {
    return std::nullopt;
  }
  const std::size_t slash = rest.find('/');
  const std::string_view number = rest.substr(0, slash);
  if (slash == rest.npos || !is_decimal(number)) return std::nullopt;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), found.version);
  if (parsed.ec != std::errc() || found.version == 0 || found.version > kVersionMax) {
    return std::nullopt;
  }
  rest.remove_prefix(slash + 1);
  found.name = rest.substr(0, kNonceDigits);
  if (!is_nonce(found.name)) return std::nullopt;
  if (found.kind == VersionKey::Kind::snapshot) {
    if (rest.size() < kNonceDigits + 2 || rest[kNonceDigits] != '/') return std::nullopt;
    const std::string_view path = rest.substr(kNonceDigits + 1);
    found.is_hashes = path == ".hashes";
    if (!found.is_hashes && !path_problem(path).empty()) return std::nullopt;
    return found;
  }
  if (!rest.ends_with(kPackSuffix) || rest[kNonceDigits] != '-') return std::nullopt;
  found.name = rest.substr(0, rest.size() - kPackSuffix.size());
  const std::string_view k = found.name.substr(std::min(found.name.size(), kNonceDigits + 1));
  if (!is_decimal(k) || k.size() > kPackDigitsMax) return std::nullopt;
  return found;
}

std::string GcRecord::serialize() const {
  Json json = {{"deltas", json_of_ranges(deltas)},
               {"format", kRecordFormat},
               {"grace", grace_s},
               {"head", head},
               {"nonce", nonce},
               {"number", number},
               {"objects", objects},
               {"previous_sha256", to_hex(previous_sha256)},
               {"repository", repository},
               {"required_features", Json::array()},
               {"snapshots", json_of_ranges(snapshots)},
               {"time", time},
               {"versions", json_of_ranges(versions)}};
  json[std::string(kRecordHash)] = to_hex(hash_without_itself(json));
  std::string bytes = json.dump();
  if (bytes.size() <= kGcRecordBytesMax) return bytes;
  throw Error(ErrorCode::invalid, "a record of retired objects is too large");
}

GcRecord GcRecord::parse(std::string_view bytes, std::string_view what) {
  const Json json = parse_json(bytes, what);
  check_record_form(json, bytes, what);
  const RecordReader reader{json, what};
  if (reader.hash(kRecordHash) != hash_without_itself(json)) {
    reader.fail("its fields do not match the SHA-256 that it declares: it is damaged");
  }
  GcRecord record;
  record.repository = json_string(json, "repository", what);
  record.number = reader.number("number", kVersionMax);
  record.previous_sha256 = reader.hash("previous_sha256");
  record.head = reader.number("head", kVersionMax);
  record.time = static_cast<std::int64_t>(reader.number("time", kRecordTimeMax));
  record.grace_s = reader.number("grace", kGraceSecondsMax);
  record.deltas = reader.ranges("deltas", record.head);
  record.snapshots = reader.ranges("snapshots", record.head);
  record.versions = reader.ranges("versions", record.head);
  record.objects = reader.keys(record.head);
  record.nonce = json_string(json, "nonce", what);
  if (!is_nonce(record.nonce)) reader.fail("field 'nonce' must be 32 hex digits");
  if (record.versions.contains(record.head)) reader.fail("it retires the newest version");
  return record;
}

}  // namespace weightfs
