#include "store/format/manifest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/format/pack.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

const std::string kManifestNonce = "00112233445566778899aabbccddeeff";
const std::string kKey = "versions/00000000000000000042.json";

std::string golden_manifest() {
  return test::read_text(std::filesystem::path(WEIGHTFS_TEST_DATA) / "format-1/manifest.json");
}

Manifest first_version() {
  Manifest manifest;
  manifest.repository = kManifestNonce;
  manifest.version = 1;
  manifest.time = 1'790'000'000;
  manifest.layout = {24, sha256(as_bytes("layout"))};
  manifest.snapshot = SnapshotRef{kManifestNonce, {8, sha256(as_bytes("hashes"))}};
  manifest.nonce = kManifestNonce;
  return manifest;
}

void expect_manifest_refused(const std::string& bytes, ErrorCode code, const std::string& reason) {
  try {
    Manifest::parse(bytes, kKey);
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(kKey)) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

/// Changes one field of the golden manifest, which must then be rejected.
void expect_refused_with(const std::string& place, const Json& value, const std::string& reason,
                         ErrorCode code = ErrorCode::corrupt) {
  Json changed = Json::parse(golden_manifest());
  changed[Json::json_pointer(place)] = value;
  expect_manifest_refused(changed.dump(), code, reason);
}

TEST(Manifest, ReadsFormat1AsItWasWritten) {
  const Manifest manifest = Manifest::parse(golden_manifest(), kKey);
  EXPECT_EQ(manifest.serialize(), golden_manifest());
  EXPECT_EQ(manifest.repository, "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(manifest.version, 42U);
  EXPECT_EQ(manifest.parent, 41U);
  EXPECT_EQ(manifest.parent_sha256, sha256(as_bytes("parent")));
  EXPECT_EQ(manifest.time, 1'790'000'000);
  EXPECT_EQ(manifest.tag, "step-42");
  EXPECT_EQ(manifest.meta,
            (std::map<std::string, std::string>{{"step", "42"}, {"note", "a \"quoted\"\nline é"}}));
  EXPECT_EQ(manifest.root, sha256(as_bytes("root")));
  ASSERT_EQ(manifest.blobs.size(), 2U);
  EXPECT_EQ(manifest.blobs[1].path, "sub/é.txt");
  EXPECT_EQ(manifest.blobs[0].size_bytes, kBlobBytesMax);
  EXPECT_EQ(manifest.blobs[0].sha256, sha256(as_bytes("c")));
  ASSERT_TRUE(manifest.delta);
  EXPECT_EQ(manifest.delta->changed_elements, 131'146U);
  ASSERT_EQ(manifest.delta->packs.size(), 2U);
  EXPECT_EQ(manifest.delta->packs[0].name, kManifestNonce + "-0");
  EXPECT_EQ(manifest.delta->packs[1].size_bytes, kPackBytesMax - 1);
  EXPECT_EQ(manifest.delta->packs[1].head_bytes, 100U);
  EXPECT_EQ(manifest.delta->packs[1].head_sha256, sha256(as_bytes("p")));
  ASSERT_TRUE(manifest.snapshot);
  EXPECT_EQ(manifest.snapshot->nonce, kManifestNonce);
  EXPECT_EQ(manifest.snapshot->hashes.size_bytes, 216U);
  EXPECT_EQ(manifest.nonce, kManifestNonce);
  EXPECT_EQ(manifest.key_id, "");
  EXPECT_EQ(manifest.signature, "");
}

TEST(Manifest, OfAFirstVersionComesBack) {
  const Manifest manifest = Manifest::parse(first_version().serialize(), kKey);
  EXPECT_EQ(manifest.serialize(), first_version().serialize());
  EXPECT_EQ(manifest.parent, 0U);
  EXPECT_EQ(manifest.parent_sha256, Sha256{});
  EXPECT_FALSE(manifest.delta);
  EXPECT_TRUE(manifest.blobs.empty());
}

TEST(Manifest, MayHaveADeltaWithoutPacks) {
  Manifest manifest = first_version();
  manifest.version = 2;
  manifest.parent = 1;
  manifest.snapshot.reset();
  manifest.delta = DeltaRef{};
  EXPECT_EQ(Manifest::parse(manifest.serialize(), kKey).delta->packs.size(), 0U);
}

TEST(Manifest, IgnoresFieldsItDoesNotKnow) {
  Json changed = Json::parse(golden_manifest());
  changed["zz_new"] = {{"a", 1}};
  changed["delta"]["new"] = "x";
  EXPECT_EQ(Manifest::parse(changed.dump(), kKey).serialize(), golden_manifest());
}

TEST(Manifest, KeepsReservedFields) {
  Manifest manifest = first_version();
  manifest.key_id = "0123456789abcdef";
  manifest.signature = "ed";
  const Manifest again = Manifest::parse(manifest.serialize(), kKey);
  EXPECT_EQ(again.key_id, manifest.key_id);
  EXPECT_EQ(again.signature, manifest.signature);
}

TEST(Manifest, KnowsTheFeatureXr) {
  Manifest manifest = first_version();
  manifest.features.emplace_back("xr");
  const std::string bytes = manifest.serialize();
  EXPECT_NE(bytes.find(R"("required_features":["manifest-sha256","xr"])"), bytes.npos) << bytes;
  EXPECT_EQ(Manifest::parse(bytes, kKey).features, manifest.features);
}

TEST(Manifest, OfASnapshotOnTheHubIsReadAsItWasWritten) {
  const std::string bytes = test::read_text(std::filesystem::path(WEIGHTFS_TEST_DATA) /
                                            "format-1/manifest-hub-base.json");
  const Manifest manifest = Manifest::parse(bytes, kKey);
  ASSERT_TRUE(manifest.snapshot && manifest.snapshot->base);
  EXPECT_EQ(manifest.snapshot->base->model, "org/Model-1.5_B");
  EXPECT_EQ(manifest.snapshot->base->revision, "89abcdef0123456789abcdef0123456789abcdef");
  EXPECT_EQ(manifest.snapshot->nonce, kManifestNonce);
  EXPECT_EQ(manifest.features, (std::vector<std::string>{"hub-base", "manifest-sha256", "xr"}));
  EXPECT_EQ(manifest.serialize(), bytes);
}

TEST(Manifest, HasABaseAndItsFeatureOrNeither) {
  const HubBase base{"org/model", "0123456789abcdef0123456789abcdef01234567"};
  Manifest manifest = first_version();
  manifest.add_feature(kFeatureHubBase);
  manifest.add_feature(kFeatureHubBase);
  EXPECT_EQ(manifest.features, (std::vector<std::string>{"hub-base", "manifest-sha256"}));
  expect_manifest_refused(manifest.serialize(), ErrorCode::corrupt, "both a base of its snapshot");
  manifest.snapshot->base = base;
  EXPECT_EQ(Manifest::parse(manifest.serialize(), kKey).snapshot->base, base);
  manifest.features = first_version().features;
  expect_manifest_refused(manifest.serialize(), ErrorCode::corrupt, "both a base of its snapshot");
  manifest.add_feature(kFeatureHubBase);
  for (const char* const revision : {"main", "../../../etc"}) {
    manifest.snapshot->base = HubBase{base.model, revision};
    expect_manifest_refused(manifest.serialize(), ErrorCode::corrupt,
                            "of its snapshot is not hub:");
  }
  expect_refused_with("/snapshot/base", 7, "base");
}

TEST(Manifest, MayNameTheSnapshotBeforeIt) {
  Manifest manifest = first_version();
  EXPECT_EQ(manifest.serialize().find("snapshot_before"), std::string::npos);
  manifest.snapshot_before = 0;
  EXPECT_NE(manifest.serialize().find(R"("snapshot":)"), std::string::npos);
  EXPECT_NE(manifest.serialize().find(R"(,"snapshot_before":0,"tag":)"), std::string::npos)
      << manifest.serialize();
  EXPECT_EQ(Manifest::parse(manifest.serialize(), kKey).snapshot_before, 0u);
  manifest.snapshot_before = 1;
  expect_manifest_refused(manifest.serialize(), ErrorCode::corrupt,
                          "version 1 is not before version 1");
  expect_refused_with("/snapshot_before", "41", "snapshot_before");
  expect_refused_with("/snapshot_before", 42, "not before version 42");
  Json named = Json::parse(golden_manifest());
  named["snapshot_before"] = 41;
  EXPECT_EQ(Manifest::parse(named.dump(), kKey).snapshot_before, 41u);
  EXPECT_FALSE(Manifest::parse(golden_manifest(), kKey).snapshot_before);
}

TEST(Manifest, RefusesNewerFormatsAndUnknownFeatures) {
  expect_refused_with("/format", 2, "format 2 is newer", ErrorCode::unsupported);
  for (const Json& features : {Json{"xs"}, Json{"XR"}, Json{""}, Json{"xr", "zz"}}) {
    const std::string unknown = "needs the feature '" + features.back().get<std::string>() + "'";
    expect_refused_with("/required_features", features, unknown, ErrorCode::unsupported);
    expect_refused_with("/required_features", features, "update it", ErrorCode::unsupported);
  }
  expect_refused_with("/required_features", {"xr", "xr"}, "'xr' does not come after 'xr'");
  expect_refused_with("/required_features", {"xr", "hub-base"},
                      "'hub-base' does not come after 'xr'");
  // Other changes of a newer format must not hide the advice.
  expect_manifest_refused(R"({ "format": 3, "required_features": [] })", ErrorCode::unsupported,
                          "format 3");
  expect_refused_with("/format", 0, "format 0");
  expect_refused_with("/format", "1", "'format'");
  expect_refused_with("/required_features", {1}, "'required_features' must hold strings");
  expect_refused_with("/required_features", Json::object(), "must be an array");
}

TEST(Manifest, RefusesWhatIsNotCanonical) {
  const std::string good = golden_manifest();
  expect_manifest_refused(good + "\n", ErrorCode::corrupt, "canonical");
  expect_manifest_refused(" " + good, ErrorCode::corrupt, "canonical");
  expect_manifest_refused(Json::parse(good).dump(1), ErrorCode::corrupt, "canonical");
  expect_manifest_refused(Json::parse(good).dump(-1, ' ', true), ErrorCode::corrupt, "canonical");
  expect_manifest_refused(good + std::string(1, '\0'), ErrorCode::corrupt, "");
  expect_manifest_refused("\xEF\xBB\xBF" + good, ErrorCode::corrupt, "");
  std::string twice = good;
  twice.insert(1, R"("blobs":[],)");
  expect_manifest_refused(twice, ErrorCode::corrupt, "blobs");
  for (const char* bytes : {"", "[]", "null", "{", "{}"}) {
    expect_manifest_refused(bytes, ErrorCode::corrupt, "");
  }
}

TEST(Manifest, RefusesEachMissingField) {
  const Json good = Json::parse(golden_manifest());
  for (const auto& [name, value] : good.items()) {
    if (name == "delta" || name == "snapshot") continue;
    Json changed = good;
    changed.erase(name);
    expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "'" + name + "' is missing");
  }
  for (const char* place :
       {"/delta/changed", "/delta/packs", "/delta/packs/0/head", "/delta/packs/0/head_sha256",
        "/delta/packs/0/name", "/delta/packs/0/size", "/blobs/0/path", "/blobs/0/sha256",
        "/blobs/0/size", "/layout/sha256", "/layout/size", "/snapshot/nonce", "/snapshot/hashes",
        "/snapshot/hashes/size"}) {
    const Json::json_pointer pointer(place);
    Json changed = good;
    changed[pointer.parent_pointer()].erase(pointer.back());
    expect_manifest_refused(changed.dump(), ErrorCode::corrupt,
                            "'" + pointer.back() + "' is missing");
  }
}

TEST(Manifest, RefusesEachFieldOfAnotherType) {
  const Json good = Json::parse(golden_manifest());
  for (const auto& [name, value] : good.items()) {
    for (const Json& wrong : {Json(nullptr), Json(-1), Json(1.5), Json(true), Json::array({1})}) {
      Json changed = good;
      changed[name] = wrong;
      expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "");
    }
  }
}

TEST(Manifest, RefusesHistoriesThatCannotBe) {
  expect_refused_with("/version", 0, "version 0");
  expect_refused_with("/version", kVersionMax + 1, "'version' is 68719476736");
  expect_refused_with("/version", UINT64_MAX, "'version'");
  expect_refused_with("/version", 43, "the parent of version 43 must be 42, not 41");
  Json neither = Json::parse(golden_manifest());
  neither.erase("delta");
  EXPECT_FALSE(Manifest::parse(neither.dump(), kKey).delta);
  neither.erase("snapshot");
  expect_manifest_refused(neither.dump(), ErrorCode::corrupt, "neither a delta nor a snapshot");

  Manifest first = first_version();
  first.delta = DeltaRef{};
  expect_manifest_refused(first.serialize(), ErrorCode::corrupt, "no delta");
  first.snapshot.reset();
  first.delta.reset();
  expect_manifest_refused(first.serialize(), ErrorCode::corrupt, "must have a snapshot");
  first = first_version();
  first.parent_sha256 = sha256({});
  expect_manifest_refused(first.serialize(), ErrorCode::corrupt, "parent_sha256 must be zeros");
}

TEST(Manifest, RefusesHostileNames) {
  expect_refused_with("/blobs/0/path", "../config.json", "has a component '..'");
  expect_refused_with("/blobs/0/path", "/config.json", "empty component");
  expect_refused_with("/blobs/0/path", ".config.json", "hidden");
  expect_refused_with("/blobs/0/path", "zzz", "does not come after 'zzz'");
  expect_refused_with("/blobs/0/path", "sub/é.txt", "does not come after");
  expect_refused_with("/blobs/0/path", "sub", "'sub' is both a file and a directory");
  expect_refused_with("/tag", "../x", "the tag '../x'");
  expect_refused_with("/tag", "-x", "begins with '-'");
  expect_refused_with("/nonce", "../../../../../../../../../../ab", "'nonce' must be 32");
  expect_refused_with("/snapshot/nonce", std::string(32, 'A'), "'nonce' must be 32");
  expect_refused_with("/repository", "x", "'repository' must be 32");
  for (const std::string& name :
       {std::string(), std::string("x"), kManifestNonce, kManifestNonce + "-",
        kManifestNonce + "-01", kManifestNonce + "--1", kManifestNonce + "-1/../x",
        kManifestNonce + "_1", kManifestNonce + "-1234567890",
        "X" + kManifestNonce.substr(1) + "-1"}) {
    expect_refused_with("/delta/packs/0/name", name, "is not the name of a pack");
  }
  expect_refused_with("/delta/packs/0/name", std::string(32, 'f') + "-12", "occurs twice");
}

TEST(Manifest, RefusesSizesAboveTheirLimits) {
  expect_refused_with("/blobs/0/size", kBlobBytesMax + 1, "'size' is 16777217");
  expect_refused_with("/layout/size", kLayoutBytesMax + 1, "'size'");
  expect_refused_with("/delta/packs/0/size", kPackBytesMax, "'size'");
  expect_refused_with("/delta/packs/1/head", kPackBytesMax, "'head'");
  expect_refused_with("/delta/packs/0/size", 10, "'head'");
  expect_refused_with("/delta/changed", UINT64_MAX, "'changed'");
  expect_refused_with("/snapshot/hashes/size", UINT64_MAX, "'size'");
  expect_refused_with("/time", UINT64_MAX, "'time'");
  expect_manifest_refused(std::string(kManifestBytesMax + 1, ' '), ErrorCode::corrupt,
                          "too large for a manifest");
}

TEST(Manifest, RefusesHashesThatAreNone) {
  for (const char* place : {"/root", "/parent_sha256", "/layout/sha256", "/blobs/0/sha256",
                            "/delta/packs/0/head_sha256", "/snapshot/hashes/sha256"}) {
    for (const std::string& wrong :
         {std::string(), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'A')}) {
      expect_refused_with(place, wrong, "must be a SHA-256");
    }
  }
}

TEST(Manifest, RefusesTruncationAtEveryByte) {
  const std::string good = golden_manifest();
  for (std::size_t size = 0; size < good.size(); size++) {
    EXPECT_THROW(Manifest::parse(std::string_view(good).substr(0, size), kKey), Error) << size;
  }
}

TEST(Manifest, NeverCrashesOnFlippedBits) {
  auto rng = test::make_rng();
  const std::string good = golden_manifest();
  for (int round = 0; round < 5000; round++) {
    std::string bad = good;
    for (std::uint64_t flips = 1 + rng() % 3; flips > 0; flips--) {
      bad[rng() % bad.size()] ^= static_cast<char>(1 << rng() % 8);
    }
    try {
      static_cast<void>(Manifest::parse(bad, kKey));
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported);
    }
  }
}

TEST(Manifest, DoesNotWriteWhatItWouldNotRead) {
  Manifest manifest = first_version();
  manifest.meta["k"] = "\xFF";
  try {
    static_cast<void>(manifest.serialize());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid);
  }
  manifest.meta["k"] = std::string(kManifestBytesMax, 'x');
  EXPECT_THROW(static_cast<void>(manifest.serialize()), Error);
}

// 600 KB of this once took 8 s, and twice as much took four times as long.
TEST(Manifest, IsReadInTimeThatGrowsWithItsSize) {
  const auto cpu_ticks = [](std::size_t size) {
    std::string bytes = golden_manifest();
    bytes.insert(bytes.size() - 1, R"(,"zz_new":[{})");
    std::string more;
    while (bytes.size() + more.size() + 8 < size) more += ",{}";
    bytes.insert(bytes.size() - 1, more + "]");
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < 3; i++) {
      const std::clock_t begin = std::clock();
      EXPECT_EQ(Manifest::parse(bytes, kKey).version, 42U);
      least = std::min(least, std::clock() - begin);
    }
    return static_cast<double>(least);
  };
  // Eight times as long would be linear, 64 times quadratic.
  EXPECT_LT(cpu_ticks(kManifestBytesMax), 24 * cpu_ticks(kManifestBytesMax / 8));
}

// ---- its own hash ----

/// A manifest with every field, as this release writes it.
std::string whole_manifest() {
  Manifest manifest = Manifest::parse(golden_manifest(), kKey);
  manifest.features.emplace_back(kFeatureManifestSha256);
  manifest.blobs.pop_back();
  manifest.delta->packs.pop_back();
  return manifest.serialize();
}

/// `manifest` with a recomputed hash.
std::string with_its_hash(Json manifest) {
  manifest.erase("sha256");
  Json hashed = manifest;
  hashed.erase("signature");
  manifest["sha256"] = to_hex(sha256(as_bytes(hashed.dump())));
  return manifest.dump();
}

TEST(Manifest, CarriesItsOwnHashWithoutItselfAndTheSignature) {
  const std::string bytes = whole_manifest();
  EXPECT_EQ(bytes, with_its_hash(Json::parse(bytes)));
  const Manifest manifest = Manifest::parse(bytes, kKey);
  EXPECT_TRUE(manifest.carries_hash());
  EXPECT_EQ(manifest.serialize(), bytes);
  EXPECT_FALSE(Manifest::parse(golden_manifest(), kKey).carries_hash());
  EXPECT_TRUE(first_version().carries_hash()) << "whoever makes one need not think of it";
}

TEST(Manifest, RefusesEveryFlippedBit) {
  const std::string good = whole_manifest();
  ASSERT_NO_THROW(Manifest::parse(good, kKey));
  std::string bad = good;
  for (std::size_t at = 0; at < good.size(); at++) {
    for (int bit = 0; bit < 8; bit++) {
      bad[at] = static_cast<char>(good[at] ^ (1 << bit));
      EXPECT_THROW(Manifest::parse(bad, kKey), Error) << "bit " << bit << " of byte " << at;
    }
    bad[at] = good[at];
  }
}

TEST(Manifest, RefusesLegalFieldsThatDoNotGiveItsHash) {
  Json changed = Json::parse(whole_manifest());
  changed["tag"] = "step-43";
  expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "it is damaged");
  changed = Json::parse(whole_manifest());
  changed["zz_new"] = 1;
  expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "it is damaged");
  EXPECT_NO_THROW(Manifest::parse(with_its_hash(changed), kKey));
  // A damaged feature name is damage, not a future feature; a future feature is not damage.
  changed = Json::parse(whole_manifest());
  changed["required_features"] = {"manifest-sha257"};
  expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "it is damaged");
  expect_manifest_refused(with_its_hash(changed), ErrorCode::unsupported, "'manifest-sha257'");
}

TEST(Manifest, RefusesAHashWithoutItsFeatureAndTheOtherWayRound) {
  Json changed = Json::parse(whole_manifest());
  changed.erase("sha256");
  expect_manifest_refused(changed.dump(), ErrorCode::corrupt, "or neither");
  changed = Json::parse(whole_manifest());
  changed["required_features"] = Json::array();
  expect_manifest_refused(with_its_hash(changed), ErrorCode::corrupt, "or neither");
}

TEST(Manifest, HashesChunkHashesLittleEndian) {
  EXPECT_EQ(root_of({}), sha256({}));
  std::vector<std::uint64_t> hashes;
  std::string bytes;
  auto rng = test::make_rng();
  for (int i = 0; i < 20'000; i++) {
    hashes.push_back(rng());
    append_le(bytes, hashes.back());
  }
  EXPECT_EQ(root_of(hashes), sha256(as_bytes(bytes)));
}

}  // namespace
}  // namespace weightfs
