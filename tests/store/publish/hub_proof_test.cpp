// Versions whose snapshot lies on the Hub: the proof before they are published, and what reads
// them.

#include "store/publish/hub_proof.hpp"

#include <gtest/gtest.h>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"
#include "store/materialize/whole_version.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/fake_hub.hpp"

namespace weightfs {
namespace {

using test::error_of;
using test::FakeHub;
using test::Host;
using test::keys_below;
using test::read_text;
using test::ServedReply;
using test::ServedRequest;
using test::write_text;

const HubBase kHubBase{"org/model", "0123456789abcdef0123456789abcdef01234567"};
constexpr std::size_t kHubElements = 1'500'000;  // several pieces in a shard

class HubPublishTest : public test::PublishTest {
 protected:
  Host host() {
    return {Repository::open(std::make_unique<test::BucketView>(bucket_), {}, hub_.environment()),
            dir_ / ("hub-host-" + std::to_string(hosts_++))};
  }

  /// All files of a directory lie on the Hub.
  void upload(const std::filesystem::path& directory) {
    for (const auto& [path, bytes] : test::read_tree(directory)) {
      hub_.put(kHubBase.key(path), bytes, path.ends_with(".safetensors"));
    }
  }

  PublishOptions with_base(const std::filesystem::path& directory) {
    PublishOptions options = options_of(directory);
    options.base = kHubBase;
    return options;
  }

  /// A repository whose first version is on the Hub.
  std::filesystem::path publish_first() {
    const auto directory = checkpoint(1, kHubElements);
    upload(directory);
    EXPECT_EQ(publisher_.publish(with_base(directory)).version, 1u);
    return directory;
  }

  /// The Error of a publish with a base; it leaves nothing in the bucket but layouts and blobs.
  Error refusal(const std::filesystem::path& directory) {
    Error error = error_of([&] { publisher_.publish(with_base(directory)); });
    EXPECT_EQ(keys_below(*bucket_, "versions/"), std::vector<std::string>{});
    EXPECT_EQ(keys_below(*bucket_, "snapshots/"), std::vector<std::string>{});
    return error;
  }

  void expect_refused(const std::filesystem::path& directory, const std::string& file,
                      const std::string& why) {
    const Error error = refusal(directory);
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::invalid) << message;
    EXPECT_NE(message.find((directory / file).string() + " is not the file of " + kHubBase.text()),
              message.npos)
        << message;
    EXPECT_NE(message.find(why), message.npos) << message;
    EXPECT_NE(message.find("publish without --base"), message.npos) << message;
  }

  FakeHub hub_;
  Host publisher_{
      Repository::open(std::make_unique<test::BucketView>(bucket_), {}, hub_.environment()),
      dir_ / "hub-publisher"};

 private:
  int hosts_ = 0;
};

TEST_F(HubPublishTest, TheBucketHasNoByteOfTheSnapshot) {
  const auto directory = publish_first();
  const Manifest manifest = manifest_of(1);
  ASSERT_TRUE(manifest.snapshot && manifest.snapshot->base);
  EXPECT_EQ(manifest.snapshot->base->text(), kHubBase.text());
  EXPECT_EQ(manifest.features, (std::vector<std::string>{"hub-base", "manifest-sha256"}));
  EXPECT_EQ(keys_below(*bucket_, "snapshots/"),
            (std::vector<std::string>{keys::snapshot_hashes(1, manifest.snapshot->nonce)}));
  EXPECT_LT(test::bytes_in(*bucket_), 100'000u);
  EXPECT_EQ(host().read_version(1), test::read_tree(directory));
}

TEST_F(HubPublishTest, WhatIsUploadedIsCountedWithoutTheSnapshot) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  const PublishResult result = publisher_.publish(with_base(directory));
  EXPECT_TRUE(result.snapshot);
  EXPECT_FALSE(result.delta);
  EXPECT_EQ(result.base, kHubBase);
  EXPECT_LT(result.uploaded_bytes, 100'000u);
  EXPECT_GT(result.version_bytes, 2 * kHubElements);
}

TEST_F(HubPublishTest, DeltasFollowAndEveryVersionIsSound) {
  publish_first();
  const auto second = checkpoint(2, kHubElements), third = checkpoint(3, kHubElements);
  publisher_.publish(options_of(second));
  EXPECT_EQ(manifest_of(2).features, (std::vector<std::string>{"manifest-sha256", "xr"}));
  publisher_.publish(options_of(third));
  EXPECT_EQ(host().read_version(3), test::read_tree(third));
  Host reader = host();
  const VerifyReport report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  EXPECT_TRUE(report.problems.empty()) << report.problems.front().message;
  EXPECT_TRUE(report.orphans.empty());
}

TEST_F(HubPublishTest, ALaterVersionMayHaveASnapshotThereBesideItsDelta) {
  publisher_.publish(options_of(checkpoint(1, kHubElements)));
  const auto second = checkpoint(2, kHubElements);
  upload(second);
  publisher_.publish(with_base(second));
  const Manifest manifest = manifest_of(2);
  EXPECT_TRUE(manifest.delta);
  EXPECT_EQ(manifest.snapshot->base, kHubBase);
  EXPECT_EQ(manifest.features, (std::vector<std::string>{"hub-base", "manifest-sha256", "xr"}));
  EXPECT_EQ(host().read_version(2), test::read_tree(second));
}

TEST_F(HubPublishTest, SmallFilesMayDifferFromTheHubs) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  write_text(directory / "config.json", R"({"mine":1})");
  write_text(directory / "only-here.json", "{}");
  publisher_.publish(with_base(directory));
  EXPECT_EQ(host().read_version(1), test::read_tree(directory));
}

TEST_F(HubPublishTest, AFileThatTheHubLacksIsRefused) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  std::filesystem::create_directory(directory / "sub");
  std::filesystem::copy(directory / "model-00001-of-00002.safetensors",
                        directory / "sub" / "extra.safetensors");
  expect_refused(directory, "sub/extra.safetensors", "that commit has no such file");
}

TEST_F(HubPublishTest, AFileOfAnotherSizeIsRefusedBeforeAnythingIsHashed) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  const std::string name = "model-00002-of-00002.safetensors";
  hub_.put(kHubBase.key(name), read_text(directory / name) + "x");
  PublishOptions options = with_base(directory);
  const Progress progress = [](std::string_view phase, std::uint64_t, std::uint64_t) {
    ADD_FAILURE() << phase;
  };
  error_of([&] { publisher_.publish(options, {}, progress); });
  expect_refused(directory, name,
                 " bytes, and " + std::to_string(std::filesystem::file_size(directory / name) + 1) +
                     " on the Hub");
}

TEST_F(HubPublishTest, AFileWithOtherBytesIsRefusedWithBothHashes) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  const std::string name = "model-00001-of-00002.safetensors";
  std::string bytes = read_text(directory / name);
  const std::string mine = to_hex(sha256(as_bytes(bytes)));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  hub_.put(kHubBase.key(name), bytes);
  expect_refused(
      directory, name,
      "it has the SHA-256 " + mine + ", and " + to_hex(sha256(as_bytes(bytes))) + " on the Hub");
}

TEST_F(HubPublishTest, AFileWithoutAHashOnTheHubIsComparedByItsBytes) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  const std::string name = "model-00001-of-00002.safetensors";
  std::string bytes = read_text(directory / name);
  std::string other = bytes;
  other[kPieceBytes + 5] = static_cast<char>(other[kPieceBytes + 5] ^ 1);
  hub_.put(kHubBase.key(name), other, false);
  expect_refused(directory, name, "bytes 1048576 to 1500136 have the SHA-256");
  hub_.put(kHubBase.key(name), bytes, false);
  publisher_.publish(with_base(directory));
  EXPECT_EQ(host().read_version(1), test::read_tree(directory));
}

TEST_F(HubPublishTest, AHubThatCannotReadRangesIsRefused) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  hub_.ignores_range = true;
  const Error error = refusal(directory);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_NE(std::string(error.what()).find("ignores Range"), std::string::npos) << error.what();
}

TEST_F(HubPublishTest, ATokenThatIsMissingIsNamed) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  hub_.set_token("hf_secret");
  const Error error = refusal(directory);
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_NE(std::string(error.what()).find("HF_TOKEN"), std::string::npos) << error.what();
}

TEST_F(HubPublishTest, ARollbackHasNoBase) {
  publish_first();
  PublishOptions options = with_base("");
  options.wishes.rollback = 1;
  const Error error = error_of([&] { publisher_.publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_NE(std::string(error.what()).find("without a base"), std::string::npos) << error.what();
}

TEST_F(HubPublishTest, ARollbackToItIsOneLikeAny) {
  const auto directory = publish_first();
  publisher_.publish(options_of(checkpoint(2, kHubElements)));
  PublishOptions options;
  options.wishes.rollback = 1;
  publisher_.publish(options);
  EXPECT_FALSE(manifest_of(3).snapshot);
  EXPECT_EQ(host().read_version(3), test::read_tree(directory));
}

TEST_F(HubPublishTest, OtherBytesOnTheHubAreNeverRead) {
  const auto directory = publish_first();
  const std::string name = "model-00001-of-00002.safetensors";
  std::string bytes = read_text(directory / name);
  bytes[kPieceBytes + 9] = static_cast<char>(bytes[kPieceBytes + 9] ^ 1);
  hub_.put(kHubBase.key(name), bytes);
  Host reader = host();
  const Error error = error_of([&] { reader.read_version(1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  const std::string message = error.what();
  EXPECT_NE(message.find(kHubBase.key(name) + ": bytes 1048576 to 1500136 have"), message.npos)
      << message;
  EXPECT_NE(message.find("the Hub does not serve what was published; publish a version with "
                         "--snapshot"),
            message.npos)
      << message;
  // As the one that lost a file.
  EXPECT_EQ(find_whole_version(reader.history, kHubBase.key(name), {}), 0u);
}

TEST_F(HubPublishTest, VerifyNamesEachFileThatTheHubHasLostOrChanged) {
  const auto directory = publish_first();
  const std::string first = "model-00001-of-00002.safetensors",
                    second = "model-00002-of-00002.safetensors";
  hub_.put(kHubBase.key(first), read_text(directory / first) + "more");
  hub_.remove(kHubBase.key(second));
  Host reader = host();
  const VerifyReport report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_EQ(report.problems[0].object, kHubBase.key(first));
  EXPECT_NE(report.problems[0].message.find("continues after its expected end"), std::string::npos)
      << report.problems[0].message;
  EXPECT_EQ(report.problems[1].object, kHubBase.key(second));
  EXPECT_NE(report.problems[1].message.find("has no such file"), std::string::npos)
      << report.problems[1].message;
}

TEST_F(HubPublishTest, ASnapshotInTheBucketEndsTheNeedOfTheHub) {
  const auto directory = publish_first();
  hub_.remove(kHubBase.key("model-00001-of-00002.safetensors"));
  PublishOptions options = options_of(directory);
  options.wishes.snapshot = true;
  publisher_.publish(options);
  EXPECT_FALSE(manifest_of(2).snapshot->base);
  EXPECT_EQ(host().read_version(2), test::read_tree(directory));
}

TEST_F(HubPublishTest, FilesThatAnotherUploadLeftAreOrphans) {
  const auto directory = checkpoint(1, kHubElements);
  upload(directory);
  PublishOptions options = options_of(directory);
  options.keeps_uploads = true;
  options.at = [](std::string_view point) {
    if (point == "before-commit") throw Error(ErrorCode::io, "killed");
  };
  error_of([&] { publisher_.publish(options); });
  const std::size_t left = keys_below(*bucket_, "snapshots/").size();
  EXPECT_EQ(left, 3u);
  publisher_.publish(with_base(directory));
  Host reader = host();
  const VerifyReport report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  ASSERT_EQ(report.orphans.size(), 1u);
  EXPECT_EQ(report.orphans[0].objects, left);
}

TEST_F(HubPublishTest, TheHubIsAskedOnlyWhenASnapshotIsRead) {
  publish_first();
  publisher_.publish(options_of(checkpoint(2, kHubElements)));
  Host reader = host();
  EXPECT_EQ(reader.history.get(2, {})->number(), 2u);
  EXPECT_FALSE(reader.repository->hub_bytes());
  reader.read_version(1);
  EXPECT_GT(reader.repository->hub_bytes().value_or(0), 2 * kHubElements);
}

}  // namespace
}  // namespace weightfs
