#include "store/parts/part_record.hpp"

#include <fmt/format.h>

#include <array>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/layout.hpp"
#include "store/format/manifest.hpp"
#include "store/format/version_fields.hpp"
#include "store/parts/part_set.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kPartFormat = 1;
constexpr std::array kPartFeatures = {kFeatureXr};

}  // namespace

Sha256 PartRecord::content() const {
  std::string both(as_text(layout.sha256));
  both += as_text(hashes.sha256);
  return sha256(as_bytes(both));
}

std::string PartRecord::serialize() const {
  Json json = {{"blobs", json_of(blobs)},
               {"format", kPartFormat},
               {"hashes", json_of(hashes)},
               {"key_id", ""},
               {"layout", json_of(layout)},
               {"meta", Json::object()},
               {"parent_sha256", to_hex(parent_sha256)},
               {"part", part},
               {"parts", parts},
               {"repository", repository},
               {"required_features", features},
               {"set", set},
               {"snapshot", snapshot},
               {"tag", tag},
               {"version", version}};
  for (const auto& [key, value] : meta) json["meta"][key] = value;
  if (delta) json["delta"] = json_of(*delta);
  try {
    json[kRecordHash] = to_hex(hash_of_record(json));
    json[kRecordSignature] = "";
    std::string bytes = json.dump();
    if (bytes.size() <= kPartRecordBytesMax) return bytes;
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid, "the version's metadata is not valid UTF-8");
  }
  throw Error(ErrorCode::invalid,
              fmt::format("the record of part {} would be larger than {} bytes: give it less "
                          "metadata, or fewer small files",
                          part, kPartRecordBytesMax));
}

PartRecord PartRecord::parse(std::string_view bytes, std::string_view what) {
  const VersionFieldReader reader(what);
  if (bytes.size() > kPartRecordBytesMax) {
    reader.fail(fmt::format("{} bytes are too large for the record of a part", bytes.size()));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json, kPartFormat);
  reader.check_canonical(json, bytes);
  if (!json.contains(kRecordHash)) reader.fail("it does not carry its own SHA-256");
  reader.check_own_hash(json);
  reader.check_features(json, kPartFeatures);
  PartRecord record;
  record.repository = reader.nonce(json, "repository");
  record.set = reader.nonce(json, "set");
  record.version = reader.number(json, "version", kVersionMax);
  record.part = static_cast<unsigned>(reader.number(json, "part", kPartsMax));
  record.parts = static_cast<unsigned>(reader.number(json, "parts", kPartsMax));
  record.parent_sha256 = reader.hash(json, "parent_sha256");
  record.tag = reader.tag(json);
  record.meta = reader.meta(json);
  record.layout = reader.object(json, "layout", kLayoutBytesMax);
  record.hashes = reader.object(json, "hashes", kHashesBytesMax);
  record.blobs = reader.blobs(json);
  if (json.contains("delta")) record.delta = reader.delta(json["delta"]);
  const Json& snapshot = json_field(json, "snapshot", what);
  if (!snapshot.is_boolean()) reader.fail("field 'snapshot' must be true or false");
  record.snapshot = snapshot.get<bool>();
  record.features = reader.features(json);
  static_cast<void>(json_string(json, "key_id", what));
  static_cast<void>(json_string(json, kRecordSignature, what));
  if (record.version == 0 || record.part == 0 || record.part > record.parts) {
    reader.fail(fmt::format("there is no part {} of {} of version {}", record.part, record.parts,
                            record.version));
  }
  if (!record.delta && !record.snapshot) reader.fail("it has neither a delta nor a snapshot");
  return record;
}

}  // namespace weightfs
