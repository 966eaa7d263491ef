#include "fs/runtime/health.hpp"

#include <gtest/gtest.h>

#include "fs/runtime/status.hpp"

using namespace weightfs;
using namespace weightfs::fs;

namespace {

constexpr std::int64_t kNow = 1000;

/// Shows version 8, which is the newest.
DaemonState healthy_state() {
  DaemonState state;
  state.url = "file:///b";
  state.sync.state = SyncStatus::State::current;
  state.sync.latest = state.sync.newest = 8;
  state.sync.behind_since = 900;
  return state;
}

std::string text_of(const DaemonState& state) { return health_text(troubles_of(state, kNow)); }

HandOver hand_over(HandOver::State state, const char* name) {
  HandOver one;
  one.name = name;
  one.state = state;
  one.error = "the bucket does not answer";
  return one;
}

HookStatus failing_hook(std::uint64_t failures) {
  HookStatus hook;
  hook.type = "vllm";
  hook.target = "http://h:1";
  hook.state = HookStatus::State::failed;
  hook.error = "500";
  hook.failures = failures;
  return hook;
}

}  // namespace

TEST(Health, IsHealthyWithoutTroubles) {
  EXPECT_EQ(text_of(healthy_state()), "healthy");
  EXPECT_EQ(health_file_text(healthy_state(), kNow), "healthy\n");
  EXPECT_EQ(health_of({}), Health::healthy);
}

TEST(Health, AnErrorIsAFailureOnlyWhereNothingCanBeRead) {
  DaemonState state = healthy_state();
  state.sync.error = "the bucket does not answer";
  EXPECT_EQ(text_of(state), "degraded: the bucket does not answer");
  state.sync.latest = 0;
  EXPECT_EQ(text_of(state), "failed: the bucket does not answer");
}

TEST(Health, AHandOverThatIsLostIsAFailure) {
  DaemonState state = healthy_state();
  state.writer.emplace();
  state.writer->queue = {hand_over(HandOver::State::waiting, "step-7")};
  EXPECT_EQ(text_of(state), "degraded: step-7: the bucket does not answer");
  for (const auto lost : {HandOver::State::conflict, HandOver::State::failed}) {
    state.writer->queue.resize(1);
    state.writer->queue.push_back(hand_over(lost, "step-8"));
    EXPECT_EQ(text_of(state), "failed: step-8: the bucket does not answer; and 1 more");
  }
  state.writer->queue[1].error.clear();  // it is lost all the same
  EXPECT_EQ(health_of(troubles_of(state, kNow)), Health::failed);
  state.writer->queue[0].error.clear();  // it waits for its turn
  EXPECT_EQ(troubles_of(state, kNow).size(), 1u);
  state.writer->queue = {hand_over(HandOver::State::uploading, "step-9")};
  EXPECT_EQ(text_of(state), "healthy");
}

TEST(Health, AReaderThatIsNotAnnouncedIsDegraded) {
  DaemonState state = healthy_state();
  state.announce.emplace();
  EXPECT_EQ(text_of(state), "healthy");
  state.announce->error = "403";
  EXPECT_EQ(text_of(state), "degraded: this reader is not announced (PUT on readers/*): 403");
  EXPECT_EQ(state_of(state, troubles_of(state, kNow)), "announce");
}

TEST(Health, IsFailedBeyondTheLagThatItMayHave) {
  DaemonState state = healthy_state();
  state.sync.newest = 9;
  EXPECT_EQ(text_of(state), "healthy");  // without a limit
  state.max_lag = std::chrono::seconds(100);
  EXPECT_EQ(text_of(state), "healthy");
  state.max_lag = std::chrono::milliseconds(99'500);
  EXPECT_EQ(text_of(state),
            "failed: version 8 is shown, and for 100 s there have been later ones, up to 9 "
            "(--max-lag 99.5)");
  state.sync.follow = parse_follow("8");  // on purpose
  state.sync.followed = 8;
  EXPECT_EQ(text_of(state), "healthy");
}

TEST(Health, ABucketThatIsNotReachedIsALag) {
  DaemonState state = healthy_state();
  state.sync.error = "no route";
  state.sync.offline_since = 940;
  state.max_lag = std::chrono::seconds(60);
  EXPECT_EQ(text_of(state), "degraded: no route");
  state.max_lag = std::chrono::seconds(59);
  EXPECT_EQ(text_of(state),
            "failed: the bucket has not been reached for 60 s (--max-lag 59); and 1 more");
}

TEST(Health, AnEngineThatFailsAgainAndAgainIsAFailure) {
  DaemonState state = healthy_state();
  state.hooks = {failing_hook(2)};
  EXPECT_EQ(text_of(state), "degraded: vllm http://h:1: 500");
  state.hooks = {failing_hook(3)};
  EXPECT_EQ(text_of(state), "failed: vllm http://h:1: 500");
}

TEST(Health, KnowsWhatOnlyNeedsALook) {
  DaemonState state = healthy_state();
  state.pins.full = {{.uid = 1000, .refused = 3}};
  state.refused_leases = "old versions cannot be removed";
  state.sync.history.error = "no room";
  state.writer.emplace();
  state.writer->gc.emplace();
  state.writer->gc->error = "403";
  const auto troubles = troubles_of(state, kNow);
  ASSERT_EQ(troubles.size(), 4u);
  EXPECT_EQ(troubles[0].state, "passes-full");
  EXPECT_EQ(troubles[1].state, "leases");
  EXPECT_EQ(troubles[1].message, "old versions cannot be removed");
  EXPECT_EQ(troubles[2].state, "history");
  EXPECT_EQ(troubles[3].state, "gc-failed");
  EXPECT_EQ(health_of(troubles), Health::degraded);
  EXPECT_EQ(state_of(state, troubles), "passes-full");
}

TEST(Health, TheWorstComesFirst) {
  DaemonState state = healthy_state();
  state.sync.error = "the bucket does not answer";
  state.hooks = {failing_hook(3)};
  const auto troubles = troubles_of(state, kNow);
  ASSERT_EQ(troubles.size(), 2u);
  EXPECT_EQ(troubles[0].state, "hook-failed");
  EXPECT_EQ(troubles[1].state, "waiting");
}

TEST(Health, IsOneLine) {
  DaemonState state = healthy_state();
  state.sync.error = "two\nlines";
  EXPECT_EQ(text_of(state).find('\n'), std::string::npos);
}
