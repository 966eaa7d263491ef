#include "store/catalog/catalog.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "store/base/error.hpp"
#include "tests/support/small_versions.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::make_opaque_layout;

using ListedFiles = std::vector<std::pair<std::string, std::uint64_t>>;

std::shared_ptr<const CatalogVersion> make(const ListedFiles& tensors, const ListedFiles& blobs) {
  Version version;
  version.manifest = test::make_manifest(std::string(32, '0'), nullptr, "step-1");
  for (const auto& [path, size] : blobs) version.manifest.blobs.push_back({path, size, {}});
  return make_catalog_version(version, *make_opaque_layout(tensors), "/store/images/1");
}

TEST(Catalog, NumbersEntriesByPath) {
  const auto version =
      make({{"b.bin", 7}, {"sub/deep/w.bin", 5}}, {{"a.json", 2}, {"sub-x.json", 3}});
  std::vector<std::string> paths;
  for (const CatalogEntry& entry : version->entries) paths.push_back(entry.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"", "a.json", "b.bin", "sub", "sub-x.json", "sub/deep",
                                             "sub/deep/w.bin"}));
  EXPECT_EQ(version->number, 1u);
  EXPECT_EQ(version->tag, "step-1");
  EXPECT_EQ(version->time, 1'790'000'001);
  EXPECT_EQ(version->directory, "/store/images/1");
  EXPECT_EQ(version->size_bytes(), 17u);
}

TEST(Catalog, KnowsWhatLiesWhere) {
  const auto version = make({{"b.bin", 7}, {"sub/deep/w.bin", 5}}, {{"sub-x.json", 3}});
  const CatalogEntry& root = version->entries[0];
  EXPECT_TRUE(root.is_directory);
  EXPECT_EQ(root.parent, 0u);
  const CatalogEntry* sub = version->find(0, "sub");
  ASSERT_NE(sub, nullptr);
  EXPECT_TRUE(sub->is_directory);
  const CatalogEntry* deep = version->find(version->number_of(*sub), "deep");
  ASSERT_NE(deep, nullptr);
  const CatalogEntry* file = version->find(version->number_of(*deep), "w.bin");
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(file->is_directory);
  EXPECT_EQ(file->size_bytes, 5u);
  EXPECT_EQ(file->image, ImageState::complete);
  EXPECT_EQ(file->parent, version->number_of(*deep));
}

TEST(Catalog, FindsNothingThatIsNotThere) {
  const auto version = make({{"b.bin", 7}, {"sub/w.bin", 5}}, {});
  const std::uint32_t sub = version->number_of(*version->find(0, "sub"));
  const std::uint32_t file = version->number_of(*version->find(0, "b.bin"));
  for (const char* name :
       {"", ".", "..", "a", "c", "sub/w.bin", "w.bin", "sub/", "b.bin/", "B.BIN"}) {
    EXPECT_EQ(version->find(0, name), nullptr) << name;
  }
  for (const char* name : {"", "..", "b.bin", "sub", "w", "w.bin2"}) {
    EXPECT_EQ(version->find(sub, name), nullptr) << name;
  }
  EXPECT_EQ(version->find(file, "b.bin"), nullptr);
  EXPECT_EQ(version->find(999, "b.bin"), nullptr);
}

TEST(Catalog, RefusesPathsThatCollide) {
  for (const auto& [tensors, blobs] : {std::pair<ListedFiles, ListedFiles>{{{"a", 1}}, {{"a", 1}}},
                                       {{{"a", 1}}, {{"a/b", 1}}},
                                       {{{"a/b", 1}}, {{"a", 1}}},
                                       {{{"a/b/c", 1}}, {{"a/b", 1}}}}) {
    try {
      make(tensors, blobs);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
      EXPECT_NE(std::string(error.what()).find("version 1"), std::string::npos) << error.what();
    }
  }
}

// Names that sort around '/', and bytes above 0x7F, where signed and unsigned order differ.
TEST(Catalog, FindsEveryEntryOfRandomTrees) {
  auto rng = test::make_rng();
  const std::vector<std::string> names{"a", "a-", "a0", "b", "a.b", "\xC3\xA9", "a\xC3\xA9", "z z"};
  for (int round = 0; round < 50; round++) {
    std::set<std::string> paths;
    for (int i = 0; i < 30; i++) {
      std::string path;
      for (std::uint64_t depth = rng() % 3; depth > 0; depth--) path += names[rng() % 8] + "/";
      paths.insert(path + names[rng() % 8] + ".bin");
    }
    ListedFiles files;
    for (const std::string& path : paths) files.emplace_back(path, rng() % 1000);
    const auto version = make(files, {});
    for (std::uint32_t i = 1; i < version->entries.size(); i++) {
      const CatalogEntry& entry = version->entries[i];
      EXPECT_LT(version->entries[i - 1].path, entry.path);
      EXPECT_LT(entry.parent, i);
      const std::string name = entry.path.substr(entry.path.rfind('/') + 1);
      EXPECT_EQ(version->find(entry.parent, name), &entry) << entry.path;
      EXPECT_EQ(version->number_of(entry), i);
    }
    std::size_t found = 0;
    for (const auto& entry : version->entries) found += paths.contains(entry.path);
    EXPECT_EQ(found, paths.size());
  }
}

}  // namespace
}  // namespace weightfs
