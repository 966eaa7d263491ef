// Every rule of docs/SEMANTICS.md, "Pins", with a clock that the tests move and processes that they
// make up.
#include "fs/pins.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint32_t kShards = 3;
constexpr std::uint32_t kConfig = 10, kIndex = 11;
constexpr auto kGrace = seconds(60);
constexpr auto kQuiet = seconds(10);
constexpr auto kTick = milliseconds(1);

/// A host whose `latest` the test moves.
class PinsTest : public testing::Test {
 protected:
  struct Who {
    pid_t pid = 1;
    std::string session = "session 1";
  };

  [[nodiscard]] PinOpen open_of(const Who& who, std::uint64_t version, std::uint32_t file) const {
    PinFile kind = PinFile::weights;
    if (file == kConfig) kind = PinFile::other;
    if (file == kIndex) kind = PinFile::index;
    return {.reader = {who.session, {who.pid, 1}, "loader"},
            .version = version,
            .file = file,
            .kind = kind,
            .weights_count = kShards,
            .through_latest = false,
            .latest = latest_};
  }

  /// READLINK.
  std::uint64_t link(const Who& who) { return pins_.find(who.session, now_).value_or(latest_); }

  /// open(2) of a path through `latest`, as the kernel does it: once more if it is told so.
  /// Returns: the version it got.
  std::uint64_t open(const Who& who, std::uint32_t file) {
    for (int tries = 0; tries < 2; tries++) {
      PinOpen open = open_of(who, link(who), file);
      open.through_latest = true;
      const Pins::Opened opened = pins_.opened(open, now_);
      if (opened.look_again) continue;
      handle_ = opened.handle;
      return open.version;
    }
    ADD_FAILURE() << "ESTALE reached the caller";
    return 0;
  }
  Pins::Opened open_by_name(const Who& who, std::uint64_t version, std::uint32_t file) {
    return pins_.opened(open_of(who, version, file), now_);
  }

  /// All shards, one at a time.
  void load(const Who& who) {
    for (std::uint32_t file = 1; file <= kShards; file++) open(who, file);
  }

  void sweep() {
    pins_.sweep({.is_gone = [this](const ProcessId& one) { return gone_.contains(one.pid); },
                 .has_files =
                     [this](const std::string&, std::uint64_t version) {
                       looks_++;
                       return held_.contains(version);
                     }},
                now_);
  }
  [[nodiscard]] bool is_pinned(const Who& who) { return pins_.find(who.session, now_).has_value(); }

  Pins pins_;
  Clock::time_point now_{seconds(100000)};
  std::uint64_t latest_ = 42;
  std::uint64_t handle_ = 0;
  std::set<pid_t> gone_;
  std::set<std::uint64_t> held_;  // versions with a file that is open or mapped
  unsigned looks_ = 0;
  const Who me_{}, sibling_{2, "session 1"}, stranger_{3, "session 3"};
};

// ---- what pins ----

TEST_F(PinsTest, ReadlinkAlonePinsNothing) {
  EXPECT_EQ(link(me_), 42u);
  latest_ = 43;
  EXPECT_EQ(link(me_), 43u);
  EXPECT_TRUE(pins_.is_empty());
}

TEST_F(PinsTest, AnOpenThroughLatestPinsForTheWholeSessionAndForNobodyElse) {
  EXPECT_EQ(open(me_, 1), 42u);
  latest_ = 43;
  EXPECT_EQ(link(me_), 42u);
  EXPECT_EQ(link(sibling_), 42u);
  EXPECT_EQ(link(stranger_), 43u);
  EXPECT_TRUE(pins_.is_pinned(42));
  EXPECT_FALSE(pins_.is_pinned(43));
}

TEST_F(PinsTest, OpeningAVersionByNameNeverChangesWhatLatestSays) {
  EXPECT_FALSE(open_by_name(me_, 41, 1).look_again);
  EXPECT_EQ(link(me_), 42u);
  EXPECT_TRUE(pins_.is_empty());
  open(me_, 1);
  latest_ = 43;
  EXPECT_FALSE(open_by_name(me_, 43, 1).look_again);
  EXPECT_EQ(link(me_), 42u);
}

TEST_F(PinsTest, OfTwoThatBeginAtOnceTheSecondIsLedToTheVersionOfTheFirst) {
  PinOpen second = open_of(sibling_, link(sibling_), 1);  // its READLINK came first
  second.through_latest = true;
  latest_ = 43;
  EXPECT_EQ(open(me_, 1), 43u);
  EXPECT_TRUE(pins_.opened(second, now_).look_again);
  EXPECT_EQ(open(sibling_, 1), 43u);
}

// ---- a host that keeps only some of the shards ----

/// Shard 3 is one of those that are not kept.
class PinsOfAPart : public PinsTest {
 protected:
  std::uint64_t open_part(std::uint32_t file) {
    for (int tries = 0; tries < 2; tries++) {
      PinOpen open = open_of(me_, link(me_), file);
      open.through_latest = true;
      open.absent_count = 1;
      open.is_absent = file == kShards;
      if (!pins_.opened(open, now_).look_again) return open.version;
    }
    ADD_FAILURE() << "ESTALE reached the caller";
    return 0;
  }
  void load_part() {
    for (std::uint32_t file = 1; file < kShards; file++) open_part(file);
  }
};

TEST_F(PinsOfAPart, ALoadOfWhatIsKeptIsComplete) {
  load_part();
  latest_ = 43;
  now_ += seconds(11);
  EXPECT_EQ(open_part(1), 43u) << "a new load";
}

TEST_F(PinsOfAPart, WhoGoesOnToTheRestIsInTheMiddleOfALoad) {
  load_part();
  latest_ = 43;
  now_ += seconds(30);
  EXPECT_EQ(open_part(kShards), 42u);
  now_ += seconds(11);
  EXPECT_EQ(open_part(1), 43u) << "all was loaded";
}

TEST_F(PinsOfAPart, WhoBeginsWithTheRestWantsAll) {
  open_part(kShards);
  open_part(1);
  latest_ = 43;
  now_ += seconds(59);
  EXPECT_EQ(open_part(2), 42u);
}

// ---- how it ends ----

TEST_F(PinsTest, APinEndsTheGraceAfterTheLastOpenOfACompleteLoad) {
  open(me_, 1);
  now_ += seconds(30);
  open(me_, 2);
  open(me_, 3);
  latest_ = 43;
  now_ += kGrace - kTick;
  EXPECT_EQ(link(me_), 42u);
  now_ += kTick;
  EXPECT_EQ(link(me_), 43u);
}

TEST_F(PinsTest, APinEndsTheGraceAfterTheLastRelease) {
  load(me_);
  const std::uint64_t handle = handle_;
  now_ += seconds(50);
  pins_.released(handle, now_);
  latest_ = 43;
  now_ += kGrace - kTick;
  EXPECT_EQ(link(me_), 42u);
  now_ += kTick;
  EXPECT_EQ(link(me_), 43u);
  pins_.released(handle, now_);
  EXPECT_FALSE(is_pinned(me_)) << "the RELEASE of an old pin's file";
}

TEST_F(PinsTest, TheWatchEndsItToo) {
  load(me_);
  now_ += kGrace;
  sweep();
  EXPECT_TRUE(pins_.is_empty());
  EXPECT_EQ(looks_, 0u) << "a complete load needs no look at processes";
}

TEST_F(PinsTest, AnIncompleteLoadOfALivingProcessKeepsItsPin) {
  open(me_, 1);
  open(me_, 2);
  latest_ = 43;
  now_ += minutes(14);
  sweep();
  EXPECT_EQ(link(me_), 42u);
  EXPECT_EQ(open(me_, 3), 42u);
  now_ += kGrace;
  EXPECT_EQ(link(me_), 43u);
}

TEST_F(PinsTest, EachProcessThatOpenedOneMustHaveOpenedAll) {
  load(me_);
  open(sibling_, 1);
  latest_ = 43;
  now_ += kGrace;
  sweep();
  EXPECT_EQ(link(sibling_), 42u);
  open(sibling_, 2);
  open(sibling_, 3);
  now_ += kGrace;
  EXPECT_EQ(link(sibling_), 43u);
}

TEST_F(PinsTest, OpeningTheSameShardTwiceIsNotOpeningAll) {
  for (int i = 0; i < 3; i++) open(me_, 1);
  now_ += kGrace;
  sweep();
  EXPECT_TRUE(is_pinned(me_));
}

TEST_F(PinsTest, AShardThatIsOpenedByNameCountsForTheLoad) {
  open(me_, 1);
  open_by_name(me_, 42, 2);
  now_ += seconds(20);
  EXPECT_NE(open_by_name(me_, 42, 3).handle, 0u);
  now_ += kGrace - kTick;
  EXPECT_TRUE(is_pinned(me_));
  now_ += kTick;
  EXPECT_FALSE(is_pinned(me_));
}

TEST_F(PinsTest, AProcessThatIsGoneIsNotWaitedFor) {
  open(me_, 1);
  gone_ = {me_.pid};
  now_ += kGrace - kTick;
  sweep();
  EXPECT_TRUE(is_pinned(me_)) << "shell scripts open each shard by a process of its own";
  now_ += kTick;
  sweep();
  EXPECT_FALSE(is_pinned(me_));
}

TEST_F(PinsTest, AnIncompleteLoadHoldsWhileAFileOfTheVersionIsOpenOrMappedInTheSession) {
  open(me_, 1);
  gone_ = {me_.pid};
  held_ = {42};
  now_ += minutes(14);
  sweep();
  EXPECT_TRUE(is_pinned(me_));
  held_ = {41};
  sweep();
  EXPECT_FALSE(is_pinned(me_));
}

TEST_F(PinsTest, ACompleteLoadDoesNotHoldByWhatIsMapped) {
  open(sibling_, 1);
  gone_ = {sibling_.pid};
  load(me_);
  held_ = {42};
  now_ += kGrace;
  sweep();
  EXPECT_FALSE(is_pinned(me_)) << "transformers keeps every shard mapped for the model's life";
}

TEST_F(PinsTest, AProcessThatIsGoneInASecondPassHadLoadedAll) {
  load(me_);
  open(me_, 1);
  gone_ = {me_.pid};
  held_ = {42};
  now_ += kQuiet;
  sweep();
  now_ += kGrace;
  sweep();
  EXPECT_FALSE(is_pinned(me_));
}

TEST_F(PinsTest, WhoOpensAnotherFileDuringTheLookKeepsThePin) {
  open(me_, 1);
  gone_ = {me_.pid};
  now_ += kGrace;
  pins_.sweep({.is_gone = [](const ProcessId&) { return true; },
               .has_files =
                   [this](const std::string&, std::uint64_t) {
                     open(sibling_, 2);
                     return false;
                   }},
              now_);
  EXPECT_TRUE(is_pinned(me_));
}

TEST_F(PinsTest, FifteenMinutesAfterTheLastOpenItEndsInAnyCase) {
  open(me_, 1);
  const std::uint64_t handle = handle_;
  held_ = {42};
  now_ += minutes(15) - kTick;
  pins_.released(handle, now_);
  sweep();
  EXPECT_TRUE(is_pinned(me_));
  now_ += kTick;
  sweep();
  EXPECT_FALSE(is_pinned(me_));
}

// ---- a new load ----

TEST_F(PinsTest, ANewLoadAfterTenSecondsOfQuietGetsTheNewestVersion) {
  load(me_);
  latest_ = 43;
  now_ += kQuiet;
  EXPECT_EQ(open(me_, 1), 43u);
  latest_ = 44;
  EXPECT_EQ(open(me_, 2), 43u);
  EXPECT_EQ(open(me_, 3), 43u);
}

TEST_F(PinsTest, ANewLoadMayBeginWithTheIndex) {
  open(me_, kIndex);
  load(me_);
  latest_ = 43;
  now_ += kQuiet;
  EXPECT_EQ(open(me_, kIndex), 43u);
  latest_ = 44;
  EXPECT_EQ(open(me_, 1), 43u);
}

TEST_F(PinsTest, BeforeTenSecondsOfQuietItIsTheSameLoad) {
  load(me_);
  latest_ = 43;
  now_ += kQuiet - kTick;
  EXPECT_EQ(open(me_, 1), 42u);
  const std::uint64_t handle = handle_;
  now_ += seconds(5);
  pins_.released(handle, now_);
  now_ += kQuiet - kTick;
  EXPECT_EQ(open(me_, 1), 42u) << "a RELEASE breaks the quiet as well";
}

TEST_F(PinsTest, TheQuietIsTheWholeSessions) {
  load(me_);
  load(sibling_);
  latest_ = 43;
  now_ += kQuiet - kTick;
  EXPECT_EQ(open(sibling_, 2), 42u);
  now_ += kTick;
  EXPECT_EQ(open(me_, 1), 42u);
}

TEST_F(PinsTest, AProcessThatHasNotOpenedAllBeginsNoNewLoad) {
  open(me_, 1);
  latest_ = 43;
  now_ += seconds(30);
  EXPECT_EQ(open(me_, 1), 42u) << "a slow loader opens each shard twice";
  EXPECT_EQ(open(me_, 2), 42u);
}

TEST_F(PinsTest, ASlowSecondPassOverTheFilesIsTheSameLoad) {
  load(me_);  // all headers first
  latest_ = 43;
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(open(me_, file), 42u) << file;
    now_ += seconds(30);
  }
  EXPECT_EQ(open(me_, 1), 43u) << "now it begins again";
}

TEST_F(PinsTest, ALoaderThatIsSlowBetweenTheTwoOpensOfEachFileIsInOneLoad) {
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(open(me_, file), 42u) << file;
    now_ += seconds(30);
    latest_ = 43;
    EXPECT_EQ(open(me_, file), 42u) << file;
  }
  now_ += kQuiet;
  EXPECT_EQ(open(me_, 1), 43u);
}

TEST_F(PinsTest, AFileThatWasLookedAtOnceMoreDoesNotStandInTheWayOfANewLoad) {
  open(me_, 1);  // transformers reads the metadata of the first shard
  load(me_);
  latest_ = 43;
  now_ += kQuiet;
  EXPECT_EQ(open(me_, 1), 43u);
}

TEST_F(PinsTest, NobodyBeginsANewLoadWhileAnotherProcessGoesOverTheFilesOnceMore) {
  load(me_);
  load(sibling_);
  open(sibling_, 1);
  latest_ = 43;
  now_ += seconds(30);
  EXPECT_EQ(open(me_, 1), 42u);
  EXPECT_EQ(open(sibling_, 2), 42u);
  EXPECT_EQ(open(me_, 2), 42u);
  EXPECT_EQ(open(me_, 3), 42u);
  gone_ = {sibling_.pid};
  now_ += kQuiet;
  sweep();
  EXPECT_EQ(open(me_, 1), 43u);
}

TEST_F(PinsTest, AProcessThatOpenedNoneJoinsTheLoad) {
  load(me_);
  latest_ = 43;
  now_ += seconds(30);
  EXPECT_EQ(open(sibling_, 1), 42u);
}

TEST_F(PinsTest, NobodyBeginsANewLoadWhileAnotherProcessIsInTheMiddleOfIt) {
  load(me_);
  open(sibling_, 1);
  latest_ = 43;
  now_ += seconds(30);
  sweep();
  for (std::uint32_t file = 1; file <= kShards; file++) EXPECT_EQ(open(me_, file), 42u);
  gone_ = {sibling_.pid};
  now_ += kQuiet;
  sweep();
  EXPECT_EQ(open(me_, 1), 43u);
}

TEST_F(PinsTest, AnotherFileBeginsNoNewLoad) {
  load(me_);
  latest_ = 43;
  now_ += seconds(30);
  EXPECT_EQ(open(me_, kConfig), 42u) << "generation_config.json is read when the weights are there";
}

TEST_F(PinsTest, OpeningByNameBeginsNoNewLoad) {
  load(me_);
  latest_ = 43;
  now_ += seconds(30);
  open_by_name(me_, 42, 1);
  EXPECT_EQ(link(me_), 42u);
}

TEST_F(PinsTest, ANewLoadOfTheSameVersionIsCountedAnew) {
  load(me_);
  now_ += kQuiet;
  EXPECT_EQ(open(me_, 1), 42u);  // there is nothing newer
  latest_ = 43;
  now_ += minutes(5);
  sweep();
  EXPECT_EQ(open(me_, 2), 42u) << "it is in the middle of its second load";
  EXPECT_EQ(open(me_, 3), 42u);
  now_ += kQuiet;
  EXPECT_EQ(open(me_, 1), 43u);
}

// ---- other files ----

TEST_F(PinsTest, OtherFilesPinForTheGraceFromTheirFirstOpenAndProlongNothing) {
  open(me_, kConfig);
  latest_ = 43;
  for (int i = 0; i < 5; i++) {
    now_ += seconds(11);
    EXPECT_EQ(open(me_, kConfig), 42u);
    pins_.released(handle_, now_);
  }
  now_ += seconds(5);
  EXPECT_EQ(open(me_, kConfig), 43u) << "who polls config.json moves on";
}

TEST_F(PinsTest, OtherFilesDoNotProlongALoad) {
  load(me_);
  latest_ = 43;
  now_ += seconds(59);
  EXPECT_EQ(open(me_, kConfig), 42u);
  pins_.released(handle_, now_);
  now_ += seconds(1);
  EXPECT_EQ(link(me_), 43u);
}

TEST_F(PinsTest, ALoadThatBeginsWithTheConfigHoldsAsALoad) {
  open(me_, kConfig);
  now_ += seconds(50);
  open(me_, 1);
  latest_ = 43;
  now_ += seconds(50);
  EXPECT_EQ(open(me_, 2), 42u);
  now_ += minutes(5);
  sweep();
  EXPECT_EQ(open(me_, 3), 42u);
}

// ---- by hand, status, bounds ----

TEST_F(PinsTest, AnEndByHandIsAtOnce) {
  load(me_);
  open(stranger_, 1);
  latest_ = 43;
  EXPECT_EQ(pins_.end_session("session 9"), 0u);
  EXPECT_EQ(pins_.end_session(me_.session), 1u);
  EXPECT_EQ(link(me_), 43u);
  EXPECT_EQ(link(stranger_), 42u);
  open(me_, 1);
  EXPECT_EQ(pins_.end_version(42), 1u);
  EXPECT_EQ(link(stranger_), 43u);
  EXPECT_EQ(pins_.end_all(), 1u);
  EXPECT_TRUE(pins_.is_empty());
}

TEST_F(PinsTest, TheListTellsSessionVersionAgeAndWhetherItLoads) {
  open(me_, 1);
  now_ += seconds(3);
  load(stranger_);
  now_ += seconds(2);
  const auto list = pins_.list(now_);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].session, "session 1");
  EXPECT_EQ(list[0].command, "loader");
  EXPECT_EQ(list[0].version, 42u);
  EXPECT_EQ(list[0].age, seconds(5));
  EXPECT_TRUE(list[0].is_loading);
  EXPECT_EQ(list[1].session, "session 3");
  EXPECT_EQ(list[1].age, seconds(2));
  EXPECT_FALSE(list[1].is_loading);
  now_ += kGrace;
  EXPECT_EQ(pins_.list(now_).size(), 1u) << "what is over is not listed";
}

TEST_F(PinsTest, TooManySessionsGetNoPinAndTheOthersKeepTheirs) {
  for (std::size_t i = 0; i < kPinsMax; i++) open({1, fmt::format("session {}", i)}, 1);
  latest_ = 43;
  const Who late{7, "late"};
  EXPECT_EQ(open(late, 1), 43u);
  EXPECT_EQ(handle_, 0u);
  EXPECT_FALSE(is_pinned(late));
  EXPECT_EQ(open({1, "session 0"}, 2), 42u);
}

TEST_F(PinsTest, TooManyProcessesOfOneSessionCountAsGone) {
  for (pid_t pid = 1; pid <= static_cast<pid_t>(kPinProcessesMax) + 5; pid++) {
    open({pid, "session 1"}, 1);
    gone_.insert(pid);
  }
  held_ = {42};
  now_ += kGrace;
  sweep();
  EXPECT_TRUE(is_pinned(me_));
  held_ = {};
  sweep();
  EXPECT_FALSE(is_pinned(me_));
}

TEST(PinTimesTest, TheQuietIsALittleLessThanASixthOfAShortGraceOrTenSeconds) {
  EXPECT_EQ(PinTimes::of(seconds(60)).quiet, milliseconds(9500));
  EXPECT_EQ(PinTimes::of(minutes(10)).quiet, milliseconds(9500));
  EXPECT_EQ(PinTimes::of(milliseconds(600)).quiet, milliseconds(95));
  EXPECT_EQ(PinTimes::of(seconds(60)).most, minutes(15));
  EXPECT_EQ(PinTimes::of(std::chrono::hours(1)).most, std::chrono::hours(1));
}

TEST(PinFileTest, WeightsAreSafetensorsFiles) {
  EXPECT_EQ(pin_file_of("model-00001-of-00002.safetensors"), PinFile::weights);
  EXPECT_EQ(pin_file_of("unet/model.safetensors"), PinFile::weights);
  EXPECT_EQ(pin_file_of("model.safetensors.index.json"), PinFile::index);
  EXPECT_EQ(pin_file_of("config.json"), PinFile::other);
}

// ---- random loaders ----

/// A process that loads through `latest`, again and again, and what it got.
struct RandomLoader {
  pid_t pid = 0;
  std::size_t session = 0;
  std::uint32_t times = 1;              // that it opens each file
  std::uint32_t opens = 0;              // in this load
  unsigned loads = 0;                   // before this one
  std::uint64_t version = 0;            // of this load
  std::uint64_t load_of_session = 0;    // see RandomPins
  std::optional<std::uint64_t> handle;  // of a file that it has open
  std::uint64_t pin_of_handle = 0;

  [[nodiscard]] bool has_all() const { return opens == kShards * times; }
  [[nodiscard]] bool is_loading() const { return opens > 0 && !has_all(); }
};

/// Sessions of several loaders each, pollers, deaths and versions that come all the time.
class RandomPins : public PinsTest {
 protected:
  static constexpr std::size_t kSessions = 4;
  static constexpr pid_t kLoaders = 12;

  RandomPins() {
    for (pid_t pid = 1; pid <= kLoaders; pid++) {
      loaders_.emplace_back();
      loaders_.back().pid = pid;
      loaders_.back().session = static_cast<std::size_t>(pid) % kSessions;
    }
  }
  static std::string name_of(std::size_t session) { return fmt::format("session {}", session); }
  unsigned random(unsigned count) { return static_cast<unsigned>(rng_() % count); }

  [[nodiscard]] bool somebody_loads(std::size_t session) const {
    return std::any_of(loaders_.begin(), loaders_.end(), [&](const RandomLoader& one) {
      return one.session == session && one.is_loading();
    });
  }

  void step() {
    pass_time();
    latest_ += random(3);
    RandomLoader& one = loaders_[random(kLoaders)];
    switch (random(20)) {
      case 0:
        die(one);
        break;
      case 1:
        sweep();
        break;
      case 2:
        poll();
        break;
      case 3:
        if (one.handle) release(one);
        break;
      default:
        load_on(one);
    }
    check_pins();
  }

  /// Never the whole grace while somebody goes over the files again: that pin ends by then.
  void pass_time() {
    const auto time = milliseconds(random(100) < 95 ? random(300) : random(30000));
    for (const RandomLoader& one : loaders_) {
      const bool is_limited = one.is_loading() && (one.loads > 0 || one.times > 1);
      if (is_limited && now_ + time - used_[one.session] >= kGrace) return;
    }
    now_ += time;
  }

  void die(RandomLoader& one) {
    gone_.insert(one.pid);
    RandomLoader heir;
    heir.pid = next_pid_++;
    heir.session = one.session;
    heir.times = 1 + random(2);
    one = heir;
  }

  void release(RandomLoader& one) {
    pins_.released(*one.handle, now_);
    if (one.pin_of_handle == pin_of_session_[one.session]) used_[one.session] = now_;
    one.handle.reset();
  }

  void load_on(RandomLoader& one) {
    const bool is_quiet = now_ - used_[one.session] >= kQuiet;
    if (one.has_all()) {
      if (random(3) != 0 || (is_quiet && somebody_loads(one.session))) return;
      sweep();
      begin_again(one, is_quiet);
    }
    const std::uint64_t got = open_next(one);
    if (one.opens > 1) {
      ASSERT_EQ(got, one.version) << "pid " << one.pid << " mixes versions";
    }
    one.version = got;
    if (random(2) == 0) release(one);
  }

  void begin_again(RandomLoader& one, bool is_quiet) {
    const bool is_in_load = one.load_of_session == load_of_session_[one.session];
    one.opens = 0;
    one.loads++;
    if (!is_quiet || !is_in_load || !is_pinned({one.pid, name_of(one.session)})) return;
    const std::uint64_t newest = latest_;
    load_of_session_[one.session]++;
    if (newest != one.version) pin_of_session_[one.session]++;
    EXPECT_EQ(open({one.pid, name_of(one.session)}, 1), newest) << "a new load after the quiet";
    new_loads_++;
    note_open(one, newest);
  }

  std::uint64_t open_next(RandomLoader& one) {
    const Who who{one.pid, name_of(one.session)};
    if (!is_pinned(who)) {
      load_of_session_[one.session]++;
      pin_of_session_[one.session]++;
    }
    const std::uint64_t got = open(who, one.opens / one.times + 1);
    note_open(one, got);
    return got;
  }

  void note_open(RandomLoader& one, std::uint64_t got) {
    if (one.opens++ == 0) one.version = got;
    one.handle = handle_;
    one.pin_of_handle = pin_of_session_[one.session];
    one.load_of_session = load_of_session_[one.session];
    used_[one.session] = now_;
  }

  /// Of a session without loaders.
  void poll() {
    const std::uint64_t got = open({99, "poller"}, kConfig);
    while (!history_.empty() && now_ - history_.front().first > kGrace)
      history_.erase(history_.begin());
    history_.emplace_back(now_, latest_);
    EXPECT_GE(got, history_.front().second) << "a poller stays behind for more than the grace";
    EXPECT_GE(got, polled_);
    polled_ = got;
  }

  void check_pins() {
    for (const RandomLoader& one : loaders_) {
      if (one.is_loading()) {
        ASSERT_TRUE(pins_.is_pinned(one.version)) << "the images of pid " << one.pid;
      }
    }
  }

  std::mt19937_64 rng_ = test::make_rng();
  std::vector<RandomLoader> loaders_;
  std::array<Clock::time_point, kSessions> used_{};
  std::array<std::uint64_t, kSessions> load_of_session_{};  // counts the loads that Pins begins
  std::array<std::uint64_t, kSessions> pin_of_session_{};   // of which several may be of one pin
  unsigned new_loads_ = 0;
  std::vector<std::pair<Clock::time_point, std::uint64_t>> history_;  // of the last grace
  std::uint64_t polled_ = 0;
  pid_t next_pid_ = 1000;
};

TEST_F(RandomPins, EveryLoadGetsOneVersionAndNewLoadsGetTheNewest) {
  for (int i = 0; i < 50000 && !HasFatalFailure(); i++) step();
  EXPECT_GT(new_loads_, 10u) << "the test has hardly tested anything";
}

// ---- bind mode ----

/// READLINK pins, and what is opened is seen, but not who it was.
class BindPinsTest : public PinsTest {
 protected:
  /// READLINK, as LoaderPins::link answers it.
  std::uint64_t told(const Who& who) {
    while (true) {
      const std::uint64_t version = link(who);
      if (pins_.told({who.session, {who.pid, 1}, "loader"}, version, now_)) return version;
    }
  }
  void opened() { pins_.opened_by_somebody(42, seconds(1), now_); }
};

TEST_F(BindPinsTest, ReadlinkPinsForTheGraceAndNoLongerHoweverOftenItIsAsked) {
  EXPECT_EQ(told(me_), 42u);
  latest_ = 43;
  EXPECT_EQ(told(stranger_), 43u);
  for (int i = 0; i < 59; i++) {
    now_ += seconds(1);
    EXPECT_EQ(told(me_), 42u);
    EXPECT_EQ(told(sibling_), 42u);
    sweep();
  }
  EXPECT_TRUE(pins_.is_pinned(42));
  now_ += seconds(1);
  EXPECT_EQ(told(me_), 43u);
  EXPECT_EQ(pins_.list(now_).at(0).command, "loader");
}

TEST_F(BindPinsTest, AnOpenRightAfterTheReadlinkProlongsItToTheGraceAfterThat) {
  told(me_);
  told(stranger_);
  latest_ = 43;
  now_ += seconds(50);
  told(me_);
  now_ += milliseconds(900);
  opened();
  now_ += kGrace - kTick;
  EXPECT_EQ(told(me_), 42u);
  EXPECT_EQ(told(stranger_), 43u) << "it asked too long before the OPEN";
  now_ += kTick;
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(BindPinsTest, AnOpenOfAnotherVersionProlongsNothing) {
  told(me_);
  latest_ = 43;
  now_ += seconds(30);
  told(me_);
  pins_.opened_by_somebody(43, seconds(1), now_);
  now_ += seconds(30);
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(BindPinsTest, WhatIsOpenOrMappedHoldsItButNotForEver) {
  told(me_);
  opened();
  latest_ = 43;
  held_.insert(42);
  const auto begin = now_;
  while (is_pinned(me_)) {
    now_ += seconds(1);
    sweep();
  }
  EXPECT_EQ(now_ - begin, minutes(15));
  EXPECT_LE(looks_, 15u * 60 / 9) << "a look at all processes is not cheap";
}

TEST_F(BindPinsTest, ItEndsTheGraceAfterNothingIsOpenOrMappedAnyMore) {
  told(me_);
  latest_ = 43;
  held_.insert(42);  // nobody saw the OPEN
  for (int i = 0; i < 300; i++) {
    now_ += seconds(1);
    sweep();
    EXPECT_EQ(told(me_), 42u);
  }
  held_.clear();
  for (int i = 0; i < 60; i++) {
    now_ += seconds(1);
    sweep();
  }
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(BindPinsTest, ByHandItEndsAtOnce) {
  told(me_);
  latest_ = 43;
  EXPECT_EQ(pins_.end_session(me_.session), 1u);
  EXPECT_EQ(told(me_), 43u);
}

}  // namespace
}  // namespace weightfs::fs
