#include "store/format/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/format/pack.hpp"
#include "store/format/record_reader.hpp"
#include "store/format/version_fields.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kManifestFormat = 1;
// All features that this release knows.
constexpr std::array kFeatures = {kFeatureHubBase, kFeatureManifestSha256, kFeatureXr};

/// End of the year 9999, which every file system and calendar can show.
constexpr std::uint64_t kTimeMax = 253'402'300'799;

/// Reads the fields that only manifests have.
class ManifestReader : public VersionFieldReader {
 public:
  using VersionFieldReader::VersionFieldReader;

  [[nodiscard]] SnapshotRef snapshot(const Json& json) const;
  void check_history(const Manifest& manifest) const;
};

SnapshotRef ManifestReader::snapshot(const Json& json) const {
  SnapshotRef snapshot{nonce(json, "nonce"), object(json, "hashes", kHashesBytesMax)};
  if (json.contains("base")) {
    const std::string base = json_string(json, "base", what());
    snapshot.base = HubBase::parse(base);
    if (!snapshot.base) {
      fail(fmt::format("the base '{}' of its snapshot is not {}", escape_name(base), kHubBaseForm));
    }
  }
  return snapshot;
}

void ManifestReader::check_history(const Manifest& manifest) const {
  if (manifest.version == 0) fail("version 0 does not exist");
  if (manifest.parent != manifest.version - 1) {
    fail(fmt::format("the parent of version {} must be {}, not {}", manifest.version,
                     manifest.version - 1, manifest.parent));
  }
  if (manifest.version == 1 && manifest.parent_sha256 != Sha256{}) {
    fail("version 1 has no parent, so parent_sha256 must be zeros");
  }
  if (manifest.version == 1 && manifest.delta) fail("version 1 has no parent, so no delta");
  if (manifest.version == 1 && !manifest.snapshot) fail("version 1 must have a snapshot");
  if (!manifest.delta && !manifest.snapshot) fail("it has neither a delta nor a snapshot");
  if (manifest.snapshot_before.value_or(0) >= manifest.version) {
    fail(fmt::format("version {} is not before version {}", *manifest.snapshot_before,
                     manifest.version));
  }
}

}  // namespace

std::string Manifest::serialize() const {
  Json json = {{"blobs", json_of(blobs)},
               {"format", kManifestFormat},
               {"key_id", key_id},
               {"layout", json_of(layout)},
               {"meta", Json::object()},
               {"nonce", nonce},
               {"parent", parent},
               {"parent_sha256", to_hex(parent_sha256)},
               {"repository", repository},
               {"required_features", features},
               {"root", to_hex(root)},
               {"tag", tag},
               {"time", time},
               {"version", version}};
  for (const auto& [key, value] : meta) json["meta"][key] = value;
  if (delta) json["delta"] = json_of(*delta);
  if (snapshot) {
    json["snapshot"] = {{"hashes", json_of(snapshot->hashes)}, {"nonce", snapshot->nonce}};
    if (snapshot->base) json["snapshot"]["base"] = snapshot->base->text();
  }
  if (snapshot_before) json["snapshot_before"] = *snapshot_before;
  try {
    if (carries_hash()) json[kRecordHash] = to_hex(hash_of_record(json));
    json[kRecordSignature] = signature;
    std::string bytes = json.dump();
    if (bytes.size() <= kManifestBytesMax) return bytes;
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid, "the version's metadata is not valid UTF-8");
  }
  throw Error(ErrorCode::invalid,
              fmt::format("the manifest of the version would be larger than {} bytes: give it less "
                          "metadata, or fewer small files",
                          kManifestBytesMax));
}

bool Manifest::carries_hash() const { return has_feature(kFeatureManifestSha256); }

bool Manifest::has_feature(std::string_view feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

void Manifest::add_feature(std::string_view feature) {
  const auto place = std::lower_bound(features.begin(), features.end(), feature);
  if (place == features.end() || *place != feature) features.emplace(place, feature);
}

Manifest Manifest::parse(std::string_view bytes, std::string_view what) {
  const ManifestReader reader(what);
  if (bytes.size() > kManifestBytesMax) {
    reader.fail(fmt::format("{} bytes are too large for a manifest", bytes.size()));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json, kManifestFormat);
  reader.check_canonical(json, bytes);
  reader.check_own_hash(json);
  reader.check_features(json, kFeatures);
  Manifest manifest;
  manifest.repository = reader.nonce(json, "repository");
  manifest.version = reader.number(json, "version", kVersionMax);
  manifest.parent = reader.number(json, "parent", kVersionMax);
  manifest.parent_sha256 = reader.hash(json, "parent_sha256");
  manifest.time = static_cast<std::int64_t>(reader.number(json, "time", kTimeMax));
  manifest.tag = reader.tag(json);
  manifest.meta = reader.meta(json);
  manifest.layout = reader.object(json, "layout", kLayoutBytesMax);
  manifest.blobs = reader.blobs(json);
  manifest.root = reader.hash(json, "root");
  if (json.contains("delta")) manifest.delta = reader.delta(json["delta"]);
  if (json.contains("snapshot")) manifest.snapshot = reader.snapshot(json["snapshot"]);
  if (json.contains("snapshot_before")) {
    manifest.snapshot_before = reader.number(json, "snapshot_before", kVersionMax);
  }
  manifest.nonce = reader.nonce(json, "nonce");
  manifest.features = reader.features(json);
  if (manifest.carries_hash() != json.contains(kRecordHash)) {
    reader.fail(fmt::format("it must have both the field '{}' and the feature '{}', or neither",
                            kRecordHash, kFeatureManifestSha256));
  }
  const bool has_base = manifest.snapshot && manifest.snapshot->base;
  if (manifest.has_feature(kFeatureHubBase) != has_base) {
    reader.fail(
        fmt::format("it must have both a base of its snapshot and the feature '{}', or "
                    "neither",
                    kFeatureHubBase));
  }
  manifest.key_id = json_string(json, "key_id", what);
  manifest.signature = json_string(json, "signature", what);
  reader.check_history(manifest);
  return manifest;
}

Sha256 root_of(std::span<const std::uint64_t> chunk_hashes) {
  constexpr std::size_t kHashesAtOnce = 8192;
  Sha256Stream stream;
  std::string bytes;
  while (!chunk_hashes.empty()) {
    const auto part = chunk_hashes.first(std::min(chunk_hashes.size(), kHashesAtOnce));
    bytes.clear();
    for (const std::uint64_t hash : part) append_le(bytes, hash);
    stream.update(as_bytes(bytes));
    chunk_hashes = chunk_hashes.subspan(part.size());
  }
  return stream.finish();
}

}  // namespace weightfs
