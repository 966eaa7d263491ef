// Publish: failures of the bucket and the disk, and kill -9 at every point.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <set>
#include <system_error>

#include "store/base/error.hpp"
#include "store/inspect/verify.hpp"
#include "store/publish/publish.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/hosts.hpp"

extern char** environ;

namespace weightfs::test {
namespace {

const std::vector<std::string> kPoints{"scanned", "parent", "diffed",        "pack",
                                       "blobs",   "layout", "before-commit", "committed"};

// ---- failures of the bucket and the disk ----

class BucketFails : public PublishTest,
                    public testing::WithParamInterface<std::pair<const char*, ErrorCode>> {};

TEST_P(BucketFails, WithoutAVersionAndTheNextPublishWorks) {
  const auto& [prefix, code] = GetParam();
  publisher().publish(checkpoint(1));
  bucket_->fail_key(prefix, code);
  PublishOptions options = options_of(checkpoint(2));
  options.wishes.snapshot = true;
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), code);
  EXPECT_GT(bucket_->failures(), 0u);
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  bucket_->heal();
  EXPECT_EQ(publisher().publish(options).version, 2u);
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Publish, BucketFails,
                         testing::Values(std::pair("packs/2/", ErrorCode::no_space),
                                         std::pair("packs/2/", ErrorCode::permission),
                                         std::pair("snapshots/2/", ErrorCode::no_space),
                                         std::pair("blobs/", ErrorCode::unavailable),
                                         std::pair("versions/00000000000000000002",
                                                   ErrorCode::permission)),
                         [](const auto& param) { return "Case" + std::to_string(param.index); });

TEST_F(PublishTest, StopsOnRequestAtEveryPoint) {
  publisher().publish(checkpoint(1));
  for (const std::string& wanted : kPoints) {
    if (wanted == "before-commit" || wanted == "committed") break;
    std::stop_source source;
    PublishOptions options = options_of(checkpoint(2));
    options.at = [&](std::string_view point) {
      if (point == wanted) source.request_stop();
    };
    const Context context{source.get_token(), Clock::time_point::max()};
    const Error error = error_of([&] { publisher().publish(options, context); });
    EXPECT_EQ(error.code(), ErrorCode::cancelled) << wanted << ": " << error.what();
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

// Where the system refuses a thread, or memory, what was uploaded once stayed in the bucket.
TEST_F(PublishTest, WhateverFailsItsUploadsAreRemovedUnlessTheVersionMayExist) {
  publisher().publish(checkpoint(1));
  const auto fail_at = [&](std::string_view wanted) {
    PublishOptions options = options_of(checkpoint(2));
    options.wishes.snapshot = true;
    options.at = [wanted](std::string_view point) {
      if (point == wanted) throw std::system_error(EAGAIN, std::generic_category());
    };
    EXPECT_THROW(publisher().publish(options), std::system_error) << wanted;
  };
  for (const std::string_view point : {"pack", "before-commit"}) {
    fail_at(point);
    for (const char* prefix : {"packs/2/", "snapshots/2/"}) {
      EXPECT_EQ(keys_below(*bucket_, prefix), std::vector<std::string>()) << point;
    }
  }
  fail_at("committed");
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(PublishTest, ReachesItsPointsInOrderAndTellsItsPhases) {
  publisher().publish(checkpoint(1));
  std::vector<std::string> points;
  PublishOptions options = options_of(checkpoint(2));
  options.wishes.snapshot = true;
  options.at = [&](std::string_view point) { points.emplace_back(point); };
  std::mutex mutex;
  std::set<std::string> phases;
  publisher().publish(options, {},
                      [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
                        const std::lock_guard lock(mutex);
                        phases.emplace(phase);
                        EXPECT_LE(done, total) << phase;
                      });
  EXPECT_EQ(points, kPoints);
  EXPECT_EQ(phases, (std::set<std::string>{"reading parent", "coding", "hashing", "uploading"}));
  EXPECT_TRUE(stdfs::is_empty(publisher().store->temporary_directory()));
}

TEST_F(PublishTest, NamesTheStoreWhoseDiskIsFullAndPublishesOnceThereIsRoom) {
  SmallDisk disk(dir_ / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  Host host(bucket_, dir_ / "disk/store");
  const auto first = tensor_of("a", Dtype::u8, 4'000'000, 1);
  const auto second = tensor_of("a", Dtype::u8, 4'000'000, 2);
  host.publish(directory_of({{"m.safetensors", make_safetensors({first})}}));
  PublishOptions options =
      options_of(directory_of({{"m.safetensors", make_safetensors({second})}}));
  options.at = [&](std::string_view point) {
    if (point == "parent") disk.fill(1'000'000);
  };
  const Error error = error_of([&] { host.publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::no_space) << error.what();
  EXPECT_NE(std::string(error.what()).find(host.store->path()), std::string::npos) << error.what();
  EXPECT_TRUE(stdfs::is_empty(host.store->temporary_directory()));
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  disk.empty();
  options.at = {};
  EXPECT_EQ(host.publish(options).version, 2u);
  expect_sound();
}

TEST_F(PublishTest, UploadsFullPacksWhileOthersAreBeingCoded) {
  constexpr std::size_t kSeveralBatches = 20'000'000;
  const auto elements = [](unsigned seed) {
    return make_safetensors({tensor_of("a", Dtype::u8, kSeveralBatches, seed)});
  };
  publisher().publish(directory_of({{"m.safetensors", elements(1)}}));
  const auto directory = directory_of({{"m.safetensors", elements(2)}});
  PublishOptions options = options_of(directory);
  options.threads = 1;
  options.pack_bytes = 1;  // each chunk fills one
  std::atomic<int> ahead{0}, ahead_when_coded{-1};
  options.at = [&](std::string_view point) {
    if (point == "pack-ahead") ahead++;
    if (point == "diffed") ahead_when_coded = ahead.load();
  };
  const Progress progress = [&](std::string_view phase, std::uint64_t, std::uint64_t) {
    if (phase != "coding") return;
    EXPECT_TRUE(eventually([&] { return ahead > 0; }));
  };
  const PublishResult result = publisher().publish(options, {}, progress);
  EXPECT_GT(ahead_when_coded, 0);
  const auto delta = manifest_of(2).delta.value();
  EXPECT_GT(delta.packs.size(), 5u);
  std::uint64_t pack_bytes = 0;
  for (const PackRef& pack : delta.packs) pack_bytes += pack.size_bytes;
  EXPECT_EQ(result.uploaded_bytes, pack_bytes + bucket_->find(keys::manifest(2)).value().size());
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(directory));
  expect_sound();
}

// Where a limit was reached each hand-over waited for ever.
TEST_F(PublishTest, NeedsNoOtherThread) {
  const auto elements = [](unsigned seed) {
    return make_safetensors({tensor_of("a", Dtype::u8, 20'000'000, seed)});
  };
  publisher().publish(directory_of({{"m.safetensors", elements(1)}}));
  for (unsigned most : {0u, 1u}) {
    const auto directory = directory_of({{"m.safetensors", elements(2 + most)}});
    PublishOptions options = options_of(directory);
    options.pack_bytes = 1;  // each chunk fills one
    std::uint64_t version = 0;
    {
      const FewThreads few(most);
      if (!few.works()) GTEST_SKIP() << "needs to become another user";
      version = publisher().publish(options).version;
    }
    EXPECT_EQ(version, 2u + most);
    EXPECT_EQ(read_on_a_fresh_host(version), read_tree(directory));
  }
  expect_sound();
}

// ---- killed ----

class Killed : public testing::TestWithParam<std::string> {
 protected:
  Killed() {
    bool created = false;
    Repository::init(url_, created, {});
    write_checkpoint(dir_ / "1", 1, 50'000);
    write_checkpoint(dir_ / "2", 2, 50'000);
  }

  /// Runs a publisher that dies at `point`.  Returns: the status from waitpid().
  int run(const stdfs::path& directory, const std::string& point) {
    const std::string store = dir_ / "store", what = directory;
    std::vector<const char*> arguments{
        WEIGHTFS_KILL_PUBLISHER, url_.c_str(), store.c_str(), what.c_str(), point.c_str(), nullptr};
    pid_t pid = 0;
    EXPECT_EQ(::posix_spawn(&pid, arguments[0], nullptr, nullptr,
                            const_cast<char**>(arguments.data()), environ),
              0);
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  TempDir dir_;
  const std::string url_ = "file://" + (dir_ / "bucket").string();
};

/// Whatever existed when it died: the history is whole, and the next publish takes its number.
TEST_P(Killed, LeavesAWholeRepositoryAndTheNextPublishWorks) {
  std::uint64_t version = 0;
  for (const char* directory : {"1", "2"}) {
    const bool has_parent = version > 0;
    const int status = run(dir_ / directory, GetParam());
    if (GetParam() == "parent" && !has_parent) {
      ASSERT_EQ(status, 0);  // a first version has no parent
      version++;
      continue;
    }
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    if (GetParam() == "committed") version++;

    Host host(Repository::open(url_, {}), dir_ / "store");
    EXPECT_EQ(host.history.refresh(0, {}), version);
    const PublishResult result = host.publish(dir_ / directory);
    EXPECT_EQ(result.version, ++version);
    EXPECT_EQ(host.read_version(version), read_tree(dir_ / directory));
  }
  Host reader(Repository::open(url_, {}), dir_ / "reader");
  const auto report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  EXPECT_EQ(report.versions, version);
  for (const Problem& problem : report.problems) {
    ADD_FAILURE() << problem.object << ": " << problem.message;
  }
}

/// The same of a rollback.
TEST_P(Killed, LeavesAWholeRepositoryAndTheNextRollbackWorks) {
  for (const char* directory : {"1", "2"}) ASSERT_EQ(run(dir_ / directory, "never"), 0);
  const int status = run("rollback:1", GetParam());
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  std::uint64_t version = GetParam() == "committed" ? 3 : 2;
  Host host(Repository::open(url_, {}), dir_ / "store");
  EXPECT_EQ(host.history.refresh(0, {}), version);
  PublishOptions options;
  options.wishes.rollback = 1;
  EXPECT_EQ(host.publish(options).version, ++version);
  EXPECT_EQ(host.read_version(version), read_tree(dir_ / "1"));
  const auto report = verify_repository(host.history, host.store->temporary_directory(), {}, {});
  EXPECT_EQ(report.versions, version);
  EXPECT_TRUE(report.problems.empty());
}

INSTANTIATE_TEST_SUITE_P(Publish, Killed, testing::ValuesIn(kPoints), [](const auto& param) {
  std::string name = param.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace weightfs::test
