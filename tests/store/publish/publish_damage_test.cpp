// Publish: checkpoints that change meanwhile, damaged parents, and gaps in the history.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>

#include "store/base/error.hpp"
#include "store/inspect/verify.hpp"
#include "store/publish/publish.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/fake_s3.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

// ---- writes to the checkpoint ----

class WrittenTo : public PublishTest, public testing::WithParamInterface<const char*> {};

TEST_P(WrittenTo, ACheckpointIsRefusedWhenItChangesMeanwhile) {
  publisher().publish(checkpoint(1));
  const auto directory = checkpoint(2);
  const std::string file = GetParam();
  for (const std::string when : {"scanned", "diffed", "layout"}) {
    PublishOptions options = options_of(directory);
    options.at = [&](std::string_view point) {
      if (point == when) write_text(directory / file, read_text(directory / file) + " ");
    };
    const Error error = error_of([&] { publisher().publish(options); });
    EXPECT_EQ(error.code(), ErrorCode::busy) << when << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
    write_checkpoint(directory, 2);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  EXPECT_EQ(publisher().publish(directory).version, 2u);
}

INSTANTIATE_TEST_SUITE_P(Publish, WrittenTo,
                         testing::Values("model-00001-of-00002.safetensors", "config.json"),
                         [](const auto& param) { return param.index == 0 ? "Shard" : "Blob"; });

TEST_F(PublishTest, RefusesACheckpointWhoseFileIsRemovedMeanwhile) {
  const auto directory = checkpoint(1);
  for (const std::string file : {"config.json", "model-00001-of-00002.safetensors"}) {
    PublishOptions options = options_of(directory);
    options.at = [&](std::string_view point) {
      if (point == "scanned") stdfs::remove(directory / file);
    };
    EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
    write_checkpoint(directory, 1);
  }
}

TEST_F(PublishTest, RefusesACheckpointWhoseFileBecomesAFifoMeanwhile) {
  const auto directory = checkpoint(1);
  PublishOptions options = options_of(directory);
  options.at = [&](std::string_view point) {
    if (point != "scanned") return;
    stdfs::remove(directory / "config.json");
    ASSERT_EQ(::mkfifo((directory / "config.json").c_str(), 0644), 0);
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
}

TEST_F(PublishTest, RefusesACheckpointThatSomebodyCanWriteTo) {
  const auto directory = checkpoint(1);
  for (const std::string name : {"model-00001-of-00002.safetensors", "config.json"}) {
    File writer = File::open(directory / name, O_RDWR);
    const Error opened = error_of([&] { publisher().publish(directory); });
    EXPECT_EQ(opened.code(), ErrorCode::busy) << opened.what();
    EXPECT_NE(std::string(opened.what()).find(name), std::string::npos) << opened.what();

    void* const bytes = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED, writer.fd(), 0);
    ASSERT_NE(bytes, MAP_FAILED);
    writer = File();
    const Error mapped = error_of([&] { publisher().publish(directory); });
    EXPECT_EQ(mapped.code(), ErrorCode::busy) << mapped.what();
    ASSERT_EQ(::munmap(bytes, 1), 0);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
  const File reader = File::open(directory / "config.json", O_RDONLY);
  EXPECT_EQ(publisher().publish(directory).version, 1u) << "readers do not matter";
}

// A writer that opens a file while the checkpoint is read, and keeps it open.
TEST_F(PublishTest, RefusesACheckpointThatSomebodyCanWriteToInTheEnd) {
  const auto directory = checkpoint(1);
  File writer;
  PublishOptions options = options_of(directory);
  options.at = [&](std::string_view point) {
    if (point == "layout") writer = File::open(directory / "config.json", O_RDWR);
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::busy);
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
}

/// Stores through a shared mapping that do not update the times: on a tmpfs, and on any file system
/// if the page is already dirty.  Each one is over before the kernel is asked about writers.
class StoredUnseen : public PublishTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    std::string path = "/dev/shm/weightfs-test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) GTEST_SKIP() << "no tmpfs at /dev/shm";
    shm_ = path;
    for (const unsigned version : {1u, 2u})
      write_checkpoint(shm_ / std::to_string(version), version);
    const File file = File::open(shard(1), O_RDONLY);
    const FileStamp before = stamp_of(file.fd());
    store(shard(1), 100'000);
    if (stamp_of(file.fd()) != before) GTEST_SKIP() << "the times of /dev/shm move";
  }
  void TearDown() override {
    if (!shm_.empty()) stdfs::remove_all(shm_);
  }

  [[nodiscard]] stdfs::path shard(unsigned version) const {
    return shm_ / std::to_string(version) / "model-00001-of-00002.safetensors";
  }

  static void store(const stdfs::path& path, std::size_t offset) {
    const File file = File::open(path, O_RDWR);
    const auto size = stdfs::file_size(path);
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    static_cast<char*>(mapped)[offset] ^= 1;
    ::munmap(mapped, size);
  }

  /// A new host with one of the three kinds of bucket.
  std::unique_ptr<Host> host() {
    const std::string kind = GetParam();
    bool created = false;
    if (kind == "directory") {
      return std::make_unique<Host>(Repository::init((dir_ / "bucket").string(), created, {}),
                                    dir_ / "store");
    }
    auto bucket = kind == "s3" ? s3_.open("run") : std::make_unique<BucketView>(bucket_);
    if (kind == "s3") bucket->put(keys::kRecord, TextSource(*bucket_->find(keys::kRecord)), {});
    return std::make_unique<Host>(Repository::open(std::move(bucket), {}), dir_ / "store");
  }

  /// True: refused with busy.  False: a version was published, which verifies.
  static bool is_refused(Host& host, const PublishOptions& options, const Progress& progress = {}) {
    const std::uint64_t newest = host.repository->newest_version(0, {});
    try {
      host.publish(options, {}, progress);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
      EXPECT_EQ(host.repository->newest_version(0, {}), newest);
      return true;
    }
    const VerifyReport report =
        verify_repository(host.history, host.store->temporary_directory(), {}, {});
    for (const Problem& problem : report.problems) ADD_FAILURE() << problem.message;
    return false;
  }

  stdfs::path shm_;
  FakeS3 s3_;
};

TEST_P(StoredUnseen, NothingIsUploadedThatWasNotHashed) {
  const auto at = host();
  PublishOptions options = options_of(shm_ / "1");
  for (const std::string when : {"scanned", "diffed", "pack", "layout"}) {
    options.at = [&](std::string_view point) {
      if (point == when) store(shard(1), 200'000);
    };
    EXPECT_EQ(is_refused(*at, options), when == "diffed") << when;
    options.wishes.snapshot = true;  // later versions have a delta too
  }
}

TEST_P(StoredUnseen, WhatWasCodedIsWhatIsInTheSnapshot) {
  const auto at = host();
  at->publish(shm_ / "1");
  PublishOptions options = options_of(shm_ / "2");
  options.wishes.snapshot = true;
  std::atomic<bool> is_done = false;
  const Progress progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    if (phase == "coding" && done == total && !is_done.exchange(true)) store(shard(2), 200'000);
  };
  EXPECT_TRUE(is_refused(*at, options, progress));
  EXPECT_FALSE(is_refused(*at, options));
}

TEST_P(StoredUnseen, TheHeaderOfASnapshotIsTheOneThatWasScanned) {
  const auto at = host();
  PublishOptions options = options_of(shm_ / "1");
  options.at = [&](std::string_view point) {
    if (point == "scanned") store(shard(1), 20);
  };
  EXPECT_TRUE(is_refused(*at, options));
}

INSTANTIATE_TEST_SUITE_P(Publish, StoredUnseen, testing::Values("memory", "directory", "s3"),
                         [](const auto& param) { return std::string(param.param); });

// ---- a damaged parent ----

TEST_F(PublishTest, MakesARottenParentAgainFromTheBucket) {
  publisher().publish(checkpoint(1));
  int brought = 0;
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point != "parent" || brought++ > 0) return;
    rot(publisher().store->images().image_directory(1) / "model-00001-of-00002.safetensors",
        100'001);
  };
  EXPECT_EQ(publisher().publish(options).version, 2u);
  EXPECT_EQ(brought, 2);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

// As on a trainer's mount, where `latest` is the parent: no later save would be published.
TEST_F(PublishTest, MakesARottenParentAgainThatMustStay) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  Store& store = *publisher().store;
  ASSERT_EQ(publisher().read_version(2), read_tree(checkpoint(2)));
  rot(store.images().image_directory(2) / "model-00001-of-00002.safetensors", 100'001);
  const auto latest = store.eviction().reserve(2, Eviction::Claim::stays, {});
  EXPECT_EQ(publisher().publish(checkpoint(3)).version, 3u);
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(3)));
  EXPECT_EQ(read_tree(store.images().image_directory(2)), read_tree(checkpoint(2)));
}

TEST_F(PublishTest, MakesAParentAgainWhoseFileIsGoneOrTooShort) {
  publisher().publish(checkpoint(1));
  for (unsigned version = 2; version <= 3; version++) {
    int brought = 0;
    PublishOptions options = options_of(checkpoint(version));
    options.at = [&](std::string_view point) {
      if (point != "parent" || brought++ > 0) return;
      const auto file = publisher().store->images().image_directory(version - 1) /
                        "model-00002-of-00002.safetensors";
      version == 2 ? void(stdfs::remove(file)) : stdfs::resize_file(file, 1'000);
    };
    EXPECT_EQ(publisher().publish(options).version, version);
    EXPECT_EQ(brought, 2);
  }
  expect_sound();
}

TEST_F(PublishTest, GivesUpOnAParentThatRotsAgainAndNamesTheFile) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point != "parent") return;
    rot(publisher().store->images().image_directory(1) / "model-00001-of-00002.safetensors",
        100'001);
  };
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find("model-00001-of-00002.safetensors"), std::string::npos)
      << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));

  options.at = {};
  EXPECT_EQ(publisher().publish(options).version, 2u);
}

TEST_F(PublishTest, NamesTheObjectOfAParentThatTheBucketCannotGive) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  const std::string key = keys_below(*bucket_, "packs/2/").at(0);
  const std::string pack = bucket_->find(key).value();
  std::string flipped = pack;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);

  Host other = fresh_host();
  bucket_->replace(key, flipped);
  const Error corrupt = error_of([&] { other.publish(checkpoint(3)); });
  EXPECT_EQ(corrupt.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(corrupt.what()).find(key), std::string::npos) << corrupt.what();
  bucket_->erase(key);
  const Error missing = error_of([&] { other.publish(checkpoint(3)); });
  EXPECT_NE(std::string(missing.what()).find(key), std::string::npos) << missing.what();

  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  bucket_->replace(key, pack);
  EXPECT_EQ(other.publish(checkpoint(3)).version, 3u);
}

// A host that lacks the parent can get it only from the bucket. If it is damaged there, a snapshot
// is the way to repair the history, so it must not need the parent's bytes.
TEST_F(PublishTest, ASnapshotNeedsNoneOfTheParentsBytes) {
  publisher().publish(checkpoint(1));
  Host behind = fresh_host();
  EXPECT_EQ(behind.read_version(1), read_tree(checkpoint(1)));
  publisher().publish(checkpoint(2));
  const std::string key = keys_below(*bucket_, "packs/2/").at(0);
  std::string flipped = bucket_->find(key).value();
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  bucket_->replace(key, flipped);

  PublishOptions options = options_of(checkpoint(3));
  options.wishes.snapshot = true;
  const PublishResult damaged = fresh_host().publish(options);
  EXPECT_EQ(damaged.version, 3u);
  EXPECT_TRUE(damaged.snapshot);
  EXPECT_FALSE(damaged.delta);
  EXPECT_EQ(damaged.changed_elements, 0u);
  EXPECT_EQ(behind.read_version(3), read_tree(checkpoint(3)));

  bucket_->erase(key);
  for (const std::string& snapshot : keys_below(*bucket_, "snapshots/3/")) bucket_->erase(snapshot);
  options.directory = checkpoint(4);
  EXPECT_EQ(fresh_host().publish(options).version, 4u) << "of two versions that are gone";
  EXPECT_TRUE(fresh_host().publish(checkpoint(5)).delta);
  EXPECT_EQ(behind.read_version(5), read_tree(checkpoint(5)));
}

TEST_F(PublishTest, RefusesToBuildOnAParentThatTheBucketHasLost) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  publisher().publish(checkpoint(3));
  bucket_->erase(keys::manifest(3));
  const Error error = error_of([&] { publisher().publish(checkpoint(4)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(4)));
}

// ---- a gap in the history ----

// Regression: a publisher without local records used the missing number: a fork that no reader
// could read, and that the right manifest, once restored, could not repair.
TEST_F(PublishTest, WritesNoVersionIntoAGap) {
  for (unsigned version = 1; version <= 6; version++) publisher().publish(checkpoint(version));
  const std::string lost = bucket_->find(keys::manifest(4)).value();
  bucket_->erase(keys::manifest(4));
  const auto before = bucket_->objects();
  for (const bool rebase : {false, true}) {
    PublishOptions options = options_of(checkpoint(7));
    options.wishes.rebase = rebase;
    Host newcomer = fresh_host();
    const Error error = error_of([&] { newcomer.publish(options); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    EXPECT_NE(std::string(error.what()).find(keys::manifest(4)), std::string::npos) << error.what();
  }
  EXPECT_EQ(bucket_->objects(), before);

  bucket_->replace(keys::manifest(4), lost);
  Host newcomer = fresh_host();
  EXPECT_EQ(newcomer.publish(checkpoint(7)).version, 7u);
  EXPECT_EQ(read_on_a_fresh_host(4), read_tree(checkpoint(4)));
  expect_sound();
}

// The same for a publisher that has the history in memory: it checks at each publish, not only at
// its first.
TEST_F(PublishTest, WritesNoVersionIntoAGapThatCameLater) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  for (unsigned version = 2; version <= 4; version++) other.publish(checkpoint(version));
  bucket_->erase(keys::manifest(2));
  const Error error = error_of([&] { publisher().publish(checkpoint(5)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
  EXPECT_NE(std::string(error.what()).find(keys::manifest(2)), std::string::npos) << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

}  // namespace
}  // namespace weightfs::test
