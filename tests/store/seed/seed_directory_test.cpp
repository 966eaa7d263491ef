#include "store/seed/seed_directory.hpp"

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "store/seed/snapshot_seed.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

using test::error_of;
using test::make_safetensors;
using test::random_tensor;
using test::write_text;

class SeedDirectoryTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::vector<test::TestTensor>& tensors) {
    write_text(directory_ / name, make_safetensors(tensors));
  }
  std::shared_ptr<const SeedDirectory> open() { return SeedDirectory::open(directory_.path()); }
  /// The files that have such a tensor, by name.
  static std::vector<std::string> files_with(const SeedDirectory& seed,
                                             const test::TestTensor& tensor) {
    LayoutTensor wanted;
    wanted.name = tensor.name;
    wanted.dtype = tensor.dtype;
    wanted.shape = tensor.shape;
    std::vector<std::string> names;
    for (const auto& place : seed.find(wanted)) {
      names.push_back(seed.path_of(place.file).filename());
    }
    return names;
  }
  using Names = std::vector<std::string>;

  void expect_refused(const std::filesystem::path& path, ErrorCode code, const char* why) {
    const Error error = error_of([&] { SeedDirectory::open(path); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_TRUE(test::contains(error.what(), path.string())) << error.what();
    EXPECT_TRUE(test::contains(error.what(), why)) << error.what();
  }

  /// Root may read anything.  Without effect for others.
  static void as_somebody(const std::function<void()>& body) {
    ::setfsuid(65534);
    body();
    ::setfsuid(::geteuid());
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
};

TEST_F(SeedDirectoryTest, TensorsAreFoundByNameDtypeAndShapeInAnyFile) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  auto turned = random_tensor("x", Dtype::bf16, {4, 3}, rng_);
  auto half = random_tensor("x", Dtype::f16, {3, 4}, rng_);
  auto y = random_tensor("y", Dtype::bf16, {3, 4}, rng_);
  write("b.safetensors", {x});
  write("a.safetensors", {x});
  write("sub/c.safetensors", {turned});
  write(".hidden/d.safetensors", {y});
  write_text(directory_ / "e.bin", make_safetensors({y}));
  const auto seed = open();
  EXPECT_EQ(files_with(*seed, x), (Names{"a.safetensors", "b.safetensors"}));
  EXPECT_EQ(files_with(*seed, turned), Names{"c.safetensors"});
  EXPECT_EQ(files_with(*seed, half), Names{});
  EXPECT_EQ(files_with(*seed, y), Names{});
  EXPECT_EQ(seed->state().files, 3u);
  EXPECT_EQ(seed->state().tensors, 3u);
}

TEST_F(SeedDirectoryTest, AtMostAFewOfOneNameAreKnown) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  for (int i = 0; i < 9; i++) write(std::to_string(i) + ".safetensors", {x});
  EXPECT_EQ(files_with(*open(), x).size(), SeedDirectory::kPlacesMax);
}

// As in a cache of the Hub: every file is a symlink to a blob.
TEST_F(SeedDirectoryTest, SymlinksToFilesAreFollowedAndAFileIsReadOnce) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  write("blobs/0123", {x});
  std::filesystem::create_directories(directory_ / "snapshots/1");
  std::filesystem::create_directories(directory_ / "snapshots/2");
  for (const char* name : {"snapshots/1/a.safetensors", "snapshots/2/a.safetensors"}) {
    std::filesystem::create_symlink("../../blobs/0123", directory_ / name);
  }
  std::filesystem::create_symlink("nothing", directory_ / "dangling.safetensors");
  std::filesystem::create_symlink("loop.safetensors", directory_ / "loop.safetensors");
  std::filesystem::create_directory_symlink("..", directory_ / "snapshots/up");
  ASSERT_EQ(::mkfifo((directory_ / "fifo.safetensors").c_str(), 0600), 0);
  const auto seed = open();
  EXPECT_EQ(files_with(*seed, x), Names{"a.safetensors"});
  EXPECT_EQ(seed->state().files, 1u);
}

TEST_F(SeedDirectoryTest, WhatIsNoneIsRefusedByName) {
  expect_refused(directory_ / "none", ErrorCode::not_found, "there is no seed directory");
  write_text(directory_ / "file", "");
  expect_refused(directory_ / "file", ErrorCode::invalid, "is not a directory");
  expect_refused(directory_.path(), ErrorCode::invalid, "has no safetensors file;");
  const std::string whole = make_safetensors({random_tensor("x", Dtype::bf16, {30, 40}, rng_)});
  write_text(directory_ / "cut.safetensors", whole.substr(0, whole.size() - 1));
  expect_refused(directory_.path(), ErrorCode::invalid, "cut.safetensors");
}

TEST_F(SeedDirectoryTest, AFileThatCannotBeReadIsLeftOut) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  const std::string whole = make_safetensors({x});
  write_text(directory_ / "a.safetensors", whole.substr(0, whole.size() - 1));
  write_text(directory_ / "b.safetensors", "not this");
  write_text(directory_ / "c.safetensors", "");
  write("d.safetensors", {x});
  EXPECT_EQ(files_with(*open(), x), Names{"d.safetensors"});
}

// As `lost+found`, or what another user put there.
TEST_F(SeedDirectoryTest, ADirectoryBelowThatCannotBeReadIsLeftOut) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  write("a/first.safetensors", {x});
  write("locked/hidden.safetensors", {x});
  write("z/last.safetensors", {x});
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(directory_ / "locked", std::filesystem::perms(0));
  std::optional<Names> found;
  testing::internal::CaptureStderr();
  as_somebody([&] { EXPECT_NO_THROW(found = files_with(*open(), x)); });
  const std::string log = testing::internal::GetCapturedStderr();
  std::filesystem::remove_all(directory_ / "a");
  std::filesystem::remove_all(directory_ / "z");
  as_somebody([&] { expect_refused(directory_.path(), ErrorCode::invalid, "locked"); });
  std::filesystem::permissions(directory_ / "locked", std::filesystem::perms(0700));
  EXPECT_EQ(found, (Names{"first.safetensors", "last.safetensors"}));
  EXPECT_TRUE(test::contains(log, (directory_ / "locked").string())) << log;
}

// It would hang who opens it for reading.
TEST_F(SeedDirectoryTest, WhatHasBecomeAFifoIsNotOpened) {
  write("a.safetensors", {random_tensor("x", Dtype::bf16, {3, 4}, rng_)});
  const auto seed = open();
  std::filesystem::remove(directory_ / "a.safetensors");
  ASSERT_EQ(::mkfifo((directory_ / "a.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { static_cast<void>(seed->open_file(0)); }).code(), ErrorCode::io);
}

TEST_F(SeedDirectoryTest, ATensorThatIsOftenWrongIsLeftAlone) {
  const auto x = random_tensor("x", Dtype::bf16, {3, 4}, rng_);
  const auto y = random_tensor("y", Dtype::bf16, {3, 4}, rng_);
  write("a.safetensors", {x, y});
  test::RepositoryBuilder builder;
  builder.add({{"a.safetensors", make_safetensors({x, y})}});
  SnapshotSeed seed(open(), builder.layout(1));
  for (int i = 1; i < SnapshotSeed::kWrongMax; i++) seed.note_wrong(0);
  EXPECT_EQ(seed.places(0).size(), 1u);
  for (int i = 0; i < 300; i++) seed.note_wrong(0);  // no overflow
  EXPECT_EQ(seed.places(0).size(), 0u);
  EXPECT_EQ(seed.places(1).size(), 1u);
}

}  // namespace
}  // namespace weightfs
