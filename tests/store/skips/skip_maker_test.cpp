#include "store/skips/skip_maker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/repository/skips.hpp"
#include "store/skips/make_skip.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/patched_host.hpp"
#include "tests/support/skip_packs.hpp"

namespace weightfs::test {
namespace {

using Pairs = std::vector<VersionPair>;
using Outcome = SkipMaker::Outcome;

class SkipMakerTest : public testing::Test {
 protected:
  /// As a mount that follows: patches are taken, old images go.
  void add(std::uint64_t versions) {
    for (std::uint64_t i = 0; i < versions; i++) {
      host_.keep_only(bring());
    }
  }
  std::uint64_t bring() {
    nudge(tensor_, 0.01, rng_);
    const std::uint64_t version = host_.add({{"m.safetensors", make_safetensors({tensor_})}});
    const auto known = host_.history().get(version, {});
    host_.store().manifests().put_newest({version, known->manifest_sha256});
    return version;
  }
  SkipMaker maker(SkipMakerOptions options = {}) {
    return {host_.store(), host_.history(), std::move(options)};
  }
  Pairs there() {
    const auto repository = host_.builder().open();
    Pairs pairs;
    for (const ListedSkip& skip : list_skips(*repository, 0, {})) {
      pairs.push_back(skip.versions);
      expect_skip_leads(host_.builder(), *find_skip(*repository, skip.versions, {}));
    }
    return pairs;
  }
  MemoryBucket& bucket() { return *host_.builder().bucket(); }

  Random rng_ = make_rng();
  TestTensor tensor_ = random_tensor("x", Dtype::bf16, {70, 1000}, rng_);
  std::atomic<bool> is_full_ = false;  // the store's file system
  PatchedHost host_{[this] {
    return Space{is_full_ ? 0 : std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  }};
};

TEST_F(SkipMakerTest, MakesOneAfterAnother) {
  add(16);
  SkipMaker maker = this->maker();
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(there(), (Pairs{{8, 16}}));
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(there(), (Pairs{{1, 16}, {8, 16}}));
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  const SkipMakerStatus status = maker.status();
  EXPECT_EQ(status.made, 2u);
  EXPECT_EQ(status.last, (VersionPair{1, 16}));
  EXPECT_FALSE(status.making);
  std::uint64_t bytes = 0;
  for (const auto& [key, object] : bucket().objects()) {
    if (key.starts_with(keys::kSkips)) bytes += object.size();
  }
  EXPECT_EQ(status.bytes, bytes);
  EXPECT_EQ(host_.store().images().complete_versions(), std::vector<std::uint64_t>{16})
      << "no version was written";
}

/// Whatever is to be made, a version without skips costs no request.
TEST_F(SkipMakerTest, NothingIsAskedWhenNothingIsDue) {
  add(17);
  SkipMaker maker = this->maker();
  while (maker.make_one({}) == Outcome::made) {
  }
  add(1);
  const std::uint64_t calls = bucket().calls();
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(bucket().calls(), calls);
}

TEST_F(SkipMakerTest, WhatOthersMadeIsLeft) {
  add(16);
  ASSERT_EQ(maker().make_one({}), Outcome::made);
  SkipMaker other = maker();
  EXPECT_EQ(other.make_one({}), Outcome::made);
  EXPECT_EQ(other.make_one({}), Outcome::none);
  EXPECT_EQ(other.status().made, 1u);
}

TEST_F(SkipMakerTest, WhatHistoryDoesNotReachIsLeft) {
  add(16);
  host_.store().patches().remove({PatchLevel::one, 4, 5});
  SkipMaker maker = this->maker();
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(there(), (Pairs{{8, 16}}));
  EXPECT_EQ(maker.status().out_of_reach, (Pairs{{1, 16}}));
}

TEST_F(SkipMakerTest, OnlyToTheNewestVersions) {
  add(26);
  SkipMaker maker = this->maker({.versions = 4});
  while (maker.make_one({}) == Outcome::made) {
  }
  EXPECT_EQ(there(), (Pairs{{16, 24}}));
}

TEST_F(SkipMakerTest, NoneWhenItIsOff) {
  add(16);
  SkipMaker maker = this->maker({.off = "--skips no"});
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(maker.status().off, "--skips no");
  EXPECT_EQ(there(), Pairs{});
}

/// One that fails does not hold up the others, and is tried again later, not at once.
TEST_F(SkipMakerTest, AFailureIsShownAndTheOthersAreMade) {
  add(16);
  bucket().fail_key("skips/00000000000000000016-00000000000000000008/", ErrorCode::permission);
  SkipMaker maker = this->maker();
  EXPECT_EQ(maker.make_one({}), Outcome::failed);
  EXPECT_NE(maker.status().error.find("failed on demand"), std::string::npos);
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(maker.status().failed, (Pairs{{8, 16}}));
  EXPECT_EQ(there(), (Pairs{{1, 16}}));
}

/// Somebody else may have made it meanwhile, or the reply to its record was lost.
TEST_F(SkipMakerTest, WhatFailedAndIsThereIsNotTriedAgain) {
  add(16);
  bucket().fail_key("skips/00000000000000000016-00000000000000000008/", ErrorCode::permission);
  SkipMaker maker = this->maker({.retry_pause = Clock::duration::zero()});
  EXPECT_EQ(maker.make_one({}), Outcome::failed);
  EXPECT_EQ(maker.status().failed, (Pairs{{8, 16}}));
  bucket().heal();
  ASSERT_EQ(this->maker().make_one({}), Outcome::made);
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(there(), (Pairs{{1, 16}, {8, 16}}));
  EXPECT_EQ(maker.status().failed, Pairs{});
  EXPECT_EQ(maker.status().error, "");
}

/// It has to wait until something leads to it again, however often it was tried.
TEST_F(SkipMakerTest, WhatFailedAndIsOutOfReachIsNotTriedAgain) {
  add(16);
  bucket().fail_key("skips/00000000000000000016-00000000000000000001/", ErrorCode::permission);
  SkipMaker maker = this->maker({.retry_pause = Clock::duration::zero()});
  EXPECT_EQ(maker.make_one({}), Outcome::made);
  EXPECT_EQ(maker.make_one({}), Outcome::failed);
  host_.store().patches().remove({PatchLevel::one, 4, 5});
  EXPECT_EQ(maker.make_one({}), Outcome::none);
  EXPECT_EQ(maker.status().out_of_reach, (Pairs{{1, 16}}));
  EXPECT_EQ(maker.status().failed, Pairs{});
  EXPECT_EQ(maker.status().error, "");
}

TEST_F(SkipMakerTest, WhateverIsThrownIsAFailureOfThatSkip) {
  add(16);
  unsigned calls = 0;
  SkipMaker maker = this->maker({.give_way = [&](const Context&) {
    if (++calls == 2) throw std::length_error("not an Error");
  }});
  EXPECT_EQ(maker.make_one({}), Outcome::failed);
  EXPECT_EQ(maker.status().error, "not an Error");
  EXPECT_FALSE(maker.status().making);
  EXPECT_EQ(maker.make_one({}), Outcome::made);
}

TEST_F(SkipMakerTest, AListThatFailsIsAskedAgainWithoutANewVersion) {
  add(16);
  bucket().fail_list(ErrorCode::unavailable);
  SkipMaker maker = this->maker({.retry_pause = std::chrono::milliseconds(10)});
  maker.start();
  maker.wake();
  EXPECT_TRUE(eventually([&] { return !maker.status().error.empty(); }));
  bucket().heal();
  EXPECT_TRUE(eventually([&] { return maker.status().made == 2; }));
  EXPECT_TRUE(eventually([&] { return maker.status().error.empty(); }));
}

/// While a publish waits nothing is coded or uploaded.
TEST_F(SkipMakerTest, APublishGoesFirst) {
  add(16);
  std::atomic<bool> is_publishing = true;
  std::atomic<int> asked = 0;
  SkipMaker maker = this->maker({.give_way = [&](const Context& context) {
    asked++;
    while (is_publishing) context.pause(std::chrono::milliseconds(1), "waiting");
  }});
  maker.start();
  maker.wake();
  EXPECT_TRUE(eventually([&] { return asked > 0; }));
  EXPECT_EQ(there(), Pairs{});
  is_publishing = false;
  EXPECT_TRUE(eventually([&] { return maker.status().made == 2; }));
  is_publishing = true;
  add(8);
  const int before = asked;
  maker.wake();
  EXPECT_TRUE(eventually([&] { return asked > before; }));
  maker.stop();  // while it waits
  EXPECT_EQ(there(), (Pairs{{1, 16}, {8, 16}}));
}

/// What the images that it reads take is needed for the next version.
TEST_F(SkipMakerTest, ItGivesUpWhenAnotherVersionNeedsTheRoom) {
  add(16);
  bool is_coding = false;
  SkipMaker maker = this->maker({.give_way = [&](const Context&) {
    if (is_coding) {
      bring();
      EXPECT_FALSE(host_.store().evictor().evict(16)) << "it is being read";
      is_full_ = true;
    }
    is_coding = true;  // the first call is before the images are reserved
  }});
  EXPECT_EQ(maker.make_one({}), Outcome::failed);
  EXPECT_NE(maker.status().error.find("no room for another version"), std::string::npos)
      << maker.status().error;
  is_full_ = false;
  EXPECT_TRUE(host_.store().evictor().evict(16)) << "it is not kept any more";
  EXPECT_EQ(there(), Pairs{});
}

/// gc, too: it makes skips in a writer's mount.
TEST_F(SkipMakerTest, WhoeverMakesOneGivesUpWhenAnotherVersionNeedsTheRoom) {
  add(16);
  int batches = 0;
  MakeSkipOptions how;
  how.claim = Eviction::Claim::in_use;
  how.before_batch = [&](const Context& context) {
    const auto give_way = [&](const Context&) {
      if (batches++ == 0) bring();
      is_full_ = true;
    };
    let_publish_go_first(host_.store(), 16, give_way, context);
  };
  EXPECT_EQ(error_of([&] {
              make_skip(host_.store(), host_.history(), {8, 16}, how, {}, {});
            }).code(),
            ErrorCode::no_space);
  EXPECT_EQ(batches, 1);
  is_full_ = false;
  EXPECT_TRUE(host_.store().evictor().evict(16)) << "it is not kept any more";
  EXPECT_EQ(there(), Pairs{});
}

/// A thread that is stopped in the middle leaves nothing reserved, and the next one goes on.
TEST_F(SkipMakerTest, StoppedInTheMiddle) {
  add(16);
  bucket().hang_key("skips/00000000000000000016-00000000000000000008/");
  {
    SkipMaker maker = this->maker();
    maker.start();
    maker.wake();
    EXPECT_TRUE(eventually([&] { return bucket().waiting() > 0; }));
    EXPECT_EQ(maker.status().making, (VersionPair{8, 16}));
  }
  bucket().heal();
  EXPECT_EQ(there(), Pairs{});
  EXPECT_EQ(maker().make_one({}), Outcome::made);
  EXPECT_EQ(there(), (Pairs{{8, 16}}));
  EXPECT_TRUE(host_.store().evictor().evict(16));
}

}  // namespace
}  // namespace weightfs::test
