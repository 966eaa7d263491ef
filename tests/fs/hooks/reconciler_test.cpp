#include "fs/hooks/reconciler.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "fs/hooks/engine_http.hpp"
#include "store/base/error.hpp"
#include "store/http/client.hpp"

namespace weightfs::fs {
namespace {

using HookPhase = HookStatus::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// An engine in memory.  `on_tell` runs before a telling succeeds.
struct MemoryEngine {
  std::optional<std::uint64_t> reports = 0;
  std::vector<HookTarget> told;
  std::function<void(const HookTarget&)> on_tell = {};
  bool is_gone = false, is_good = false;
  std::uint64_t base_of_change = 0;
  unsigned asked = 0;
};

class MemoryHook final : public Hook {
 public:
  explicit MemoryHook(MemoryEngine& engine) : engine_(engine) {}
  std::optional<std::uint64_t> find_reported(const Context&) override {
    engine_.asked++;
    check_there();
    return engine_.reports;
  }
  void tell(const HookTarget& target, const Context&) override {
    check_there();
    engine_.told.push_back(target);
    if (engine_.on_tell) engine_.on_tell(target);
    if (engine_.reports) engine_.reports = target.version;
  }
  [[nodiscard]] bool is_told_for_good() const noexcept override { return engine_.is_good; }
  [[nodiscard]] std::uint64_t base_of_change() const noexcept override {
    return engine_.base_of_change;
  }

 private:
  void check_there() const {
    if (!engine_.is_gone) return;
    throw TransportError(ErrorCode::unavailable, TransportError::Kind::connect, "nobody listens");
  }
  MemoryEngine& engine_;
};

class HookReconcilerTest : public testing::Test {
 protected:
  HookReconcilerTest() { make({}); }

  /// As after a start of the daemon.
  void make(const HookRecord& record) {
    ReconcilerOptions options;
    options.type = "vllm";
    options.target = "http://e";
    options.every = seconds(5);
    options.record = record;
    options.save = [this](const HookRecord& saved) { saved_.push_back(saved); };
    options.now = [this] { return now_; };
    options.random = [] { return 1.0; };
    reconciler_ = std::make_unique<HookReconciler>(std::make_unique<MemoryHook>(engine_), options);
  }

  void show(std::uint64_t version, bool is_newest = true) {
    wish_ = HookWish{.target = {.version = version,
                                .path = "/mnt/versions/" + std::to_string(version),
                                .tag = ""},
                     .is_newest = is_newest};
  }
  HookReconciler::Next round() {
    return reconciler_->round([this] { return wish_; }, {});
  }
  /// How long until the next round, after one.
  milliseconds pause_after_round() {
    const auto next = round();
    return std::chrono::duration_cast<milliseconds>(next.due - now_);
  }
  [[nodiscard]] std::vector<std::uint64_t> told() const {
    std::vector<std::uint64_t> versions;
    for (const HookTarget& target : engine_.told) versions.push_back(target.version);
    return versions;
  }
  [[nodiscard]] HookPhase state() const { return reconciler_->status().state; }

  using Versions = std::vector<std::uint64_t>;
  MemoryEngine engine_;
  std::optional<HookWish> wish_;
  Clock::time_point now_ = Clock::time_point{} + seconds(1000);
  std::vector<HookRecord> saved_;
  std::unique_ptr<HookReconciler> reconciler_;
};

TEST_F(HookReconcilerTest, WithoutAVersionNobodyIsAsked) {
  EXPECT_EQ(pause_after_round(), seconds(5));
  EXPECT_EQ(state(), HookPhase::idle);
  EXPECT_EQ(engine_.asked, 0U);
}

TEST_F(HookReconcilerTest, TellsTheExplicitPathAndReadsBack) {
  show(3);
  EXPECT_EQ(pause_after_round(), seconds(5));
  ASSERT_EQ(told(), Versions({3}));
  EXPECT_EQ(engine_.told[0].path, "/mnt/versions/3");
  EXPECT_EQ(state(), HookPhase::current);
  EXPECT_EQ(reconciler_->status().reported, 3U);
  EXPECT_EQ(engine_.asked, 2U);  // before and after
}

TEST_F(HookReconcilerTest, OneThatHasTheVersionIsNotTold) {
  make({.told = 3, .telling = 0});
  show(3);
  engine_.reports = 3;
  round();
  EXPECT_EQ(told(), Versions());
  EXPECT_EQ(state(), HookPhase::current);
}

// Another run has the same numbers; and an engine that another daemon has left in the middle of an
// update has its label, and is paused.
TEST_F(HookReconcilerTest, OneThatReportsWhatThisStoreNeverToldItIsToldOnce) {
  show(3);
  for (const std::uint64_t recorded : {0U, 2U, 4U}) {
    make({.told = recorded, .telling = 0});
    engine_.reports = 3;
    engine_.told.clear();
    for (int i = 0; i < 3; i++) round();
    EXPECT_EQ(told(), Versions({3})) << recorded;
    EXPECT_EQ(state(), HookPhase::current);
  }
  engine_.is_gone = true;  // for a moment: it reports what it was told
  round();
  engine_.is_gone = false;
  round();
  EXPECT_EQ(told(), Versions({3}));
}

// A label comes before the last steps of a telling.
TEST_F(HookReconcilerTest, WhatFailedAfterItsLabelIsNotReportedUntilItHasSucceeded) {
  show(3);
  round();
  show(4);
  engine_.on_tell = [&](const HookTarget&) {
    EXPECT_NE(reconciler_->status().reported, 4U);
    engine_.reports = 4;
    throw Error(ErrorCode::io, "cannot resume");
  };
  for (int i = 0; i < 3; i++) round();
  EXPECT_EQ(told(), Versions({3, 4, 4, 4}));
  show(5);  // does not make 4 a success
  engine_.on_tell = [&](const HookTarget&) {
    EXPECT_NE(reconciler_->status().reported, 4U);
    EXPECT_TRUE(reconciler_->holds(4));
    throw Error(ErrorCode::io, "cannot pause");
  };
  for (int i = 0; i < 2; i++) round();
  EXPECT_TRUE(reconciler_->holds(4));
  engine_.on_tell = {};
  round();
  EXPECT_EQ(reconciler_->status().reported, 5U);
}

TEST_F(HookReconcilerTest, WhatIsToldAgainAndFailsIsNotReportedThoughItWasToldBefore) {
  show(3);
  round();
  engine_.reports = 0;  // it was started again
  engine_.on_tell = [&](const HookTarget&) {
    engine_.reports = 3;
    throw Error(ErrorCode::io, "cannot resume");
  };
  for (int i = 0; i < 3; i++) round();
  EXPECT_EQ(reconciler_->status().reported, 0U);
  EXPECT_TRUE(reconciler_->holds(3));
}

TEST_F(HookReconcilerTest, WhatAnotherRunToldItIsNotReportedWhileItIsTold) {
  engine_.reports = 3;
  show(3);
  engine_.on_tell = [&](const HookTarget&) { EXPECT_NE(reconciler_->status().reported, 3U); };
  round();
  EXPECT_EQ(told(), Versions({3}));
  EXPECT_EQ(reconciler_->status().reported, 3U);
}

TEST_F(HookReconcilerTest, SuccessIsTheVersionReadBack) {
  show(3);
  engine_.on_tell = [&](const HookTarget&) { engine_.reports.reset(); };  // it cannot say
  round();
  EXPECT_EQ(state(), HookPhase::current);
  show(4);
  engine_.on_tell = {};
  engine_.reports = 3;
  class Deaf final : public Hook {
   public:
    std::optional<std::uint64_t> find_reported(const Context&) override { return 3; }
    void tell(const HookTarget&, const Context&) override {}
  };
  ReconcilerOptions options;
  options.now = [this] { return now_; };
  HookReconciler deaf(std::make_unique<Deaf>(), options);
  deaf.round([this] { return wish_; }, {});
  EXPECT_EQ(deaf.status().state, HookPhase::failed);
  EXPECT_NE(deaf.status().error.find("accepted version 4"), std::string::npos);
  EXPECT_NE(deaf.status().error.find("reports 3"), std::string::npos);
}

TEST_F(HookReconcilerTest, ARestartedEngineIsBroughtUp) {
  show(3);
  round();
  engine_.reports = 0;  // "default"
  round();
  EXPECT_EQ(told(), Versions({3, 3}));
  engine_.reports = 2;
  round();
  EXPECT_EQ(told(), Versions({3, 3, 3}));
}

// A daemon was killed after the engine had accepted 9, and the host comes back with less.
TEST_F(HookReconcilerTest, WhatMayHaveBeenToldIsNotTakenBackByAHostThatIsBehind) {
  for (const auto reports : {std::optional<std::uint64_t>(9), std::optional<std::uint64_t>()}) {
    make({8, 9});
    engine_.reports = reports;
    show(5, false);
    round();
    EXPECT_EQ(told(), Versions());
  }
  engine_.reports = 8;
  show(9);
  round();
  EXPECT_EQ(told(), Versions({9}));
  make({8, 9});
  show(5);  // rolled back meanwhile
  round();
  EXPECT_EQ(told(), Versions({9, 5}));
}

// An older release cannot say; that it was away is all that shows a restart.
TEST_F(HookReconcilerTest, ARestartedEngineThatCannotSayIsBroughtUp) {
  show(3);
  engine_.reports.reset();
  round();
  round();
  EXPECT_EQ(told(), Versions({3}));
  engine_.is_gone = true;
  round();
  EXPECT_EQ(state(), HookPhase::unreachable);
  engine_.is_gone = false;
  round();
  EXPECT_EQ(told(), Versions({3, 3}));
  EXPECT_EQ(state(), HookPhase::current);
}

TEST_F(HookReconcilerTest, VersionsThatCameMeanwhileAreCoalesced) {
  show(3);
  engine_.on_tell = [&](const HookTarget& target) {
    if (target.version == 3) show(9);  // 4 to 9 arrive while it loads
  };
  round();
  EXPECT_EQ(told(), Versions({3}));
  round();
  EXPECT_EQ(told(), Versions({3, 9}));
}

TEST_F(HookReconcilerTest, AFailureBacksOffToAMinuteAndASuccessForgetsIt) {
  show(3);
  engine_.on_tell = [](const HookTarget&) { throw Error(ErrorCode::io, "no memory"); };
  std::vector<std::int64_t> pauses;
  for (int i = 0; i < 8; i++) pauses.push_back(pause_after_round().count() / 1000);
  EXPECT_EQ(pauses, std::vector<std::int64_t>({1, 2, 4, 8, 16, 32, 60, 60}));
  EXPECT_EQ(reconciler_->status().failures, 8U);
  EXPECT_EQ(reconciler_->status().error, "no memory");
  EXPECT_EQ(state(), HookPhase::failed);
  EXPECT_FALSE(round().may_come_early);  // a newer version is no reason to hurry
  engine_.on_tell = {};
  EXPECT_EQ(pause_after_round(), seconds(5));
  EXPECT_EQ(reconciler_->status().failures, 0U);
  EXPECT_EQ(reconciler_->status().error, "");
  engine_.on_tell = [](const HookTarget&) { throw Error(ErrorCode::io, "again"); };
  show(4);
  EXPECT_EQ(pause_after_round(), seconds(1));
}

TEST_F(HookReconcilerTest, PausesHaveJitter) {
  ReconcilerOptions options;
  options.every = seconds(5);
  options.now = [this] { return now_; };
  options.random = [] { return 0.0; };
  HookReconciler reconciler(std::make_unique<MemoryHook>(engine_), options);
  show(3);
  EXPECT_EQ(reconciler.round([this] { return wish_; }, {}).due - now_, milliseconds(2500));
}

TEST_F(HookReconcilerTest, OneThatIsAwayIsAskedAtTheUsualPace) {
  show(3);
  engine_.is_gone = true;
  for (int i = 0; i < 8; i++) EXPECT_EQ(pause_after_round(), seconds(5));
  EXPECT_EQ(state(), HookPhase::unreachable);
  EXPECT_TRUE(round().may_come_early);
}

// A reload is not transactional: what it reports after a failure says nothing.
TEST_F(HookReconcilerTest, AfterAFailureItIsToldAgainWhateverItReports) {
  show(3);
  engine_.on_tell = [&](const HookTarget&) {
    engine_.reports = 3;  // the label is set, and then it cannot be resumed
    throw Error(ErrorCode::io, "cannot resume");
  };
  round();
  engine_.on_tell = {};
  round();
  EXPECT_EQ(told(), Versions({3, 3}));
  EXPECT_EQ(state(), HookPhase::current);
}

TEST_F(HookReconcilerTest, ATellingThatTheDaemonDidNotSurviveIsDoneAgain) {
  show(3);
  engine_.reports = 3;
  make({.told = 2, .telling = 3});
  round();
  EXPECT_EQ(told(), Versions({3}));
  EXPECT_EQ(saved_.back().told, 3U);
  EXPECT_EQ(saved_.back().telling, 0U);
}

TEST_F(HookReconcilerTest, RecordsBeforeItTellsAndAfterItHasReadBack) {
  show(3);
  engine_.on_tell = [&](const HookTarget&) {
    ASSERT_EQ(saved_.size(), 1U);
    EXPECT_EQ(saved_[0].telling, 3U);
    EXPECT_EQ(saved_[0].told, 0U);
  };
  round();
  ASSERT_EQ(saved_.size(), 2U);
  EXPECT_EQ(saved_[1].told, 3U);
  EXPECT_EQ(saved_[1].telling, 0U);
}

TEST_F(HookReconcilerTest, ACommandIsNotRunAgainByANewDaemonButAnEngineThatCannotSayIsTold) {
  engine_.reports.reset();
  show(3);
  engine_.is_good = true;
  make({.told = 3, .telling = 0});
  round();
  EXPECT_EQ(told(), Versions());
  engine_.is_good = false;
  make({.told = 3, .telling = 0});
  round();
  EXPECT_EQ(told(), Versions({3}));
}

// The store of a host that was down shows an old version until the bucket was asked.
TEST_F(HookReconcilerTest, AnEngineIsNotTakenBackByAHostThatIsBehind) {
  engine_.reports = 5;
  show(3, false);
  round();
  EXPECT_EQ(told(), Versions());
  EXPECT_EQ(state(), HookPhase::current);
  show(3, true);  // another repository, perhaps
  round();
  EXPECT_EQ(told(), Versions({3}));
}

TEST_F(HookReconcilerTest, HoldsWhatTheEngineHasUntilItReportsAnother) {
  show(3);
  round();
  EXPECT_TRUE(reconciler_->holds(3));
  show(4);
  engine_.on_tell = [&](const HookTarget&) {
    EXPECT_TRUE(reconciler_->holds(3));
    EXPECT_TRUE(reconciler_->holds(4));
    throw Error(ErrorCode::io, "no");
  };
  round();
  EXPECT_TRUE(reconciler_->holds(3));
  EXPECT_TRUE(reconciler_->holds(4));
  engine_.on_tell = {};
  round();
  EXPECT_FALSE(reconciler_->holds(3));
  EXPECT_TRUE(reconciler_->holds(4));
  engine_.is_gone = true;
  round();
  EXPECT_FALSE(reconciler_->holds(4));
}

TEST_F(HookReconcilerTest, HoldsWhatItWasToldBeforeTheDaemonWasStarted) {
  make({.told = 2, .telling = 3});
  EXPECT_TRUE(reconciler_->holds(2));
  EXPECT_TRUE(reconciler_->holds(3));
}

TEST_F(HookReconcilerTest, HoldsWhatAnEngineThatDidNotAnswerMayBeLoadingStill) {
  make({.told = 1, .telling = 2});  // a daemon was killed
  engine_.on_tell = [](const HookTarget&) { throw Error(ErrorCode::timed_out, "too late"); };
  for (const std::uint64_t version : {3U, 4U}) {
    show(version);
    round();
  }
  engine_.on_tell = [](const HookTarget&) { throw Error(ErrorCode::io, "no"); };
  for (const std::uint64_t version : {5U, 6U}) {
    show(version);
    round();
  }
  for (const std::uint64_t version : {2U, 4U, 6U}) EXPECT_TRUE(reconciler_->holds(version));
  EXPECT_FALSE(reconciler_->holds(3));  // neither the first nor the last
  EXPECT_FALSE(reconciler_->holds(5));  // it has answered
  engine_.on_tell = {};
  round();
  for (const std::uint64_t version : {2U, 4U}) EXPECT_FALSE(reconciler_->holds(version));
  EXPECT_TRUE(reconciler_->holds(6));

  engine_.on_tell = [](const HookTarget&) { throw Error(ErrorCode::timed_out, "too late"); };
  for (std::uint64_t version = 7; version < 100; version++) {
    show(version);
    round();
  }
  for (const std::uint64_t version : {7U, 99U}) EXPECT_TRUE(reconciler_->holds(version));
  for (const std::uint64_t version : {50U, 98U}) {
    EXPECT_FALSE(reconciler_->holds(version));  // it must not fill the disk
  }
  engine_.is_gone = true;
  round();
  for (const std::uint64_t version : {7U, 99U}) EXPECT_FALSE(reconciler_->holds(version));
}

// A proxy does not wait for as long as this does.
TEST_F(HookReconcilerTest, AnErrorOfAProxyIsNoAnswerOfTheEngine) {
  make({.told = 1});
  std::uint64_t version = 2;
  for (const int status : {502, 503, 504}) {
    engine_.on_tell = [&](const HookTarget&) { throw EngineError(status, "of a proxy"); };
    show(version);
    round();
    engine_.on_tell = [](const HookTarget&) { throw EngineError(500, "of the engine"); };
    for (const std::uint64_t next : {version + 1, version + 2}) {
      show(next);
      round();
    }
    EXPECT_TRUE(reconciler_->holds(version)) << status;
    EXPECT_FALSE(reconciler_->holds(version + 1)) << "it has answered";
    engine_.on_tell = {};
    round();
    EXPECT_FALSE(reconciler_->holds(version));
    version += 3;
  }
}

TEST_F(HookReconcilerTest, WantsTheChangeFromWhatTheEngineHasToTheNewest) {
  EXPECT_EQ(reconciler_->wanted_delta(3), std::nullopt);
  show(3);
  round();
  EXPECT_EQ(reconciler_->wanted_delta(4), std::nullopt);  // it is reloaded
  engine_.base_of_change = 3;
  round();
  EXPECT_EQ(reconciler_->wanted_delta(4), DeltaId({3, 4}, true));
  EXPECT_EQ(reconciler_->wanted_delta(9), DeltaId({3, 9}, true));
  EXPECT_EQ(reconciler_->wanted_delta(3), std::nullopt);
  engine_.base_of_change = 0;  // another engine answers now
  round();
  EXPECT_EQ(reconciler_->wanted_delta(4), std::nullopt);
}

// Who removes versions hides them first and asks then: so what is told was looked at again after it
// was held.
TEST_F(HookReconcilerTest, WhatIsToldIsLookedAtAgainWhileItIsHeld) {
  show(3);
  unsigned looks = 0;
  reconciler_->round(
      [&] {
        if (++looks == 2) {
          EXPECT_TRUE(reconciler_->holds(3));
          show(4);  // and 3 has been removed
        }
        return wish_;
      },
      {});
  EXPECT_EQ(told(), Versions({4}));
}

TEST_F(HookReconcilerTest, ARecordThatCannotBeWrittenIsNoFailure) {
  ReconcilerOptions options;
  options.save = [](const HookRecord&) { throw Error(ErrorCode::no_space, "full"); };
  HookReconciler reconciler(std::make_unique<MemoryHook>(engine_), options);
  show(3);
  for (int i = 0; i < 3; i++) reconciler.round([this] { return wish_; }, {});
  EXPECT_EQ(reconciler.status().state, HookPhase::current);
  EXPECT_EQ(told(), Versions({3}));
}

}  // namespace
}  // namespace weightfs::fs
