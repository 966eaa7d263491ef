// Repositories of each format and feature, written once by the release named, can still be read:
//
//     format-1-ef       0.1.0: blocks of mode EF and raw
//     format-1-xr       0.2.0: XR, XS, EF and raw; version 2 and 3 need the feature xr
//     format-1-sha256   0.6.0: manifests that carry their own SHA-256
//     format-1-retired  0.6.0: skip deltas and a log of retired objects, which needs one of them
//
// Beside each repository is `<name>.json`: for each version the SHA-256 of each file, and the modes
// of the blocks in the packs.  WriteGolden makes that file from the directory of a repository.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "kernels/block/block.hpp"
#include "store/base/bytes.hpp"
#include "store/base/json.hpp"
#include "store/base/sha256.hpp"
#include "store/inspect/export.hpp"
#include "store/inspect/verify.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/repository.hpp"
#include "store/repository/skips.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

filesystem::path data_path(const std::string& name) {
  return filesystem::path(WEIGHTFS_TEST_DATA) / name;
}

/// The modes of all blocks in a version's packs.
std::set<int> modes_of(const filesystem::path& bucket, Repository& repository,
                       const Version& version) {
  std::set<int> modes;
  if (!version.manifest.delta) return modes;
  const auto layout = repository.get_layout(version.manifest.layout, {});
  for (const PackRef& ref : version.manifest.delta->packs) {
    const auto index =
        repository.get_pack_index(keys::pack(version.number(), ref.name), ref, *layout, {});
    const std::string pack = test::read_text(bucket / keys::pack(version.number(), ref.name));
    for (const PackChunk& chunk : index->chunks()) {
      std::size_t at = index->data_offset_bytes() + chunk.data_offset_bytes;
      for (const std::uint32_t length : index->block_lengths(chunk)) {
        if (length > 0) modes.insert(pack.at(at));
        at += length;
      }
    }
  }
  return modes;
}

/// The contents of `<name>.json` for a repository.
Json describe(const filesystem::path& bucket) {
  const test::TempDir scratch;
  const auto repository = Repository::open(bucket.string(), {});
  History history(*repository, nullptr);
  const GcLog log = read_gc_log(*repository, {});
  Json versions = Json::array();
  for (std::uint64_t number = 1; number <= repository->newest_version(0, {}); number++) {
    if (log.versions.contains(number)) {
      versions.push_back("retired");
      continue;
    }
    const auto version = history.get(number, {});
    const filesystem::path directory = scratch / std::to_string(number);
    export_version(history, number, directory, {}, {});
    Json files;
    for (const auto& [path, bytes] : test::read_tree(directory)) {
      files[path] = to_hex(sha256(as_bytes(bytes)));
    }
    versions.push_back(
        {{"features", version->manifest.features},
         {"files", std::move(files)},
         {"modes", log.deltas.contains(number) ? std::set<int>{}
                                               : modes_of(bucket, *repository, *version)}});
  }
  return versions;
}

void expect_as_written(const std::string& name) {
  const Json expected = Json::parse(test::read_text(data_path(name + ".json")));
  EXPECT_EQ(describe(data_path(name)), expected);
  const test::TempDir scratch;
  const auto repository = Repository::open(data_path(name).string(), {});
  History history(*repository, nullptr);
  for (const Problem& problem : verify_repository(history, scratch.path(), {}, {}).problems) {
    ADD_FAILURE() << problem.object << ": " << problem.message;
  }
}

TEST(Golden, OpensARepositoryOfFormat1WithoutFeatures) { expect_as_written("format-1-ef"); }

TEST(Golden, OpensARepositoryOfFormat1WithTheFeatureXr) {
  expect_as_written("format-1-xr");
  const Json versions = Json::parse(test::read_text(data_path("format-1-xr.json")));
  std::set<int> modes;
  for (const Json& version : versions) modes.merge(version["modes"].get<std::set<int>>());
  EXPECT_EQ(modes, (std::set<int>{1, 2, 3, 5})) << "raw, EF, XR, XS";
  EXPECT_EQ(versions[0]["features"], Json::array());
  EXPECT_EQ(versions[1]["features"], Json{"xr"});
}

TEST(Golden, OpensARepositoryWhoseManifestsCarryTheirOwnHash) {
  expect_as_written("format-1-sha256");
  const Json versions = Json::parse(test::read_text(data_path("format-1-sha256.json")));
  EXPECT_EQ(versions[0]["features"], Json{"manifest-sha256"});
  EXPECT_EQ(versions[1]["features"], (Json{"manifest-sha256", "xr"}));
}

TEST(Golden, OpensARepositoryWithSkipDeltasAndALogOfWhatWasRetired) {
  expect_as_written("format-1-retired");
  const auto repository = Repository::open(data_path("format-1-retired").string(), {});
  const GcLog log = read_gc_log(*repository, {});
  EXPECT_EQ(log.versions.text(), "2 to 15");
  EXPECT_EQ(log.deltas.text(), "2 to 16");
  EXPECT_EQ(log.skips, (std::set<VersionPair>{{8, 16}}));
  ASSERT_EQ(log.needs.size(), 1u);
  EXPECT_EQ(log.needs.begin()->first, (VersionPair{1, 16}));
  const auto skip = find_skip(*repository, {1, 16}, {});
  ASSERT_TRUE(skip);
  EXPECT_EQ(sha256(as_bytes(skip->serialize())), log.needs.begin()->second);
  EXPECT_FALSE(skip->delta.packs.empty());
}

/// WEIGHTFS_WRITE_GOLDEN=<repository>: writes <repository>.json.
TEST(WriteGolden, DescribesARepository) {
  const char* const bucket = std::getenv("WEIGHTFS_WRITE_GOLDEN");
  if (bucket == nullptr) GTEST_SKIP() << "golden files are written once";
  test::write_text(std::string(bucket) + ".json", describe(bucket).dump(1) + "\n");
}

}  // namespace
}  // namespace weightfs
