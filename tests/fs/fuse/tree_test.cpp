#include "fs/fuse/tree.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fs/base/inode.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr double kDay = 86400;

// A version with config.json, model.safetensors and sub/x.json.
std::shared_ptr<const CatalogVersion> make_version(std::uint64_t number, const std::string& tag) {
  auto version = std::make_shared<CatalogVersion>();
  version->number = number;
  version->time = 1000 + static_cast<std::int64_t>(number);
  version->tag = tag;
  version->directory = "/store/images/" + std::to_string(number);
  version->entries = {{"", 0, true, 0, ImageState::complete},
                      {"config.json", 0, false, 10, ImageState::complete},
                      {"model.safetensors", 0, false, 1025, ImageState::complete},
                      {"sub", 0, true, 0, ImageState::complete},
                      {"sub/x.json", 3, false, 0, ImageState::complete}};
  return version;
}

Inode inode_of(std::uint64_t version, std::uint32_t file) {
  return make_inode({InodeKind::version, version, file});
}
const Inode kRoot = make_inode(Fixed::root);
const Inode kVersions = make_inode(Fixed::versions);
const Inode kTags = make_inode(Fixed::tags);

class TreeTest : public testing::Test {
 protected:
  TreeTest() {
    catalog_->latest = 12;
    for (const std::uint64_t number : {1u, 9u, 12u})
      catalog_->versions[number] = make_version(number, "");
    catalog_->tags = {{"zero", 1}, {"alpha", 12}, {"elsewhere", 5}};
    catalog_->repository_time = 777;
  }

  Tree tree(Ownership ownership = {}, bool is_writer = false) const {
    return Tree([this] { return catalog_; }, ownership, is_writer);
  }

  // Lists in one go.
  std::vector<DirectoryEntry> list(Inode inode, std::uint64_t offset = 0) const {
    std::vector<DirectoryEntry> entries;
    tree().read_directory(inode, offset, [&](const DirectoryEntry& entry) {
      entries.push_back(entry);
      return true;
    });
    return entries;
  }

  std::vector<std::string> names(Inode inode, std::uint64_t offset = 0) const {
    std::vector<std::string> found;
    for (const DirectoryEntry& entry : list(inode, offset)) found.push_back(entry.name);
    return found;
  }

  // Not complete: with config.json here and the rest not.
  void add_incomplete(std::uint64_t number, ImageState state) {
    auto version = std::make_shared<CatalogVersion>(*make_version(number, ""));
    for (CatalogEntry& entry : version->entries) {
      if (!entry.is_directory && entry.path != "config.json") entry.image = state;
    }
    catalog_->incomplete[number] = {version, state};
  }

  template <typename Body>
  static void expect_error(ErrorCode code, Body&& body) {
    try {
      body();
      ADD_FAILURE() << "no error, expected " << to_string(code);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
    }
  }

  std::shared_ptr<Catalog> catalog_ = std::make_shared<Catalog>();
};

using Names = std::vector<std::string>;

TEST(Inode, PartsComeBackFromTheNumber) {
  const std::uint64_t version_max = (std::uint64_t{1} << kVersionBits) - 1;
  for (const InodeKind kind : {InodeKind::version, InodeKind::tag}) {
    for (const std::uint64_t version : {std::uint64_t{1}, version_max}) {
      for (const std::uint32_t file : {0u, 1u, kEntriesMax}) {
        const InodeParts parts = parts_of(make_inode({kind, version, file}));
        EXPECT_EQ(parts.kind, kind);
        EXPECT_EQ(parts.version, version);
        EXPECT_EQ(parts.file, file);
      }
    }
  }
}

TEST(Inode, NumbersAreAPromiseToLaterReleases) {
  EXPECT_EQ(make_inode(Fixed::root), 1u);
  EXPECT_EQ(make_inode(Fixed::status), 6u);
  EXPECT_EQ(inode_of(42, 7), 0x100000002A000007u);
  EXPECT_EQ(make_inode({InodeKind::tag, 42, 0}), 0x200000002A000000u);
}

TEST(Inode, StagingHasNumbersOfItsOwn) {
  EXPECT_EQ(make_staging_inode(kStagingRoot), make_inode(Fixed::staging));
  EXPECT_EQ(make_staging_inode(kPublishRoot), make_inode(Fixed::publish));
  EXPECT_EQ(make_staging_inode(16), 0x3000000000000010u);
  const StagingId highest = (StagingId{1} << 60) - 1;
  for (const StagingId id : {kStagingRoot, kPublishRoot, kFirstStagingId, highest}) {
    EXPECT_EQ(find_staging_id(make_staging_inode(id)), id);
  }
  for (const Inode other : {kRoot, make_inode(Fixed::last_error), inode_of(3, 7)}) {
    EXPECT_EQ(find_staging_id(other), std::nullopt);
  }
}

TEST_F(TreeTest, ShowsTheFixedPart) {
  EXPECT_EQ(names(kRoot), (Names{".", "..", "latest", "versions", "tags", ".weightfs"}));
  EXPECT_EQ(names(make_inode(Fixed::control)), (Names{".", "..", "status", "advice", "health"}));
  for (const DirectoryEntry& entry : list(kRoot)) {
    if (entry.name == "." || entry.name == "..") continue;
    const Node node = tree().lookup(kRoot, entry.name);
    EXPECT_EQ(node.attributes.st_ino, entry.inode) << entry.name;
    EXPECT_EQ(node.attributes.st_mode & S_IFMT, entry.type) << entry.name;
  }
}

TEST_F(TreeTest, AWritersMountShowsMore) {
  const Tree writers = tree({}, true);
  const auto names_of = [&](Inode inode) {
    Names found;
    writers.read_directory(inode, 0, [&](const DirectoryEntry& entry) {
      found.push_back(entry.name);
      return true;
    });
    return found;
  };
  const Inode control = make_inode(Fixed::control);
  EXPECT_EQ(names_of(kRoot),
            (Names{".", "..", "latest", "versions", "tags", ".weightfs", "staging", "publish"}));
  EXPECT_EQ(names_of(control), (Names{".", "..", "status", "last_error", "advice", "health"}));
  for (const auto& [name, fixed] :
       {std::pair{"staging", Fixed::staging}, {"publish", Fixed::publish}}) {
    const Node node = writers.lookup(kRoot, name);
    EXPECT_EQ(node.attributes.st_ino, make_inode(fixed));
    EXPECT_EQ(node.attributes.st_mode, static_cast<mode_t>(S_IFDIR | 0755)) << name;
  }
  EXPECT_EQ(writers.lookup(control, "last_error").attributes.st_mode,
            static_cast<mode_t>(S_IFREG | 0444));
  EXPECT_TRUE(std::holds_alternative<TextFile>(writers.open(make_inode(Fixed::last_error))));
}

TEST_F(TreeTest, AReadersMountHasNothingOfAWriters) {
  const Inode control = make_inode(Fixed::control);
  struct Writers {
    Inode parent;
    const char* name;
    Fixed fixed;
  };
  for (const Writers& node : {Writers{kRoot, "staging", Fixed::staging},
                              {kRoot, "publish", Fixed::publish},
                              {control, "last_error", Fixed::last_error}}) {
    expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(node.parent, node.name); });
    expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(make_inode(node.fixed)); });
    expect_error(ErrorCode::not_found, [&] { (void)tree().open(make_inode(node.fixed)); });
  }
}

// ---- deltas ----

class DeltasTest : public TreeTest {
 protected:
  // The size of version 9's delta is known.
  Tree deltas() const {
    return Tree([this] { return catalog_; }, {}, false,
                [](const DeltaId& id) -> std::optional<DeltaFacts> {
                  return id == step_to(9) ? std::optional(DeltaFacts{1234, 1009}) : std::nullopt;
                });
  }
  static Inode inode_of_delta(std::uint64_t version) {
    return make_inode({InodeKind::delta, version, 0});
  }
  const Inode directory_ = make_inode(Fixed::deltas);
};

TEST_F(DeltasTest, HaveNumbersOfTheirOwn) {
  EXPECT_EQ(directory_, 10u);
  EXPECT_EQ(inode_of_delta(42), 0x400000002A000000u);
}

TEST_F(DeltasTest, AreListedForVersionsThatStreamInToo) {
  add_incomplete(10, ImageState::partial);
  add_incomplete(11, ImageState::absent);
  Names found;
  deltas().read_directory(directory_, 0, [&](const DirectoryEntry& entry) {
    found.push_back(entry.name);
    return true;
  });
  EXPECT_EQ(found, (Names{".", "..", "9.safetensors", "10.safetensors", "12.safetensors"}));
}

TEST_F(DeltasTest, AreListedForTheVersionsHereButTheFirst) {
  Names found, root;
  deltas().read_directory(directory_, 0, [&](const DirectoryEntry& entry) {
    found.push_back(entry.name);
    return true;
  });
  EXPECT_EQ(found, (Names{".", "..", "9.safetensors", "12.safetensors"}));
  deltas().read_directory(directory_, 9 + 2, [&](const DirectoryEntry& entry) {
    EXPECT_EQ(entry.name, "12.safetensors");
    EXPECT_EQ(entry.inode, inode_of_delta(12));
    return true;
  });
  deltas().read_directory(kRoot, 0, [&](const DirectoryEntry& entry) {
    root.push_back(entry.name);
    return true;
  });
  EXPECT_EQ(root, (Names{".", "..", "latest", "versions", "tags", ".weightfs", "deltas"}));
}

TEST_F(DeltasTest, AreFilesWhoseSizeMustBeAskedForFirst) {
  const Node node = deltas().lookup(directory_, "9.safetensors");
  EXPECT_EQ(node.attributes.st_ino, inode_of_delta(9));
  EXPECT_EQ(node.attributes.st_mode, S_IFREG | 0444u);
  EXPECT_EQ(node.attributes.st_size, 1234);
  EXPECT_EQ(node.attributes.st_mtim.tv_sec, 1009);
  EXPECT_EQ(node.entry_timeout_s, kDay);
  EXPECT_EQ(deltas().attributes(inode_of_delta(9)).attributes.st_size, 1234);
  expect_error(ErrorCode::not_found, [&] { (void)deltas().lookup(directory_, "12.safetensors"); });
  EXPECT_EQ(deltas().find_delta(directory_, "12.safetensors"), step_to(12));
  EXPECT_EQ(deltas().find_delta(inode_of_delta(12)), step_to(12));
}

TEST_F(DeltasTest, AreThereForEveryVersionUpToTheLatest) {
  EXPECT_EQ(deltas().find_delta(directory_, "5.safetensors"), step_to(5));  // no image here
  for (const char* name : {"1.safetensors", "13.safetensors", "05.safetensors", "5", ".safetensors",
                           "5.safetensors ", "+5.safetensors"}) {
    EXPECT_EQ(deltas().find_delta(directory_, name), std::nullopt) << name;
    expect_error(ErrorCode::not_found, [&] { (void)deltas().lookup(directory_, name); });
  }
  for (const Inode other : {inode_of_delta(1), inode_of_delta(13), inode_of(9, 0), kRoot,
                            make_inode({InodeKind::delta, 9, 1})}) {
    EXPECT_EQ(deltas().find_delta(other), std::nullopt) << other;
  }
  EXPECT_EQ(deltas().find_delta(kVersions, "5.safetensors"), std::nullopt);
}

TEST_F(DeltasTest, LeadFromAnyVersionToAnyOther) {
  const std::pair<const char*, VersionPair> pairs[] = {
      {"5-9.safetensors", {5, 9}}, {"9-5.safetensors", {9, 5}}, {"12-1.safetensors", {12, 1}}};
  for (const auto& [name, versions] : pairs) {
    EXPECT_EQ(deltas().find_delta(directory_, name), versions) << name;
    const Inode inode = make_delta_inode(versions);
    EXPECT_EQ(deltas().find_delta(inode), versions) << name;
    EXPECT_EQ(std::get<DeltaFile>(deltas().open(inode)).id, versions);
  }
  // One file has one number, whatever it is called.
  EXPECT_EQ(deltas().lookup(directory_, "8-9.safetensors").attributes.st_ino, inode_of_delta(9));
  for (const char* name :
       {"5-5.safetensors", "0-5.safetensors", "5-13.safetensors", "5-.safetensors",
        "-5.safetensors", "4-05.safetensors", "4--5.safetensors", "-.safetensors",
        "1-2-3.safetensors", "4-5 .safetensors", "4-5"}) {
    EXPECT_EQ(deltas().find_delta(directory_, name), std::nullopt) << name;
    expect_error(ErrorCode::not_found, [&] { (void)deltas().lookup(directory_, name); });
  }
}

TEST_F(DeltasTest, WithOldValuesAreOtherFilesWithNumbersOfTheirOwn) {
  for (const VersionPair versions : {VersionPair{8, 9}, VersionPair{5, 9}, VersionPair{9, 5}}) {
    const std::string name = std::to_string(versions.from) + "-" + std::to_string(versions.to);
    const DeltaId id{versions, true};
    EXPECT_EQ(deltas().find_delta(directory_, name + ".with-old.safetensors"), id) << name;
    const Inode inode = make_delta_inode(id);
    EXPECT_NE(inode, make_delta_inode(versions));
    EXPECT_EQ(deltas().find_delta(inode), id) << name;
    EXPECT_EQ(std::get<DeltaFile>(deltas().open(inode)).id, id);
  }
  EXPECT_EQ(make_delta_inode({step_to(42), true}), 0x500000002A000000u);
  for (const char* name :
       {"9.with-old.safetensors", "8-9.with-old", "8-9.with-old.with-old.safetensors",
        ".with-old.safetensors", "8-9with-old.safetensors"}) {
    EXPECT_EQ(deltas().find_delta(directory_, name), std::nullopt) << name;
  }
}

TEST_F(DeltasTest, OfVersionsTooFarApartAreNotThere) {
  catalog_->latest = 2 * kDeltaDistanceMax;
  for (const std::uint64_t distance : {kDeltaDistanceMax, kDeltaDistanceMax + 1}) {
    for (const VersionPair versions :
         {VersionPair{7, 7 + distance}, VersionPair{7 + distance, 7}}) {
      const std::string name = std::to_string(versions.from) + "-" + std::to_string(versions.to);
      const bool is_there = distance <= kDeltaDistanceMax;
      const auto found = deltas().find_delta(directory_, name + ".safetensors");
      EXPECT_EQ(found, is_there ? std::optional<DeltaId>(versions) : std::nullopt) << name;
      if (!is_there) continue;
      EXPECT_EQ(deltas().find_delta(make_delta_inode(versions)), versions) << name;
    }
  }
}

TEST_F(DeltasTest, OpenSaysThatTheyMustBeBuilt) {
  EXPECT_EQ(std::get<DeltaFile>(deltas().open(inode_of_delta(9))).id, step_to(9));
  EXPECT_EQ(std::get<DeltaFile>(deltas().open(inode_of_delta(12))).id,
            step_to(12));  // no size yet
  expect_error(ErrorCode::not_found, [&] { (void)deltas().open(inode_of_delta(13)); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().open(inode_of_delta(9)); });
}

TEST_F(DeltasTest, AreNotThereWithoutAnybodyWhoMakesThem) {
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(kRoot, "deltas"); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(directory_); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(inode_of_delta(9)); });
  EXPECT_EQ(tree().find_delta(inode_of_delta(9)), std::nullopt);
}

TEST_F(TreeTest, LatestIsAbsentUntilThereIsAVersion) {
  catalog_->latest = 0;
  EXPECT_EQ(names(kRoot), (Names{".", "..", "versions", "tags", ".weightfs"}));
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(kRoot, "latest"); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(make_inode(Fixed::latest)); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().read_link(make_inode(Fixed::latest)); });
}

TEST_F(TreeTest, LatestFollowsTheCatalogAndIsNeverCached) {
  const Node node = tree().lookup(kRoot, "latest");
  EXPECT_EQ(node.attributes.st_mode, S_IFLNK | 0777u);
  EXPECT_EQ(node.entry_timeout_s, 0);
  EXPECT_EQ(node.attribute_timeout_s, 0);
  EXPECT_EQ(tree().read_link(node.attributes.st_ino), "versions/12");
  EXPECT_EQ(node.attributes.st_size, 11);
  catalog_->latest = 9;
  EXPECT_EQ(tree().read_link(node.attributes.st_ino), "versions/9");
}

TEST_F(TreeTest, VersionsAreListedInOrderOfTheirNumbers) {
  EXPECT_EQ(names(kVersions), (Names{".", "..", "1", "9", "12"}));
  const Node node = tree().lookup(kVersions, "9");
  EXPECT_EQ(node.attributes.st_ino, inode_of(9, 0));
  EXPECT_EQ(node.entry_timeout_s, 1);
  EXPECT_EQ(node.attribute_timeout_s, kDay);
}

TEST_F(TreeTest, OnlyTheCanonicalSpellingNamesAVersion) {
  for (const char* name : {"", "0", "01", "009", "+9", "-9", " 9", "9 ", "9x", "0x9", "2", "999",
                           "99999999999999999999999"}) {
    SCOPED_TRACE(name);
    expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(kVersions, name); });
  }
}

TEST_F(TreeTest, TagsAreSymlinksOrderedByVersionAlsoWithoutAnImageHere) {
  EXPECT_EQ(names(kTags), (Names{".", "..", "zero", "elsewhere", "alpha"}));
  const Node node = tree().lookup(kTags, "elsewhere");
  EXPECT_EQ(node.attributes.st_mode, S_IFLNK | 0777u);
  EXPECT_EQ(node.entry_timeout_s, 0);
  EXPECT_EQ(tree().read_link(node.attributes.st_ino), "../versions/5");
  EXPECT_EQ(node.attributes.st_size, 13);
  EXPECT_EQ(tree().attributes(node.attributes.st_ino).attributes.st_size, 13);
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(kTags, "step"); });
}

TEST_F(TreeTest, AMovedTagIsAnotherInode) {
  const Inode before = tree().lookup(kTags, "zero").attributes.st_ino;
  catalog_->tags["zero"] = 9;
  const Inode after = tree().lookup(kTags, "zero").attributes.st_ino;
  EXPECT_NE(before, after);
  EXPECT_EQ(tree().read_link(before), "../versions/1");
  EXPECT_EQ(tree().read_link(after), "../versions/9");
}

TEST_F(TreeTest, WhatIsInsideAVersionIsKeptForADay) {
  for (const char* name : {"config.json", "model.safetensors", "sub"}) {
    const Node node = tree().lookup(inode_of(9, 0), name);
    EXPECT_EQ(node.entry_timeout_s, kDay) << name;
    EXPECT_EQ(node.attribute_timeout_s, kDay) << name;
  }
}

TEST_F(TreeTest, FilesHaveSizeTimeAndReadOnlyModes) {
  const struct stat file = tree().lookup(inode_of(9, 0), "model.safetensors").attributes;
  EXPECT_EQ(file.st_mode, S_IFREG | 0444u);
  EXPECT_EQ(file.st_size, 1025);
  EXPECT_EQ(file.st_blocks, 3);
  EXPECT_EQ(file.st_nlink, 1u);
  EXPECT_EQ(file.st_mtim.tv_sec, 1009);
  EXPECT_EQ(file.st_ctim.tv_sec, 1009);
  EXPECT_EQ(file.st_atim.tv_sec, 1009);
  const struct stat directory = tree().attributes(inode_of(9, 3)).attributes;
  EXPECT_EQ(directory.st_mode, S_IFDIR | 0555u);
  EXPECT_EQ(directory.st_nlink, 2u);
  EXPECT_EQ(directory.st_mtim.tv_sec, 1009);
  EXPECT_EQ(tree().attributes(kVersions).attributes.st_mtim.tv_sec, 777);
}

TEST_F(TreeTest, OwnershipIsAsTheMountSays) {
  const Tree owned = tree({12, 34, 0027});
  const struct stat file = owned.attributes(inode_of(1, 1)).attributes;
  EXPECT_EQ(file.st_uid, 12u);
  EXPECT_EQ(file.st_gid, 34u);
  EXPECT_EQ(file.st_mode & 0777u, 0640u);
  EXPECT_EQ(owned.attributes(kRoot).attributes.st_mode & 0777u, 0750u);
  EXPECT_EQ(owned.lookup(kRoot, "latest").attributes.st_uid, 12u);
  const Inode status = make_inode(Fixed::status);
  EXPECT_EQ(owned.attributes(status).attributes.st_mode & 0777u, 0444u);
}

TEST_F(TreeTest, SubdirectoriesListTheirOwnEntriesOnly) {
  EXPECT_EQ(names(inode_of(9, 0)), (Names{".", "..", "config.json", "model.safetensors", "sub"}));
  EXPECT_EQ(names(inode_of(9, 3)), (Names{".", "..", "x.json"}));
  EXPECT_EQ(tree().lookup(inode_of(9, 3), "x.json").attributes.st_ino, inode_of(9, 4));
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(inode_of(9, 0), "x.json"); });
}

TEST_F(TreeTest, DotsNameTheDirectoryAndItsParent) {
  const auto parents = [&](Inode inode) {
    const std::vector<DirectoryEntry> entries = list(inode);
    EXPECT_EQ(entries[0].inode, inode);
    return entries[1].inode;
  };
  EXPECT_EQ(parents(kRoot), kRoot);
  EXPECT_EQ(parents(kTags), kRoot);
  EXPECT_EQ(parents(inode_of(9, 0)), kVersions);
  EXPECT_EQ(parents(inode_of(9, 3)), inode_of(9, 0));
}

TEST_F(TreeTest, EveryListingGoesOnBehindAnyOffset) {
  for (const Inode inode :
       {kRoot, kVersions, kTags, make_inode(Fixed::control), inode_of(9, 0), inode_of(9, 3)}) {
    const Names all = names(inode);
    const std::vector<DirectoryEntry> entries = list(inode);
    for (std::size_t i = 0; i < entries.size(); i++) {
      const Names rest(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end());
      EXPECT_EQ(names(inode, entries[i].next), rest) << "inode " << inode << " entry " << i;
    }
  }
}

TEST_F(TreeTest, AListingStopsWhenTheReaderHasEnough) {
  for (const Inode inode : {kRoot, kVersions, kTags, inode_of(9, 0)}) {
    for (std::size_t enough = 1; enough <= 4; enough++) {
      std::size_t seen = 0;
      tree().read_directory(inode, 0, [&](const DirectoryEntry&) { return ++seen < enough; });
      EXPECT_EQ(seen, std::min(enough, names(inode).size()));
    }
  }
}

TEST_F(TreeTest, OffsetsStayRightWhileVersionsComeAndGo) {
  const std::uint64_t behind_9 = list(kVersions)[3].next;
  catalog_->versions.erase(1);
  catalog_->versions.erase(9);
  catalog_->versions[10] = make_version(10, "");
  EXPECT_EQ(names(kVersions, behind_9), (Names{"10", "12"}));
  const std::uint64_t behind_zero = list(kTags)[2].next;
  catalog_->tags.erase("zero");
  EXPECT_EQ(names(kTags, behind_zero), (Names{"elsewhere", "alpha"}));
}

TEST_F(TreeTest, OpenNamesTheImage) {
  EXPECT_EQ(std::get<LocalFile>(tree().open(inode_of(9, 4))).image, "/store/images/9/sub/x.json");
  EXPECT_EQ(std::get<LocalFile>(tree().open(inode_of(9, 2))).size_bytes, 1025u);
  EXPECT_TRUE(std::holds_alternative<TextFile>(tree().open(make_inode(Fixed::status))));
}

TEST_F(TreeTest, WhatIsNoFileCannotBeOpened) {
  const Inode latest = make_inode(Fixed::latest);
  for (const Inode inode :
       {kRoot, latest, inode_of(9, 0), inode_of(9, 3), make_inode({InodeKind::tag, 9, 0})}) {
    expect_error(ErrorCode::invalid, [&] { (void)tree().open(inode); });
  }
}

TEST_F(TreeTest, AVersionThatWentAwayIsNotFound) {
  catalog_->versions.erase(9);
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(kVersions, "9"); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().lookup(inode_of(9, 0), "config.json"); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(inode_of(9, 1)); });
  expect_error(ErrorCode::not_found, [&] { (void)tree().open(inode_of(9, 1)); });
  expect_error(ErrorCode::not_found, [&] { (void)names(inode_of(9, 0)); });
}

TEST_F(TreeTest, NumbersThatWereNeverGivenOutAreNotFound) {
  const Inode beyond_fixed =
      make_inode({InodeKind::fixed, 256, 1});  // its low 32 bits are the root
  for (const Inode inode : {Inode{0}, Inode{7}, beyond_fixed, inode_of(9, 5), inode_of(0, 0),
                            make_inode({InodeKind::tag, 0, 0}), make_inode({InodeKind::tag, 9, 1}),
                            make_inode({static_cast<InodeKind>(3), 1, 1}), ~Inode{0}}) {
    SCOPED_TRACE(inode);
    expect_error(ErrorCode::not_found, [&] { (void)tree().attributes(inode); });
    expect_error(ErrorCode::not_found, [&] { (void)tree().open(inode); });
    expect_error(ErrorCode::not_found, [&] { (void)tree().read_link(inode); });
    expect_error(ErrorCode::not_found, [&] { (void)names(inode); });
  }
}

TEST_F(TreeTest, OnlyDirectoriesHaveNames) {
  for (const Inode inode : {make_inode(Fixed::latest), make_inode(Fixed::status), inode_of(9, 1),
                            make_inode({InodeKind::tag, 9, 0})}) {
    expect_error(ErrorCode::invalid, [&] { (void)tree().lookup(inode, "x"); });
    expect_error(ErrorCode::invalid, [&] { (void)names(inode); });
  }
}

TEST_F(TreeTest, OnlySymlinksHaveTargets) {
  for (const Inode inode : {kRoot, make_inode(Fixed::status), inode_of(9, 0), inode_of(9, 1)}) {
    expect_error(ErrorCode::invalid, [&] { (void)tree().read_link(inode); });
  }
}

TEST_F(TreeTest, EachCallUsesOneCatalogFromStartToEnd) {
  std::size_t calls = 0;
  const Tree counting(
      [&] {
        calls++;
        return catalog_;
      },
      {});
  (void)counting.lookup(kVersions, "9");
  EXPECT_EQ(calls, 1u);
  (void)counting.open(inode_of(9, 1));
  EXPECT_EQ(calls, 2u);
  counting.read_directory(inode_of(9, 3), 0, [](const DirectoryEntry&) { return true; });
  EXPECT_EQ(calls, 3u);
}

TEST_F(TreeTest, ListsWhatIsBeingFilledAndOpensItsFilesAsFarAsTheyAreHere) {
  add_incomplete(10, ImageState::partial);
  EXPECT_EQ(names(kVersions), (std::vector<std::string>{".", "..", "1", "9", "10", "12"}));
  EXPECT_EQ(names(kVersions, 11), (std::vector<std::string>{"10", "12"}));
  EXPECT_EQ(tree().lookup(kVersions, "10").attributes.st_ino, inode_of(10, 0));
  EXPECT_TRUE(std::holds_alternative<LocalFile>(tree().open(inode_of(10, 1))));
  const auto file = std::get<StreamingFile>(tree().open(inode_of(10, 4)));
  EXPECT_TRUE(file.has_begun);
  EXPECT_EQ(file.version, 10u);
  EXPECT_EQ(file.local.path, "sub/x.json");
  EXPECT_EQ(file.local.image, "/store/images/10/sub/x.json");
}

TEST_F(TreeTest, AFileThatIsNotKeptIsRemoteWhetherItsVersionIsCompleteOrNot) {
  auto version = std::make_shared<CatalogVersion>(*make_version(10, ""));
  version->entries[2].image = ImageState::absent;
  version->entries[2].is_remote = true;
  catalog_->versions[10] = version;
  const auto is_remote = [&] {
    const auto file = std::get<RemoteFile>(tree().open(inode_of(10, 2)));
    return file.version == 10 && file.path == "model.safetensors" && file.size_bytes == 1025;
  };
  EXPECT_TRUE(is_remote());
  EXPECT_TRUE(std::holds_alternative<LocalFile>(tree().open(inode_of(10, 1))));
  catalog_->versions.erase(10);
  catalog_->incomplete[10] = {version, ImageState::partial};
  EXPECT_TRUE(is_remote());
}

TEST_F(TreeTest, OpensWhatWasNamedButDoesNotListIt) {
  add_incomplete(5, ImageState::absent);
  EXPECT_EQ(names(kVersions), (std::vector<std::string>{".", "..", "1", "9", "12"}));
  EXPECT_EQ(tree().attributes(tree().lookup(kVersions, "5").attributes.st_ino).attributes.st_ino,
            inode_of(5, 0));
  EXPECT_EQ(names(inode_of(5, 0)),
            (std::vector<std::string>{".", "..", "config.json", "model.safetensors", "sub"}));
  EXPECT_FALSE(std::get<StreamingFile>(tree().open(inode_of(5, 2))).has_begun);
}

TEST_F(TreeTest, KnowsWhatIsAVersionsNameAndWhatIsNot) {
  add_incomplete(5, ImageState::absent);
  EXPECT_EQ(tree().find_unnamed(kVersions, "4"), 4U);
  EXPECT_EQ(tree().find_unnamed(kVersions, "68719476735"), 68719476735U);
  for (const char* name : {"5", "9", "0", "04", "x", "4x", "", "68719476736", "-1"}) {
    EXPECT_EQ(tree().find_unnamed(kVersions, name), std::nullopt) << name;
  }
  EXPECT_EQ(tree().find_unnamed(kTags, "4"), std::nullopt);
}

TEST_F(TreeTest, AVersionThatWasEvictedIsNamedAgainForWhoIsOnTheWayToAFileOfIt) {
  add_incomplete(5, ImageState::absent);
  EXPECT_EQ(tree().find_unnamed(inode_of(4, 0), "config.json"), 4U);
  EXPECT_EQ(tree().find_unnamed(inode_of(5, 0), "config.json"), std::nullopt);
}

}  // namespace
}  // namespace weightfs::fs
