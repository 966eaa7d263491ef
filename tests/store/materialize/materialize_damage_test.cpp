// Materialize: damage in the bucket and on this host.
#include <gtest/gtest.h>

#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::BuildOptions;
using test::error_of;
using test::flip_byte;
using test::inode_of;
using test::Materialize;
using test::mentions;
using test::Model;
using test::nudge;
using test::random_tensor;
using test::small_model;
using test::TestTensor;

// ---- damage in the bucket ----

/// Two versions; the second is built from the first.
class DamagedBucket : public Materialize {
 protected:
  void add_two(const BuildOptions& options) {
    builder_.add(model_.tree());
    first_ = write(plan(1));
    model_.nudge_all(0.01, rng_);
    builder_.add(model_.tree(), options);
  }

  /// The Error of planning and writing version 2; nothing may be left except its directory.
  Error error_of_two() {
    const Error error = error_of([&] { write(plan(2, {first_})); });
    expect_no_spools();
    return error;
  }

  void expect_error(ErrorCode code, const std::string& object) {
    const Error error = error_of_two();
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_TRUE(mentions(error, object)) << error.what() << "\nwithout " << object;
  }

  Model model_ = small_model(rng_);
  Base first_;
};

TEST_F(DamagedBucket, AFlippedByteOfAPackNamesThePack) {
  add_two({});
  builder_.flip(builder_.key("packs/2/"), -1);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AFlippedByteOfAPacksHeadNamesThePack) {
  add_two({});
  builder_.flip(builder_.key("packs/2/"), 20);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AMissingPackIsNotFound) {
  add_two({});
  const std::string key = builder_.key("packs/2/");
  builder_.bucket()->erase(key);
  expect_error(ErrorCode::not_found, key);
}

TEST_F(DamagedBucket, APackThatGoesMissingAfterThePlanIsNotFound) {
  add_two({});
  const std::string key = builder_.key("packs/2/");
  const Plan way = plan(2, {first_});
  builder_.bucket()->erase(key);
  const Error error = error_of([&] { write(way); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, ATruncatedPackNamesThePack) {
  add_two({});
  builder_.cut(builder_.key("packs/2/"), 1);
  expect_error(ErrorCode::corrupt, builder_.key("packs/2/"));
}

TEST_F(DamagedBucket, AWrongChunkHashNamesPackTensorAndChunk) {
  add_two({.wrong_hash = std::pair(1u, 1u)});
  const Error error = error_of_two();
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, builder_.key("packs/2/"))) << error.what();
  EXPECT_TRUE(mentions(error, "chunk 1 of tensor 'bytes' in 'a.safetensors'")) << error.what();
}

TEST_F(DamagedBucket, AWrongChunkHashInAnEarlierStepIsFoundThere) {
  add_two({.wrong_hash = std::pair(1u, 0u)});
  for (TestTensor& tensor : model_.files["b.safetensors"]) nudge(tensor, 0.01, rng_);
  builder_.add(model_.tree());
  const Error error = error_of([&] { write(plan(3, {first_})); });
  EXPECT_TRUE(mentions(error, builder_.key("packs/2/"))) << error.what();
}

TEST_F(DamagedBucket, AWrongRootNamesTheVersion) {
  add_two({.edit = [](Manifest& manifest) { manifest.root[0] ^= std::byte{1}; }});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, AWrongRootOnTheWayNamesItsVersion) {
  add_two({.edit = [](Manifest& manifest) { manifest.root[0] ^= std::byte{1}; }});
  model_.nudge_all(0.01, rng_);
  builder_.add(model_.tree());
  const Error error = error_of([&] { plan(3, {first_}); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, keys::manifest(2))) << error.what();
}

TEST_F(DamagedBucket, AChunkInTwoPacksIsRefused) {
  add_two({.doubled = std::pair(0u, 0u)});
  expect_error(ErrorCode::corrupt, "packs/2/");
}

TEST_F(DamagedBucket, AChunkThatMustBeListedAndIsNotIsRefused) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  model_.files["new.safetensors"] = {random_tensor("new", Dtype::u8, {100}, rng_)};
  constexpr std::uint32_t kNew = 5;  // after the tensors of a and b
  builder_.add(model_.tree(), {.left_out = std::pair(kNew, 0u)});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, AChunkOfAnotherSizeThatIsNotListedIsRefused) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  TestTensor& bytes = model_.files["a.safetensors"][1];
  bytes.data.resize(bytes.data.size() - 1);
  bytes.shape = {bytes.data.size()};
  nudge(model_.files["b.safetensors"][0], 0.01, rng_);
  builder_.add(model_.tree(), {.left_out = std::pair(1u, 1u)});
  expect_error(ErrorCode::corrupt, keys::manifest(2));
}

TEST_F(DamagedBucket, ADamagedBlobNamesIt) {
  builder_.add(model_.tree());
  first_ = write(plan(1));
  model_.blobs["config.json"] = "{\"other\":1}";
  builder_.add(model_.tree());
  const std::string key = keys::blob(history_.get(2, {})->manifest.blobs.front().sha256);
  builder_.flip(key, -1);
  expect_error(ErrorCode::corrupt, key);
  builder_.bucket()->erase(key);
  expect_error(ErrorCode::not_found, key);
}

TEST_F(DamagedBucket, AFlippedByteOfASnapshotNamesItsFile) {
  builder_.add(model_.tree());
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  builder_.flip(key, -1);
  const Error error = error_of([&] { write(plan(1)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, AMissingFileOfASnapshotIsNotFound) {
  builder_.add(model_.tree());
  const std::string key = builder_.key("snapshots/1/", "a.safetensors");
  builder_.bucket()->erase(key);
  const Error error = error_of([&] { write(plan(1)); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(mentions(error, key)) << error.what();
}

TEST_F(DamagedBucket, AFileThatIsABlobTooIsRefused) {
  builder_.add(model_.tree(),
               {.edit = [](Manifest& manifest) { manifest.blobs[0].path = "a.safetensors"; }});
  EXPECT_EQ(error_of([&] { plan(1); }).code(), ErrorCode::corrupt);
}

TEST_F(DamagedBucket, AFileThatIsADirectoryOfABlobIsRefused) {
  builder_.add(model_.tree(), {.edit = [](Manifest& manifest) {
                 manifest.blobs[0].path = "a.safetensors/config.json";
               }});
  EXPECT_EQ(error_of([&] { plan(1); }).code(), ErrorCode::corrupt);
}

TEST_F(DamagedBucket, StopsWhenTold) {
  add_two({});
  const Plan way = plan(2, {first_});
  std::stop_source stop;
  stop.request_stop();
  WriteOptions options;
  options.directory = directory_ / "stopped";
  options.spool = directory_.path();
  filesystem::create_directories(options.directory);
  Context context;
  context.stop = stop.get_token();
  EXPECT_EQ(error_of([&] { write_version(way, *repository_, options, context, {}); }).code(),
            ErrorCode::cancelled);
  expect_no_spools();
}

// ---- damage on this host ----

class DamagedBase : public DamagedBucket {
 protected:
  void expect_damaged(const std::string& object) {
    try {
      write(plan(2, {first_}));
      FAIL() << "nothing was thrown";
    } catch (const BaseDamaged& damaged) {
      EXPECT_EQ(damaged.version(), 1u);
      EXPECT_TRUE(mentions(damaged, object)) << damaged.what();
    }
  }
};

TEST_F(DamagedBase, ARottenByteNamesFileAndTensor) {
  add_two({});
  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  expect_damaged("a.safetensors: chunk 1 of tensor 'bytes'");
}

TEST_F(DamagedBase, AMissingImageIsDamage) {
  add_two({});
  filesystem::remove(first_.directory / "b.safetensors");
  expect_damaged("b.safetensors");
}

TEST_F(DamagedBase, AShortImageIsDamage) {
  add_two({});
  filesystem::permissions(first_.directory / "a.safetensors", filesystem::perms::owner_all);
  filesystem::resize_file(first_.directory / "a.safetensors", 70'000);
  expect_damaged("a.safetensors");
}

TEST_F(DamagedBase, AMissingBlobIsFetchedInstead) {
  add_two({});
  filesystem::remove(first_.directory / "config.json");
  expect_version(write(plan(2, {first_})));
}

// It has the right size, and was hard-linked into every later version.
TEST_F(DamagedBase, ADamagedBlobIsFetchedInstead) {
  add_two({});
  flip_byte(first_.directory / "config.json", 0);
  const Base second = write(plan(2, {first_}));
  expect_version(second);
  EXPECT_NE(inode_of(second.directory / "config.json"), inode_of(first_.directory / "config.json"));
}

/// A weights file that no step touches, but that was written to.
TEST_F(DamagedBase, AnUntouchedFileThatWasWrittenToIsNotLinked) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  nudge(model.files["b.safetensors"][0], 0.01, rng_);
  builder_.add(model.tree());
  first_ = write(plan(1));
  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  expect_damaged("a.safetensors");

  flip_byte(first_.directory / "a.safetensors", builder_.tree(1).at("a.safetensors").size() - 5);
  const Base second = write(plan(2, {first_}));  // the bytes are right again: rebuilt from them
  expect_version(second);
  EXPECT_NE(inode_of(second.directory / "a.safetensors"),
            inode_of(first_.directory / "a.safetensors"));
}

}  // namespace
}  // namespace weightfs
