#include "fs/doctor/bucket.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "fs/doctor/service.hpp"
#include "store/base/error.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::fs {
namespace {

using State = Finding::State;
using std::chrono::seconds;
using test::contains;
using test::MemoryBucket;
using test::TempDir;

std::map<std::string, Finding> by_name(const std::vector<Finding>& findings) {
  std::map<std::string, Finding> all;
  for (const Finding& finding : findings) EXPECT_TRUE(all.emplace(finding.what, finding).second);
  return all;
}

std::map<std::string, Finding> look(MemoryBucket& bucket, const std::string& repository = {}) {
  std::vector<Finding> findings;
  look_at_bucket(bucket, {}, findings, repository);
  return by_name(findings);
}

TEST(BucketDoctor, AGoodBucketIsGood) {
  const auto bucket = test::make_memory_repository();
  const std::size_t objects = bucket->objects().size();
  const auto found = look(*bucket);
  for (const char* what : {"read", "repository", "list", "write"}) {
    ASSERT_TRUE(found.contains(what)) << what;
    EXPECT_EQ(found.at(what).state, State::good) << what;
  }
  EXPECT_TRUE(contains(found.at("write").text, "put-if-absent is supported"));
  EXPECT_EQ(bucket->objects().size(), objects) << "the probe must be gone";
}

TEST(BucketDoctor, WithoutARepositoryItSaysHowToMakeOne) {
  MemoryBucket bucket;
  const auto found = look(bucket);
  EXPECT_EQ(found.at("read").state, State::good);
  EXPECT_EQ(found.at("repository").state, State::note);
  EXPECT_TRUE(contains(found.at("repository").text, "weightfs init memory:///bucket"));
}

TEST(BucketDoctor, AnotherRepositoryThanTheMountFollowsIsBad) {
  const auto bucket = test::make_memory_repository();
  const std::string id = "0123456789abcdef0123456789abcdef", other(32, 'a');
  EXPECT_EQ(look(*bucket, id).at("repository").state, State::good);
  const auto found = look(*bucket, other);
  EXPECT_EQ(found.at("read").state, State::good);
  EXPECT_EQ(found.at("repository").state, State::bad);
  EXPECT_TRUE(contains(found.at("repository").text, id + ", expected " + other));
  bucket->erase(keys::kRecord);
  const auto none = look(*bucket, id);
  EXPECT_EQ(none.at("repository").state, State::bad);
  EXPECT_TRUE(contains(none.at("repository").text, "no repository at memory:///bucket any more"));
}

TEST(BucketDoctor, AReadOnlyKeyIsEnoughForMounts) {
  const auto bucket = test::make_memory_repository();
  bucket->fail_key(".probe-", ErrorCode::permission);
  const auto found = look(*bucket);
  EXPECT_EQ(found.at("write").state, State::note);
  EXPECT_TRUE(contains(found.at("write").text,
                       "read-only key: publishing is not possible from here, mounts are"));
  EXPECT_FALSE((BucketDiagnosis{"u", {found.at("write")}}.is_broken()));
}

TEST(BucketDoctor, AKeyThatMayDoNothingIsNoReadOnlyKey) {
  MemoryBucket bucket;
  bucket.fail_key("", ErrorCode::permission);
  const auto found = look(bucket);
  for (const char* what : {"read", "list", "write"}) {
    EXPECT_EQ(found.at(what).state, State::bad) << what;
    EXPECT_FALSE(contains(found.at(what).text, "read-only")) << found.at(what).text;
  }
}

TEST(BucketDoctor, AStoreWithoutPutIfAbsentIsBad) {
  const auto bucket = test::make_memory_repository();
  bucket->fail_key(".probe-", ErrorCode::unsupported);
  const auto found = look(*bucket);
  EXPECT_EQ(found.at("write").state, State::bad);
  EXPECT_TRUE(contains(found.at("write").text, "two publishers could overwrite each other"));
}

TEST(BucketDoctor, TellsWhatTheBucketSaysOfEachThing) {
  const auto bucket = test::make_memory_repository();
  bucket->fail_key("weightfs.json", ErrorCode::permission);
  bucket->fail_key("versions/", ErrorCode::timed_out);
  const auto found = look(*bucket);
  EXPECT_EQ(found.at("read").state, State::bad);
  EXPECT_TRUE(contains(found.at("read").text, "failed on demand"));
  EXPECT_EQ(found.at("list").state, State::bad);
  EXPECT_EQ(found.at("write").state, State::good);
  EXPECT_FALSE(found.contains("repository"));
}

TEST(BucketDoctor, ADirectoryHasNoService) {
  const TempDir dir;
  const std::string url = "file://" + (dir / "bucket").string();
  const BucketDiagnosis absent = diagnose_bucket(url, {}, {});
  EXPECT_TRUE(absent.is_broken());
  EXPECT_TRUE(contains(absent.findings.at(0).text, (dir / "bucket").string()));
  bool created = false;
  Repository::init(url, created, {});
  const BucketDiagnosis found = diagnose_bucket(url, {}, {});
  EXPECT_FALSE(found.is_broken());
  EXPECT_FALSE(by_name(found.findings).contains("endpoint"));
}

// It said that the repository was gone, and wrote there.
TEST(BucketDoctor, ADirectoryThatIsNotMountedNowIsNoEmptiedBucket) {
  const TempDir dir;
  const std::string url = "file://" + (dir / "bucket").string();
  bool created = false;
  const std::string id = Repository::init(url, created, {})->id();
  EXPECT_FALSE(diagnose_bucket(url, {}, {}, id).is_broken());
  std::filesystem::rename(dir / "bucket", dir / "away");
  std::filesystem::create_directory(dir / "bucket");
  const auto found = by_name(diagnose_bucket(url, {}, {}, id).findings);
  EXPECT_EQ(found.at("read").state, State::bad);
  EXPECT_TRUE(contains(found.at("read").text, "mounted there")) << found.at("read").text;
  EXPECT_TRUE(std::filesystem::is_empty(dir / "bucket"));
}

TEST(BucketDoctor, TellsHowFarTheClockIsOff) {
  EXPECT_EQ(clock_finding(seconds(0)).text, "the same as the service's");
  EXPECT_EQ(clock_finding(seconds(-5)).text, "5 s behind the service's");
  EXPECT_EQ(clock_finding(seconds(59)).state, State::good);
  EXPECT_EQ(clock_finding(seconds(60)).state, State::note);
  EXPECT_TRUE(contains(clock_finding(seconds(1000)).text, "1000 s ahead of the service's"));
  EXPECT_TRUE(contains(clock_finding(seconds(1000)).text, "timedatectl"));
}

}  // namespace
}  // namespace weightfs::fs
