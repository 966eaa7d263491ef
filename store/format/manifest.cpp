#include "store/format/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/format/pack.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kManifestFormat = 1;
// All features that this release knows.
constexpr std::array kFeatures = {kFeatureManifestSha256, kFeatureXr};
constexpr std::size_t kPackNumberDigitsMax = 9;

/// End of the year 9999, which every file system and calendar can show.
constexpr std::uint64_t kTimeMax = 253'402'300'799;

constexpr const char* kOwnHash = "sha256";
constexpr const char* kSignature = "signature";

std::string hex_of(const Sha256& hash) { return to_hex(hash); }

/// The hash of a manifest's canonical bytes without hash and signature.
Sha256 own_hash(Json json) {
  json.erase(kOwnHash);
  json.erase(kSignature);
  return sha256(as_bytes(json.dump()));
}

Json json_of(const ObjectRef& object) {
  return {{"sha256", hex_of(object.sha256)}, {"size", object.size_bytes}};
}

Json json_of(const std::vector<BlobRef>& blobs) {
  Json all = Json::array();
  for (const BlobRef& blob : blobs) {
    all.push_back(
        {{"path", blob.path}, {"sha256", hex_of(blob.sha256)}, {"size", blob.size_bytes}});
  }
  return all;
}

Json json_of(const DeltaRef& delta) {
  Json packs = Json::array();
  for (const PackRef& pack : delta.packs) {
    packs.push_back({{"head", pack.head_bytes},
                     {"head_sha256", hex_of(pack.head_sha256)},
                     {"name", pack.name},
                     {"size", pack.size_bytes}});
  }
  return {{"changed", delta.changed_elements}, {"packs", std::move(packs)}};
}

/// Reads fields of a parsed manifest; messages name the manifest and the field.
class Reader {
 public:
  explicit Reader(std::string_view what) : what_(what) {}

  void check_format(const Json& json) const;
  void check_features(const Json& json) const;
  void check_own_hash(const Json& json) const;
  [[nodiscard]] std::uint64_t number(const Json& object, std::string_view name,
                                     std::uint64_t most) const;
  [[nodiscard]] std::string nonce(const Json& object, std::string_view name) const;
  [[nodiscard]] Sha256 hash(const Json& object, std::string_view name) const;
  [[nodiscard]] const Json& array(const Json& object, std::string_view name) const;
  [[nodiscard]] std::vector<std::string> features(const Json& json) const;
  [[nodiscard]] ObjectRef object(const Json& parent, std::string_view name,
                                 std::uint64_t most) const;
  [[nodiscard]] std::map<std::string, std::string> meta(const Json& json) const;
  [[nodiscard]] std::string tag(const Json& json) const;
  [[nodiscard]] std::vector<BlobRef> blobs(const Json& json) const;
  [[nodiscard]] PackRef pack(const Json& json) const;
  [[nodiscard]] DeltaRef delta(const Json& json) const;
  [[nodiscard]] SnapshotRef snapshot(const Json& json) const;
  void check_history(const Manifest& manifest) const;

  [[noreturn]] void fail(const std::string& message, ErrorCode code = ErrorCode::corrupt) const {
    throw Error(code, fmt::format("{}: {}", what_, message));
  }

 private:
  std::string_view what_;
};

/// First: the other fields may have another meaning in a newer format.
void Reader::check_format(const Json& json) const {
  const std::uint64_t format = json_uint(json, "format", what_);
  if (format == 0) fail("format 0 does not exist");
  if (format > kManifestFormat) {
    fail(fmt::format("format {} is newer than {}, the newest that this weightfs reads; update it",
                     format, kManifestFormat),
         ErrorCode::unsupported);
  }
}

void Reader::check_features(const Json& json) const {
  for (const Json& feature : array(json, "required_features")) {
    if (!feature.is_string()) fail("field 'required_features' must hold strings");
    const auto& name = feature.get_ref<const std::string&>();
    if (std::find(kFeatures.begin(), kFeatures.end(), name) != kFeatures.end()) continue;
    fail(fmt::format("needs the feature '{}', which this weightfs does not know; update it",
                     escape_name(name)),
         ErrorCode::unsupported);
  }
}

/// Second, so that a damaged feature name is reported as damage.
void Reader::check_own_hash(const Json& json) const {
  if (!json.contains(kOwnHash)) return;
  const Sha256 said = hash(json, kOwnHash);
  const Sha256 found = own_hash(json);
  if (found == said) return;
  fail(fmt::format("its fields have the SHA-256 {}, but it declares {}: it is damaged",
                   hex_of(found), hex_of(said)));
}

std::uint64_t Reader::number(const Json& object, std::string_view name, std::uint64_t most) const {
  const std::uint64_t value = json_uint(object, name, what_);
  if (value > most) fail(fmt::format("field '{}' is {}, more than {}", name, value, most));
  return value;
}

std::string Reader::nonce(const Json& object, std::string_view name) const {
  std::string text = json_string(object, name, what_);
  if (!is_nonce(text)) {
    fail(fmt::format("field '{}' must be {} lower-case hex digits", name, kNonceDigits));
  }
  return text;
}

Sha256 Reader::hash(const Json& object, std::string_view name) const {
  Sha256 hash{};
  if (!from_hex(json_string(object, name, what_), hash)) {
    fail(fmt::format("field '{}' must be a SHA-256: 64 lower-case hex digits", name));
  }
  return hash;
}

const Json& Reader::array(const Json& object, std::string_view name) const {
  const Json& value = json_field(object, name, what_);
  if (!value.is_array()) fail(fmt::format("field '{}' must be an array", name));
  return value;
}

std::vector<std::string> Reader::features(const Json& json) const {
  std::vector<std::string> features;
  for (const Json& entry : array(json, "required_features")) {
    features.push_back(entry.get<std::string>());
    if (features.size() < 2 || features[features.size() - 2] < features.back()) continue;
    fail(fmt::format("the feature '{}' occurs twice", escape_name(features.back())));
  }
  return features;
}

ObjectRef Reader::object(const Json& parent, std::string_view name, std::uint64_t most) const {
  const Json& value = json_field(parent, name, what_);
  return {number(value, "size", most), hash(value, "sha256")};
}

std::map<std::string, std::string> Reader::meta(const Json& json) const {
  const Json& value = json_field(json, "meta", what_);
  if (!value.is_object()) fail("field 'meta' must be an object of strings");
  std::map<std::string, std::string> meta;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail(fmt::format("field 'meta': the value of '{}' must be a string", escape_name(key)));
    }
    meta.emplace(key, text.get<std::string>());
  }
  return meta;
}

std::string Reader::tag(const Json& json) const {
  std::string tag = json_string(json, "tag", what_);
  if (tag.empty()) return tag;
  if (const std::string problem = tag_problem(tag); !problem.empty()) {
    fail(fmt::format("the tag '{}' {}", escape_name(tag), problem));
  }
  return tag;
}

std::vector<BlobRef> Reader::blobs(const Json& json) const {
  std::vector<BlobRef> blobs;
  for (const Json& entry : array(json, "blobs")) {
    BlobRef blob{json_string(entry, "path", what_), number(entry, "size", kBlobBytesMax),
                 hash(entry, "sha256")};
    if (const std::string problem = path_problem(blob.path); !problem.empty()) {
      fail(fmt::format("the path '{}' {}", escape_name(blob.path), problem));
    }
    if (!blobs.empty() && blobs.back().path >= blob.path) {
      fail(fmt::format("the path '{}' does not come after '{}'", blob.path, blobs.back().path));
    }
    blobs.push_back(std::move(blob));
  }
  if (blobs.size() > kVersionFilesMax) fail(fmt::format("too many blobs: {}", blobs.size()));
  std::vector<std::string_view> paths;
  for (const BlobRef& blob : blobs) paths.push_back(blob.path);
  if (const std::string problem = paths_problem(paths); !problem.empty()) fail(problem);
  return blobs;
}

/// "<nonce>-<k>": the name becomes part of a key.
bool is_pack_name(std::string_view name) {
  if (name.size() < kNonceDigits + 2 || name[kNonceDigits] != '-') return false;
  const std::string_view number = name.substr(kNonceDigits + 1);
  const bool is_decimal = std::all_of(number.begin(), number.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
  return is_nonce(name.substr(0, kNonceDigits)) && is_decimal &&
         number.size() <= kPackNumberDigitsMax && (number.front() != '0' || number.size() == 1);
}

PackRef Reader::pack(const Json& json) const {
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

DeltaRef Reader::delta(const Json& json) const {
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

SnapshotRef Reader::snapshot(const Json& json) const {
  return {nonce(json, "nonce"), object(json, "hashes", kHashesBytesMax)};
}

void Reader::check_history(const Manifest& manifest) const {
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
}

}  // namespace

bool is_nonce(std::string_view text) noexcept {
  std::array<std::byte, kNonceDigits / 2> bytes{};
  return from_hex(text, bytes);
}

std::string Manifest::serialize() const {
  Json json = {{"blobs", json_of(blobs)},
               {"format", kManifestFormat},
               {"key_id", key_id},
               {"layout", json_of(layout)},
               {"meta", Json::object()},
               {"nonce", nonce},
               {"parent", parent},
               {"parent_sha256", hex_of(parent_sha256)},
               {"repository", repository},
               {"required_features", features},
               {"root", hex_of(root)},
               {"tag", tag},
               {"time", time},
               {"version", version}};
  for (const auto& [key, value] : meta) json["meta"][key] = value;
  if (delta) json["delta"] = json_of(*delta);
  if (snapshot) {
    json["snapshot"] = {{"hashes", json_of(snapshot->hashes)}, {"nonce", snapshot->nonce}};
  }
  try {
    if (carries_hash()) json[kOwnHash] = hex_of(own_hash(json));
    json[kSignature] = signature;
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

bool Manifest::carries_hash() const {
  return std::find(features.begin(), features.end(), kFeatureManifestSha256) != features.end();
}

Manifest Manifest::parse(std::string_view bytes, std::string_view what) {
  const Reader reader(what);
  if (bytes.size() > kManifestBytesMax) {
    reader.fail(fmt::format("{} bytes are too large for a manifest", bytes.size()));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json);
  if (json.dump() != bytes) reader.fail("the JSON is not in canonical form");
  reader.check_own_hash(json);
  reader.check_features(json);
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
  manifest.nonce = reader.nonce(json, "nonce");
  manifest.features = reader.features(json);
  if (manifest.carries_hash() != json.contains(kOwnHash)) {
    reader.fail(fmt::format("it must have both the field '{}' and the feature '{}', or neither",
                            kOwnHash, kFeatureManifestSha256));
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
