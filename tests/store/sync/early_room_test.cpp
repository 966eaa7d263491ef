// Early versions: the room that a head start needs, and what makes it.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "store/base/error.hpp"
#include "store/local/delta_table.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/file.hpp"
#include "store/os/memory_room.hpp"
#include "tests/store/sync/early_version_fixture.hpp"

namespace weightfs::test {
namespace {

TEST_F(EarlyVersionTest, NothingIsEvictedForItAndItGoesFirst) {
  Space space{.free_bytes = 1u << 30, .total_bytes = 2u << 30};
  const Host* host = nullptr;
  Host small(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "small",
             {1u << 30, 64u << 20}, [&] {
               const std::uint64_t early = host ? host->store->early_images().size_bytes() : 0;
               return Space{space.free_bytes - early, space.total_bytes};
             });
  host = &small;
  small.read_version(1);
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  const auto make_there = [&] {
    return make_early(*small.store, small.history, record, kernels::make_cpu_coder(), {}).bytes;
  };
  const std::uint64_t bytes = bytes_of(directory, all());
  space.free_bytes = (64u << 20) + bytes - 1;
  EXPECT_EQ(make_there(), 0u) << "no room";
  EXPECT_TRUE(small.store->images().is_complete(1));
  space.free_bytes = 1u << 30;
  EXPECT_EQ(make_there(), bytes);
  space.free_bytes = (64u << 20) + bytes;
  small.store->evictor().evict_for_free_bytes(1);
  EXPECT_EQ(small.store->early_images().size_bytes(), 0u) << "before any version";
  EXPECT_TRUE(small.store->images().is_complete(1));
}

TEST_F(EarlyVersionTest, WhatIsThereNeedsNoRoomAgain) {
  Space space{.free_bytes = 1u << 30, .total_bytes = 2u << 30};
  Host small(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "small",
             {std::nullopt, 64u << 20}, [&] { return space; });
  small.read_version(1);
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  EXPECT_GT(make_early(*small.store, small.history, record, kernels::make_cpu_coder(), {}).bytes,
            0u);
  publish(directory, take());
  space.free_bytes = (64u << 20) + (1u << 20);  // for the small file alone
  EXPECT_EQ(small.read_version(2), read_tree(directory));
  EXPECT_TRUE(small.store->images().is_complete(1)) << "nothing had to go";
}

/// A host with room for three versions, which it has.
class FullHostHeadStart : public EarlyVersionTest {
 protected:
  void SetUp() override {
    for (std::uint64_t version = 1; version <= 3; version++) {
      if (version > 1) publish(step(), nullptr);
      full_.read_version(version);
    }
    next_ = step();
    record_ = code(next_, all());
  }

  std::uint64_t make_there() {
    return make_early(*full_.store, full_.history, record_, kernels::make_cpu_coder(), {}).bytes;
  }
  [[nodiscard]] bool has(std::uint64_t version) const {
    return full_.store->images().is_complete(version);
  }
  /// As a process that reads the version.
  [[nodiscard]] File open_of(std::uint64_t version) const {
    return File::open(full_.store->images().image_directory(version) / "a.safetensors", O_RDONLY);
  }
  void expect_version_takes_it() {
    publish(next_, take());
    EXPECT_EQ(full_.read_version(4), read_tree(next_));
    EXPECT_EQ(full_.store->early_images().taken_bytes(), bytes_of(next_, all()));
  }

  Space space_{.free_bytes = 1u << 30, .total_bytes = 2u << 30};
  Host full_{Repository::open(std::make_unique<BucketView>(bucket_), {}),
             dir_ / "full",
             {std::nullopt, 64u << 20},
             [this] { return space_; }};
  Path next_;
  EarlyRecord record_;
};

// It was in use when room was to be made ahead, and nobody has asked since.
TEST_F(FullHostHeadStart, WhatShouldHaveGoneAheadGoesNow) {
  sync_all_images(full_.store->images());
  EXPECT_EQ(make_there(), bytes_of(next_, all()));
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2) && has(3));
  expect_version_takes_it();
}

// An engine that keeps its files mapped.
TEST_F(FullHostHeadStart, WhatIsInUseStaysAndCountsForNothing) {
  sync_all_images(full_.store->images());
  const File reader = open_of(1);
  EXPECT_EQ(make_there(), bytes_of(next_, all()));
  EXPECT_TRUE(has(1) && has(2) && has(3));
  EXPECT_EQ(make_there(), 0u) << "it is there";
  expect_version_takes_it();
  EXPECT_TRUE(has(1));
}

TEST_F(FullHostHeadStart, NothingGoesBeforeTheParentIsOnTheDisk) {
  EXPECT_EQ(make_there(), 0u);
  EXPECT_TRUE(has(1) && has(2) && has(3));
}

// Also where the limit of the store would allow it, as for what is in use.
TEST_F(FullHostHeadStart, TheFileSystemMustHaveTheRoom) {
  sync_all_images(full_.store->images());
  const File reader = open_of(1);
  const std::uint64_t bytes = bytes_of(next_, all());
  space_.free_bytes = (64u << 20) + bytes - 1;
  EXPECT_EQ(make_there(), 0u);
  space_.free_bytes++;
  EXPECT_TRUE(has(1) && has(2) && has(3)) << "whatever else might go";
  EXPECT_EQ(make_there(), bytes);
}

// They go when the version comes, and not before: their bytes are no room yet.
TEST_F(FullHostHeadStart, DeltasAsFilesAreNotFreeYet) {
  sync_all_images(full_.store->images());
  const File reader = open_of(1);
  DeltaTable& deltas = full_.store->deltas();  // no reader opens it: the next one is not wanted
  const std::string content = "values";
  const Path file = deltas.begin({2, 3}, content.size()).value();
  write_text(file, content);
  deltas.complete({2, 3}, file);
  const Path delta = deltas.find({2, 3}).value();
  const std::uint64_t bytes = bytes_of(next_, all());
  space_.free_bytes = (64u << 20) + bytes - 1;
  EXPECT_EQ(make_there(), 0u);
  EXPECT_TRUE(std::filesystem::exists(delta));
  space_.free_bytes++;
  EXPECT_EQ(make_there(), bytes);
  EXPECT_TRUE(std::filesystem::exists(delta)) << "nothing had to go";
  expect_version_takes_it();
}

/// A host that sees the bytes of its files in its file system.
class UselessHeadStart : public EarlyVersionTest {
 protected:
  static constexpr std::uint64_t kFloor = 64u << 20;

  /// Room for so many versions, and a little more.
  void set_room(unsigned versions) { room_ = kFloor + versions * bytes_ + (1u << 20); }
  /// Makes files of a save, and publishes other ones: these alone fit.
  Path give_up(const std::set<std::string>& fitting) {
    const Path directory = step();
    const EarlyRecord record = code(directory, all());
    EXPECT_EQ(make_early(*host_.store, host_.history, record, kernels::make_cpu_coder(), {}).bytes,
              bytes_of(directory, all()));
    for (const std::string& path : all()) {
      if (!fitting.contains(path)) save_again(directory, path);
    }
    publish(directory, take());
    return directory;
  }
  std::uint64_t bytes_on_disk() const {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "host")) {
      if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
    }
    return bytes;
  }
  void expect_version(std::uint64_t version, const Path& directory) {
    EXPECT_EQ(host_.read_version(version), read_tree(directory));
  }

  const std::uint64_t bytes_ = bytes_of(save(), all());
  std::uint64_t room_ = 1u << 30;
  Host host_{Repository::open(std::make_unique<BucketView>(bucket_), {}),
             dir_ / "host",
             {std::nullopt, kFloor},
             [this] {
               return Space{room_ - std::min(room_, bytes_on_disk()), 2u << 30};
             }};
};

TEST_F(UselessHeadStart, GivesItsRoomToTheVersion) {
  host_.read_version(1);
  set_room(2);
  expect_version(2, give_up({}));
}

TEST_F(UselessHeadStart, GivesItsRoomWhereSomeOfItIsOfUse) {
  host_.read_version(1);
  set_room(2);
  expect_version(2, give_up({"a.safetensors"}));
  EXPECT_GT(host_.store->early_images().taken_bytes(), 0u);
}

TEST_F(UselessHeadStart, GoesBeforeAnyVersion) {
  host_.read_version(1);
  publish(step(), nullptr);
  host_.read_version(2);
  set_room(3);
  expect_version(3, give_up({"a.safetensors"}));
  EXPECT_TRUE(host_.store->images().is_complete(1));
}

// As after a poll that finds two versions at once.  It was kept until the version was shown, in the
// room that the version needed.
TEST_F(UselessHeadStart, LeavesTheMemoryBeforeAVersionThatCameWithItsOwn) {
  host_.read_version(1);
  try {
    host_.store->use_memory([] { return std::optional<MemoryRoom>(); });
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Path directory = give_up(all());
  const Path next = step();
  publish(next, nullptr);
  const Path temporary = host_.store->images().temporary_of(ImagesHome::memory);
  EXPECT_FALSE(std::filesystem::is_empty(temporary));
  expect_version(3, next);
  EXPECT_EQ(host_.store->images().home_of(3), ImagesHome::memory);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST_F(UselessHeadStart, StaysWhereThereIsRoom) {
  host_.read_version(1);
  const Path directory = give_up({"a.safetensors"});
  const std::uint64_t before = bytes_on_disk();
  expect_version(2, directory);
  EXPECT_EQ(bytes_on_disk(), before + bytes_of(directory, {"b.safetensors", "c.safetensors"}))
      << "nobody waited for it to go";
  host_.store->early_images().drop_until(2);
  EXPECT_EQ(bytes_on_disk(), 2 * bytes_);
}

}  // namespace
}  // namespace weightfs::test
