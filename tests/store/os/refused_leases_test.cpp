// Leases of files that another user owns, or that are refused, by the kernel that runs the test.
#include "store/os/refused_leases.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "store/base/log.hpp"
#include "store/local/store.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"
#include "tests/store/local/store_fixture.hpp"
#include "tests/support/few_descriptors.hpp"
#include "tests/support/no_leases.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::add_version;
using test::keep;
using test::NoLeases;
using test::Versions;

class RefusedLeasesTest : public testing::Test {
 protected:
  void SetUp() override {
    handler_ = ::signal(SIGIO, SIG_IGN);
    test::write_text(file_, "some bytes");
    if (!nobody_reads_file(file_)) GTEST_SKIP() << "no leases on this file system";
    if (!NoLeases().works()) GTEST_SKIP() << "needs root";
  }
  void TearDown() override { ::signal(SIGIO, handler_); }

  /// What is told after a file was asked for that must stay.
  std::string refusal_of(const fs::path& file) {
    EXPECT_FALSE(nobody_reads_file(file, &refused_));
    return refused_.text();
  }
  static void expect_words(const std::string& text, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(text.find(word), text.npos) << text;
  }

  test::TempDir directory_;
  const fs::path file_ = directory_ / "a.bin";
  RefusedLeases refused_;

 private:
  sighandler_t handler_{};
};

// A mount in bind mode gives its images to --uid: a daemon without CAP_LEASE kept them for ever.
TEST_F(RefusedLeasesTest, WhoMayBecomeTheOwnerOfAFileNeedsNoCapability) {
  const NoLeases none;
  NoLeases::give_away(file_);
  const int dumpable = ::prctl(PR_GET_DUMPABLE);
  EXPECT_TRUE(nobody_reads_file(file_, &refused_));
  {
    const File reader = File::open(file_, O_RDONLY);
    EXPECT_EQ(refusal_of(file_), "") << "a reader is no refusal";
  }
  EXPECT_TRUE(nobody_reads_file(file_, &refused_));
  EXPECT_EQ(::setfsuid(static_cast<uid_t>(-1)), 0) << "root again";
  EXPECT_TRUE(dumpable != 1 || ::prctl(PR_GET_DUMPABLE) == 1);  // another test may have cleared it
}

TEST_F(RefusedLeasesTest, AreSaidUntilTheyAreGranted) {
  const LogCounts before = log_counts();
  {
    const NoLeases none(CAP_TO_MASK(CAP_SETUID));
    NoLeases::give_away(file_);
    expect_words(refusal_of(file_), {"old versions cannot be removed", file_.string() + ": leases",
                                     "refused (Permission denied)", "CAP_LEASE or CAP_SETUID"});
    EXPECT_NE(refusal_of(file_), "");
  }
  EXPECT_EQ(log_counts().warnings, before.warnings + 1) << "once";
  EXPECT_TRUE(nobody_reads_file(file_, &refused_));
  EXPECT_EQ(refused_.text(), "");
}

// As on a file system without leases.
TEST_F(RefusedLeasesTest, AFileThatHasNoneIsSaidUntilItIsGone) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_words(refusal_of(pipe), {pipe.string(), "Invalid argument", "local file system"});
  fs::remove(pipe);
  EXPECT_TRUE(nobody_reads_file(pipe, &refused_));
  EXPECT_EQ(refused_.text(), "");
}

TEST_F(RefusedLeasesTest, WhatIsNotAskedForAgainIsNotSaidForEver) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  RefusedLeases soon(Clock::duration::zero());
  EXPECT_FALSE(nobody_reads_file(pipe, &soon));
  EXPECT_EQ(soon.text(), "");
}

TEST_F(RefusedLeasesTest, WantOfDescriptorsSaysNothingOfAFile) {
  const test::FewDescriptors none;
  EXPECT_EQ(refusal_of(file_), "");
}

TEST_F(RefusedLeasesTest, AFileThatCannotBeOpenedIsSaid) {
  const fs::path directory = directory_ / "sub";
  fs::create_directory(directory);
  expect_words(refusal_of(directory), {directory.string() + ": it cannot be opened (Is a"});
}

TEST_F(RefusedLeasesTest, AVersionThatStaysForThemIsSaid) {
  test::StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 800);
  const auto latest = keep(*store, 3);
  const fs::path image = store->images().image_directory(1) / "a.bin";
  {
    const NoLeases none(CAP_TO_MASK(CAP_SETUID));
    NoLeases::give_away(image);
    store->evictor().evict_for_images(1500);
    EXPECT_EQ(store->images().complete_versions(), (Versions{1, 3})) << "the next one goes";
    expect_words(store->eviction().refused_leases().text(), {image.string()});
  }
  store->evictor().evict_for_images(1500);
  EXPECT_EQ(store->images().complete_versions(), Versions{3});
  EXPECT_EQ(store->eviction().refused_leases().text(), "");
}

TEST_F(RefusedLeasesTest, ADeltaThatStaysForThemIsSaid) {
  test::StoreFixture at;
  at.limits.store_bytes = 900;
  const auto store = at.open();
  add_version(*store, 1, 800);
  const auto latest = keep(*store, 1);
  const fs::path made = *store->deltas().begin(step_to(2), 90);
  test::write_text(made, std::string(90, 'd'));
  store->deltas().complete(step_to(2), made);
  const fs::path delta = store->deltas().find(step_to(2)).value();
  const NoLeases none(CAP_TO_MASK(CAP_SETUID));
  NoLeases::give_away(delta);
  store->evictor().evict_for_images(50);
  EXPECT_TRUE(store->deltas().find(step_to(2)));
  expect_words(store->eviction().refused_leases().text(), {delta.string()});
}

}  // namespace
}  // namespace weightfs
