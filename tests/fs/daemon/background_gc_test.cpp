#include "fs/daemon/background_gc.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "tests/store/retention/gc_world.hpp"
#include "tests/support/eventually.hpp"

namespace weightfs::fs {
namespace {

using test::BucketCall;
using test::BucketHooks;
using test::eventually;
using test::GcWorld;

class BackgroundGcTest : public testing::Test {
 protected:
  BackgroundGcTest() { world_.publish_many(6, 3); }  // 6 has a snapshot: all before it may go

  void start(const BucketHooks& hooks) {
    repository_ = world_.open(hooks);
    BackgroundGcOptions options;
    options.is_on = true;
    options.collect = GcWorld::options_for(1, std::chrono::seconds(0));
    options.interval = std::chrono::seconds(0);
    gc_.emplace(*repository_, options,
                BackgroundGc::Sources{.newest = [this] { return world_.builder.newest(); },
                                      .is_busy = [this] { return is_busy_.load(); },
                                      .skips = {}});
    gc_->wake();
  }
  void expect_run_once_free() {
    is_busy_ = false;
    EXPECT_TRUE(eventually([&] {
      gc_->wake();
      return gc_->state().runs == 1;
    }));
    EXPECT_FALSE(gc_->state().gives_way);
    EXPECT_EQ(world_.log().versions.text(), "1 to 5");
  }

  test::Random rng_{test::seed()};
  GcWorld world_{rng_};
  std::unique_ptr<Repository> repository_;
  std::atomic<bool> is_busy_ = false;
  std::atomic<int> calls_ = 0;
  std::optional<BackgroundGc> gc_;  // last: it uses those above
};

TEST_F(BackgroundGcTest, ARunThatIsDueWaitsForAHandOver) {
  is_busy_ = true;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) { calls_ += call.key == keys::kRecord ? 0 : 1; };
  start(hooks);
  EXPECT_TRUE(eventually([&] { return gc_->state().gives_way; }));
  EXPECT_FALSE(gc_->state().is_running);
  EXPECT_EQ(calls_, 0);
  expect_run_once_free();
}

TEST_F(BackgroundGcTest, ARunThatIsUnderWayWaitsForAHandOver) {
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("versions/") && calls_++ == 0) is_busy_ = true;
  };
  start(hooks);
  EXPECT_TRUE(eventually([&] { return gc_->state().gives_way; }));
  EXPECT_TRUE(gc_->state().is_running);
  EXPECT_EQ(world_.count("gc/"), 0u);
  expect_run_once_free();
}

TEST_F(BackgroundGcTest, BetweenTwoRemovalsItWaitsForAHandOver) {
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind == "remove" && calls_++ == 0) is_busy_ = true;
  };
  start(hooks);
  EXPECT_TRUE(eventually([&] { return gc_->state().gives_way; }));
  EXPECT_EQ(world_.count("gc/"), 1u);
  EXPECT_NE(world_.count("packs/"), 1u) << "it went on";
  expect_run_once_free();
  EXPECT_EQ(world_.count("packs/"), 1u);
}

// Where the system refuses a thread, or memory, it once said for ever that it was at work.
TEST_F(BackgroundGcTest, WhateverFailsIsToldAndTriedAgain) {
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (!call.key.starts_with("versions/") || calls_++ > 0) return;
    throw std::system_error(EAGAIN, std::generic_category(), "no thread");
  };
  start(hooks);
  EXPECT_TRUE(eventually([&] { return !gc_->state().error.empty(); }));
  EXPECT_FALSE(gc_->state().is_running);
  EXPECT_EQ(gc_->state().error.find("no thread"), 0u) << gc_->state().error;
  expect_run_once_free();
  EXPECT_EQ(gc_->state().error, "");
}

TEST_F(BackgroundGcTest, AHandOverDoesNotKeepItFromEnding) {
  is_busy_ = true;
  start({});
  EXPECT_TRUE(eventually([&] { return gc_->state().gives_way; }));
  gc_.reset();
}

}  // namespace
}  // namespace weightfs::fs
