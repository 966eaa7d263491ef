#include "store/repository/gc_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/manifest.hpp"
#include "store/format/record_reader.hpp"
#include "store/repository/repository.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kRecordFormat = 1;
constexpr std::uint64_t kRecordTimeMax = 253'402'300'799;  // the end of the year 9999
constexpr std::size_t kPackDigitsMax = 9;
constexpr std::string_view kPackSuffix = ".safetensors";

Json json_of_ranges(const VersionRanges& set) {
  Json json = Json::array();
  for (const auto& [first, last] : set.ranges()) json.push_back({first, last});
  return json;
}

Json json_of_skips(const std::set<VersionPair>& skips) {
  Json json = Json::array();
  for (const VersionPair& skip : skips) json.push_back({skip.from, skip.to});
  return json;
}

Json json_of_needs(const NeededSkips& needs) {
  Json json = Json::array();
  for (const auto& [skip, sha256] : needs) json.push_back({skip.from, skip.to, to_hex(sha256)});
  return json;
}

bool is_decimal(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit) &&
         (text.front() != '0' || text.size() == 1);
}

std::string printable_key(std::string_view key) {
  std::string text(key.substr(0, 200));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text;
}

class GcRecordReader : public RecordReader {
 public:
  GcRecordReader(const Json& json, std::string_view what) : RecordReader(what), json_(json) {}

  [[nodiscard]] VersionRanges ranges(std::string_view name, std::uint64_t head) const {
    VersionRanges set;
    std::uint64_t free_from = 1;  // the lowest version that the next range may begin with
    for (const Json& range : array(json_, name)) {
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

  [[nodiscard]] std::set<VersionPair> skips(std::uint64_t head) const {
    std::set<VersionPair> skips;
    for (const Json& entry : array(json_, "skips")) {
      const VersionPair* const last = skips.empty() ? nullptr : &*skips.rbegin();
      skips.insert(skip(entry, 2, "skips", last, head));
    }
    return skips;
  }

  [[nodiscard]] NeededSkips needs(std::uint64_t head) const {
    NeededSkips needs;
    for (const Json& entry : array(json_, "needs")) {
      const VersionPair* const last = needs.empty() ? nullptr : &needs.rbegin()->first;
      const VersionPair versions = skip(entry, 3, "needs", last, head);
      Sha256 sha256{};
      if (!entry[2].is_string() || !from_hex(entry[2].get_ref<const std::string&>(), sha256)) {
        fail("field 'needs' must hold a SHA-256 for each skip delta");
      }
      needs.emplace(versions, sha256);
    }
    return needs;
  }

  [[nodiscard]] std::vector<std::string> keys(std::uint64_t head) const {
    std::vector<std::string> keys;
    for (const Json& entry : array(json_, "objects")) {
      if (!entry.is_string()) fail("field 'objects' must hold strings");
      std::string key = entry.get<std::string>();
      if (!may_name(key, head)) {
        fail(fmt::format("it names '{}', which no record may name", printable_key(key)));
      }
      if (!keys.empty() && keys.back() >= key) fail("its objects are not in order");
      keys.push_back(std::move(key));
    }
    return keys;
  }

 private:
  static bool may_name(std::string_view key, std::uint64_t head) {
    if (const auto skip = find_skip_key(key)) return skip->versions.to <= head;
    const auto place = find_version_key(key);
    return place && place->version <= head;
  }

  /// The versions of an entry, which has `size` parts and follows `last`.
  [[nodiscard]] VersionPair skip(const Json& entry, std::size_t size, std::string_view name,
                                 const VersionPair* last, std::uint64_t head) const {
    const bool has_versions = entry.is_array() && entry.size() == size &&
                              entry[0].is_number_unsigned() && entry[1].is_number_unsigned();
    if (!has_versions) fail(fmt::format("field '{}' must hold skip deltas", name));
    const VersionPair versions{entry[0].get<std::uint64_t>(), entry[1].get<std::uint64_t>()};
    const bool is_skip = versions.from != 0 && versions.to <= head && versions.from < versions.to &&
                         versions.to - versions.from >= 2;
    if (is_skip && (last == nullptr || *last < versions)) return versions;
    fail(
        fmt::format("field '{}' has the skip delta from {} to {}, in the wrong place or above "
                    "head {}",
                    name, versions.from, versions.to, head));
  }

  const Json& json_;
};

void check_record_form(const Json& json, std::string_view bytes, const RecordReader& reader) {
  reader.check_format(json, kRecordFormat);
  reader.check_canonical(json, bytes);
  if (!json.contains(kRecordHash)) reader.fail("it does not carry its own SHA-256");
  reader.check_own_hash(json);
  reader.check_features(json, {});
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
               {"needs", json_of_needs(needs)},
               {"nonce", nonce},
               {"number", number},
               {"objects", objects},
               {"previous_sha256", to_hex(previous_sha256)},
               {"repository", repository},
               {"required_features", Json::array()},
               {"skips", json_of_skips(skips)},
               {"snapshots", json_of_ranges(snapshots)},
               {"time", time},
               {"versions", json_of_ranges(versions)}};
  json[kRecordHash] = to_hex(hash_of_record(json));
  std::string bytes = json.dump();
  if (bytes.size() <= kGcRecordBytesMax) return bytes;
  throw Error(ErrorCode::invalid, "a record of retired objects is too large");
}

GcRecord GcRecord::parse(std::string_view bytes, std::string_view what) {
  const Json json = parse_json(bytes, what);
  const GcRecordReader reader(json, what);
  check_record_form(json, bytes, reader);
  GcRecord record;
  record.repository = json_string(json, "repository", what);
  record.number = reader.number(json, "number", kVersionMax);
  record.previous_sha256 = reader.hash(json, "previous_sha256");
  record.head = reader.number(json, "head", kVersionMax);
  record.time = static_cast<std::int64_t>(reader.number(json, "time", kRecordTimeMax));
  record.grace_s = reader.number(json, "grace", kGraceSecondsMax);
  record.deltas = reader.ranges("deltas", record.head);
  record.snapshots = reader.ranges("snapshots", record.head);
  record.skips = reader.skips(record.head);
  record.needs = reader.needs(record.head);
  record.versions = reader.ranges("versions", record.head);
  record.objects = reader.keys(record.head);
  record.nonce = reader.nonce(json, "nonce");
  if (record.versions.contains(record.head)) reader.fail("it retires the newest version");
  return record;
}

}  // namespace weightfs
