#include "store/materialize/adopt.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <thread>

#include "store/base/error.hpp"
#include "store/format/version_images.hpp"
#include "store/local/image_times.hpp"
#include "store/local/sync_images.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

struct stat attributes_of(const stdfs::path& path) {
  struct stat found {};
  EXPECT_EQ(::lstat(path.c_str(), &found), 0) << path;
  return found;
}

class AdoptTest : public testing::Test {
 protected:
  stdfs::path checkpoint(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    write_checkpoint(directory, version, 50'000);
    write_text(directory / "sub/notes.md", "notes of " + std::to_string(version));
    write_text(directory / "optimizer.pt", "not published");
    return directory;
  }

  /// Publishes; the result contains the lock.
  PublishResult publish(const stdfs::path& directory) {
    PublishOptions options;
    options.directory = directory;
    options.lock_images = true;
    return host_.publish(options);
  }

  void adopt(const PublishResult& result, const stdfs::path& source) {
    adopt_images(*host_.store, result.images, source, result.images_lock);
  }

  /// The version as read by a new host from the bucket.
  std::map<std::string, std::string> fetched(std::uint64_t version) {
    Host reader(bucket_, dir_ / ("reader-" + std::to_string(readers_++)));
    return reader.read_version(version);
  }

  std::map<std::string, std::string> adopted(std::uint64_t version) {
    return read_tree(host_.store->images().image_directory(version));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host host_{bucket_, dir_ / "store"};

 private:
  int readers_ = 0;
};

TEST_F(AdoptTest, MakesThePublishedFilesTheImagesWithoutFetchingOrCopyingThem) {
  for (unsigned version = 1; version <= 3; version++) {
    const auto directory = checkpoint(version);
    const PublishResult result = publish(directory);
    const std::uint64_t calls = bucket_->calls();
    adopt(result, directory);
    EXPECT_TRUE(host_.store->images().is_complete(version));
    EXPECT_EQ(bucket_->calls(), calls);
    EXPECT_EQ(adopted(version), fetched(version));
    EXPECT_FALSE(adopted(version).contains("optimizer.pt"));
    for (const auto& file : result.images.files) {
      const auto image = attributes_of(host_.store->images().image_directory(version) / file.path);
      EXPECT_EQ(image.st_ino, attributes_of(directory / file.path).st_ino) << file.path;
      EXPECT_EQ(image.st_mode, S_IFREG | 0444u) << file.path;
      EXPECT_EQ(image.st_mtim.tv_sec, result.images.time) << file.path;
      EXPECT_TRUE(is_sealed(image)) << file.path;
      EXPECT_EQ(static_cast<std::uint64_t>(image.st_size), file.size_bytes) << file.path;
    }
  }
}

TEST_F(AdoptTest, RecordsWhatAReaderWouldHaveRecorded) {
  publish(checkpoint(1)).images_lock.unlock();
  const auto directory = checkpoint(2);
  adopt(publish(directory), directory);
  Host reader(bucket_, dir_ / "reader");
  reader.read_version(2);
  EXPECT_EQ(host_.store->images().chunk_hashes(2), reader.store->images().chunk_hashes(2));

  // The next version is coded against the adopted one, and decodes correctly.
  publish(checkpoint(3)).images_lock.unlock();
  EXPECT_EQ(host_.read_version(3), fetched(3));
}

TEST_F(AdoptTest, IsStillCompleteWhenTheStoreIsOpenedAgain) {
  const auto directory = checkpoint(1);
  adopt(publish(directory), directory);
  stdfs::remove_all(directory);
  EXPECT_EQ(sync_images(host_.store->images(), 1), SyncedImages::synced);
  host_.store.reset();
  host_.store =
      Store::open(dir_ / "store", host_.repository->id(), host_.repository->url(), kNoFloor);
  EXPECT_TRUE(host_.store->images().is_complete(1));
  EXPECT_EQ(adopted(1), fetched(1));
}

// The disk told that once, to whoever synced the images that were made of it before.
TEST_F(AdoptTest, TakesNoFileThatTheDiskLost) {
  const auto directory = checkpoint(1);
  const PublishResult result = publish(directory);
  for (const auto& entry : stdfs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const timespec times[2] = {{1, 0}, {1, 1}};
    ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
  }
  EXPECT_EQ(code_of([&] { adopt(result, directory); }), ErrorCode::corrupt);
  EXPECT_FALSE(host_.store->images().is_complete(1));
}

TEST_F(AdoptTest, DoesNothingIfTheVersionIsComplete) {
  const auto directory = checkpoint(1);
  const PublishResult result = publish(directory);
  adopt(result, directory);
  const auto before = attributes_of(host_.store->images().image_directory(1) / "config.json");
  stdfs::remove_all(directory);
  adopt(result, directory);
  EXPECT_EQ(attributes_of(host_.store->images().image_directory(1) / "config.json").st_ino,
            before.st_ino);
}

TEST_F(AdoptTest, CanBeDoneAgainAfterACrashHalfway) {
  const auto directory = checkpoint(1);
  const PublishResult result = publish(directory);
  // The state after a killed adoption: some files, no record.
  const auto images = host_.store->images().begin_images(1);
  stdfs::create_hard_link(directory / "config.json", images / "config.json");
  write_text(images / "stray", "of another attempt");
  adopt(result, directory);
  EXPECT_TRUE(host_.store->images().is_complete(1));
  EXPECT_EQ(adopted(1), fetched(1));
}

TEST_F(AdoptTest, LeavesNothingWhereAFileIsMissingOrNotWhatWasPublished) {
  const std::string shard = "model-00002-of-00002.safetensors";
  const auto directory = checkpoint(1);
  const PublishResult result = publish(directory);
  const std::vector<std::pair<ErrorCode, std::function<void()>>> damages{
      {ErrorCode::not_found, [&] { stdfs::remove(directory / shard); }},
      {ErrorCode::invalid, [&] { stdfs::resize_file(directory / shard, 10); }},
      {ErrorCode::invalid,
       [&] {
         stdfs::remove(directory / shard);
         stdfs::create_symlink("config.json", directory / shard);
       }},
  };
  for (const auto& [code, damage] : damages) {
    stdfs::remove_all(directory);
    checkpoint(1);
    damage();
    const Error error = error_of([&] { adopt(result, directory); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(shard), std::string::npos) << error.what();
    EXPECT_FALSE(host_.store->images().is_complete(1));
    EXPECT_FALSE(stdfs::exists(host_.store->images().image_directory(1)));
  }
}

TEST_F(AdoptTest, TakesNoSmallFileWithOtherBytes) {
  const auto directory = checkpoint(1);
  const PublishResult result = publish(directory);
  std::string notes = read_text(directory / "sub/notes.md");
  notes[0] ^= 1;
  write_text(directory / "sub/notes.md", notes);
  const Error error = error_of([&] { adopt(result, directory); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  EXPECT_NE(std::string(error.what()).find("notes.md"), std::string::npos) << error.what();
  EXPECT_FALSE(host_.store->images().is_complete(1));
}

TEST_F(AdoptTest, KnowsWhatToRecordOfAVersionWhosePublisherIsGone) {
  for (unsigned version = 1; version <= 3; version++) {
    const auto directory = checkpoint(version);
    PublishResult result = publish(directory);
    const VersionImages images = images_of(host_.history, *host_.store, version, {});
    EXPECT_EQ(images.version, version);
    EXPECT_EQ(images.time, result.images.time);
    EXPECT_EQ(images.chunk_hashes, result.images.chunk_hashes);
    ASSERT_EQ(images.files.size(), result.images.files.size());
    for (std::size_t i = 0; i < images.files.size(); i++) {
      EXPECT_EQ(images.files[i].path, result.images.files[i].path);
      EXPECT_EQ(images.files[i].size_bytes, result.images.files[i].size_bytes);
    }
    if (version == 2)
      continue;  // then neither its images nor those of the next one's parent are
                 // here
    adopt_images(*host_.store, images, directory, result.images_lock);
    EXPECT_EQ(adopted(version), fetched(version));
  }
}

TEST_F(AdoptTest, KeepsOthersFromFetchingTheVersionMeanwhile) {
  publish(checkpoint(1)).images_lock.unlock();
  const auto directory = checkpoint(2);
  PublishResult result = publish(directory);
  std::atomic<bool> is_there{false};
  std::jthread sync([&] {
    materialize(*host_.store, host_.history, 2, {}, {});
    EXPECT_TRUE(is_there);
  });
  adopt(result, directory);
  const auto inode = attributes_of(directory / "config.json").st_ino;
  is_there = true;
  result.images_lock.unlock();
  sync.join();
  EXPECT_EQ(attributes_of(host_.store->images().image_directory(2) / "config.json").st_ino, inode);
}

}  // namespace
}  // namespace weightfs::test
