#include "store/format/record_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "store/base/bytes.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/layout.hpp"
#include "store/format/pack.hpp"

namespace weightfs {
Sha256 hash_of_record(Json json) {
  json.erase(kRecordHash);
  json.erase(kRecordSignature);
  return sha256(as_bytes(json.dump()));
}

Json json_of(const ObjectRef& object) {
  return {{"sha256", to_hex(object.sha256)}, {"size", object.size_bytes}};
}

Json json_of(const DeltaRef& delta) {
  Json packs = Json::array();
  for (const PackRef& pack : delta.packs) {
    packs.push_back({{"head", pack.head_bytes},
                     {"head_sha256", to_hex(pack.head_sha256)},
                     {"name", pack.name},
                     {"size", pack.size_bytes}});
  }
  return {{"changed", delta.changed_elements}, {"packs", std::move(packs)}};
}

void RecordReader::check_format(const Json& json, std::uint64_t newest) const {
  const std::uint64_t format = json_uint(json, "format", what_);
  if (format == 0) fail("format 0 does not exist");
  if (format > newest) {
    fail(fmt::format("format {} is newer than {}, the newest that this weightfs reads; update it",
                     format, newest),
         ErrorCode::unsupported);
  }
}

void RecordReader::check_canonical(const Json& json, std::string_view bytes) const {
  if (json.dump() != bytes) fail("the JSON is not in canonical form");
}

void RecordReader::check_own_hash(const Json& json) const {
  if (!json.contains(kRecordHash)) return;
  const Sha256 said = hash(json, kRecordHash);
  const Sha256 found = hash_of_record(json);
  if (found == said) return;
  fail(fmt::format("its fields have the SHA-256 {}, but it declares {}: it is damaged",
                   to_hex(found), to_hex(said)));
}

void RecordReader::check_features(const Json& json, std::span<const std::string_view> known) const {
  for (const Json& feature : array(json, "required_features")) {
    if (!feature.is_string()) fail("field 'required_features' must hold strings");
    const auto& name = feature.get_ref<const std::string&>();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail(fmt::format("needs the feature '{}', which this weightfs does not know; update it",
                     escape_name(name)),
         ErrorCode::unsupported);
  }
}

std::uint64_t RecordReader::number(const Json& object, std::string_view name,
                                   std::uint64_t most) const {
  const std::uint64_t value = json_uint(object, name, what_);
  if (value > most) fail(fmt::format("field '{}' is {}, more than {}", name, value, most));
  return value;
}

std::string RecordReader::nonce(const Json& object, std::string_view name) const {
  std::string text = json_string(object, name, what_);
  if (!is_nonce(text)) {
    fail(fmt::format("field '{}' must be {} lower-case hex digits", name, kNonceDigits));
  }
  return text;
}

Sha256 RecordReader::hash(const Json& object, std::string_view name) const {
  Sha256 hash{};
  if (!from_hex(json_string(object, name, what_), hash)) {
    fail(fmt::format("field '{}' must be a SHA-256: 64 lower-case hex digits", name));
  }
  return hash;
}

const Json& RecordReader::array(const Json& object, std::string_view name) const {
  const Json& value = json_field(object, name, what_);
  if (!value.is_array()) fail(fmt::format("field '{}' must be an array", name));
  return value;
}

std::vector<std::string> RecordReader::features(const Json& json) const {
  std::vector<std::string> features;
  for (const Json& entry : array(json, "required_features")) {
    features.push_back(entry.get<std::string>());
    if (features.size() < 2 || features[features.size() - 2] < features.back()) continue;
    fail(fmt::format("the feature '{}' does not come after '{}'", escape_name(features.back()),
                     escape_name(features[features.size() - 2])));
  }
  return features;
}

ObjectRef RecordReader::object(const Json& parent, std::string_view name,
                               std::uint64_t most) const {
  const Json& value = json_field(parent, name, what_);
  return {number(value, "size", most), hash(value, "sha256")};
}

PackRef RecordReader::pack(const Json& json) const {
  PackRef pack;
  pack.name = json_string(json, "name", what_);
  if (!is_pack_name(pack.name)) {
    fail(fmt::format("'{}' is not the name of a pack", escape_name(pack.name)));
  }
  pack.size_bytes = number(json, "size", kPackBytesMax - 1);
  pack.head_bytes = number(json, "head", pack.size_bytes);
  pack.head_sha256 = hash(json, "head_sha256");
  return pack;
}

DeltaRef RecordReader::delta(const Json& json) const {
  DeltaRef delta;
  delta.changed_elements = number(json, "changed", kVersionBytesMax);
  std::set<std::string_view> names;
  const Json& packs = array(json, "packs");
  delta.packs.reserve(packs.size());
  for (const Json& entry : packs) {
    delta.packs.push_back(pack(entry));
    if (!names.insert(delta.packs.back().name).second) {
      fail(fmt::format("the pack {} occurs twice", delta.packs.back().name));
    }
  }
  return delta;
}

void RecordReader::fail(const std::string& message, ErrorCode code) const {
  throw Error(code, fmt::format("{}: {}", what_, message));
}

}  // namespace weightfs
