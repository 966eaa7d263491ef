#include "fs/client/status_lines.hpp"

#include <gtest/gtest.h>

#include "fs/runtime/status.hpp"

namespace weightfs::fs {
namespace {

Json entry(const char* state) {
  return {{"name", "step-42"},  {"tag", "step-42"}, {"state", state},
          {"phase", ""},        {"done", 0},        {"total", 0},
          {"version", nullptr}, {"since", 900},     {"error", nullptr}};
}

Json failing(const char* state, const char* code) {
  Json json = entry(state);
  json["error"] = {{"code", code}, {"message", "the reason"}};
  return json;
}

DaemonState some_state() {
  DaemonState state;
  state.mount_point = "/mnt/w";
  state.store = "/s";
  state.coder = {"avx2", std::nullopt, ""};
  return state;
}

std::string lines_of(const DaemonState& state) {
  return status_lines(Json::parse(status_text(state, 1000)));
}

TEST(StatusLines, CountsInTheSingularToo) {
  DaemonState state = some_state();
  state.sync.latest = 2;
  state.sync.newest = 3;
  state.sync.behind_since = 960;
  EXPECT_NE(lines_of(state).find("3, 1 version and 40 s ahead"), std::string::npos)
      << lines_of(state);
  state.sync.newest = 4;
  EXPECT_NE(lines_of(state).find("4, 2 versions and 40 s ahead"), std::string::npos);
}

TEST(HookText, TellsWhatTheEngineHasAndWhatItShouldHave) {
  Json json{{"type", "vllm"}, {"target", "http://h:1"}, {"state", "current"},
            {"wanted", 8},    {"reported", 8},          {"error", nullptr}};
  EXPECT_EQ(hook_text(json), "vllm http://h:1: current, version 8");
  json["update"] = {{"how", "in-place"}, {"reason", nullptr}, {"pause_s", 0.0521}};
  EXPECT_EQ(hook_text(json), "vllm http://h:1: current, version 8, in place, paused for 0.052 s");
  json["update"]["how"] = "proof";
  EXPECT_EQ(hook_text(json),
            "vllm http://h:1: current, version 8, in place and proven by a reload, paused for "
            "0.052 s");
  json["update"] = {{"how", "reload"}, {"reason", "rank 3: no"}, {"pause_s", 2}};
  EXPECT_EQ(hook_text(json),
            "vllm http://h:1: current, version 8, reloaded, paused for 2.000 s (not in place: rank "
            "3: no)");
  json["state"] = "telling";
  json["reported"] = nullptr;
  EXPECT_EQ(hook_text(json),
            "vllm http://h:1: telling, should have version 8; the engine has no version of this "
            "repository");
  json["state"] = "failed";
  json["reported"] = 7;
  json["error"] = {{"message", "the reason"}, {"time", 1}};
  EXPECT_EQ(hook_text(json), "vllm http://h:1: failed, version 7 instead of version 8: the reason");
  json["state"] = "idle";
  json["wanted"] = nullptr;
  EXPECT_EQ(hook_text(json), "vllm http://h:1: idle, there is no version yet");
}

TEST(HookText, IsAmongTheLines) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("hooks"), std::string::npos);
  HookStatus hook;
  hook.type = "sglang";
  hook.target = "http://h:1";
  hook.state = HookStatus::State::unreachable;
  hook.wanted = 8;
  hook.error = "nobody listens";
  state.hooks = {hook, hook};
  EXPECT_NE(
      lines_of(state).find(
          "sglang http://h:1: unreachable, should have version 8; the engine has no version of "
          "this repository: nobody listens"),
      std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, TellsThePinsOfLoadersAndByHand) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("pins"), std::string::npos);
  state.pins.by_hand = {{7, 400}};
  state.pins.passes = {
      {.session = "session 15",
       .link = "latest",
       .version = 8,
       .age = std::chrono::seconds(12),
       .is_loading = true,
       .command = "python3",
       .members = {{20, "python3"}, {21, "python3"}}},
      {.session = "cgroup /a", .link = "tags/best", .version = 7, .age = std::chrono::minutes(3)}};
  const std::string lines = lines_of(state);
  for (const char* line : {"version 7: pinned by weightfs pin, 10 min\n",
                           "version 8: session 15 (python3, 2 processes), 12 s, loading\n",
                           "version 7: cgroup /a by tags/best, 3 min\n"}) {
    EXPECT_NE(lines.find(line), std::string::npos) << line << "is not in\n" << lines;
  }
}

TEST(StatusLines, ManyPinsAreCounted) {
  DaemonState state = some_state();
  for (int i = 0; i < 23; i++) {
    state.pins.passes.push_back({.session = "session 15", .link = "latest", .version = 8});
  }
  EXPECT_NE(lines_of(state).find("and 3 more; --json lists all"), std::string::npos);
}

TEST(StatusLines, TellsWhichLoadersAreNotKeptTogether) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("warning"), std::string::npos);
  state.pins.full = {{.uid = 1000, .refused = 12}};
  state.pins.passes = {{.session = "invisible, uid 7", .link = "latest", .version = 8}};
  for (const char* text : {"uid 1000 has the maximum number of passes, and 12 opens",
                           "the daemon cannot see some of its readers", "hostPID: true"}) {
    EXPECT_NE(lines_of(state).find(text), std::string::npos) << lines_of(state);
  }
}

TEST(HandOverText, TellsHowFarAnUploadIs) {
  Json json = entry("uploading");
  EXPECT_EQ(hand_over_text(json), "step-42: uploading");
  json["phase"] = "coding";
  EXPECT_EQ(hand_over_text(json), "step-42: coding");
  json["done"] = 3 << 20;
  json["total"] = 12 << 20;
  EXPECT_EQ(hand_over_text(json), "step-42: coding 3.0 MiB of 12.0 MiB");
}

TEST(HandOverText, TellsForWhatItWaits) {
  EXPECT_EQ(hand_over_text(failing("waiting", "unavailable")),
            "step-42: waiting for the bucket: the reason");
  EXPECT_EQ(hand_over_text(failing("waiting", "timed_out")),
            "step-42: waiting for the bucket: the reason");
  EXPECT_EQ(hand_over_text(failing("waiting", "no_space")),
            "step-42: waiting for room: the reason");
  EXPECT_EQ(hand_over_text(failing("waiting", "io")), "step-42: waiting: the reason");
  EXPECT_EQ(hand_over_text(entry("waiting")), "step-42: waiting");
}

TEST(HandOverText, NamesThePartsForWhichItWaits) {
  Json json = entry("waiting");
  json["parts"] = 4;
  json["missing"] = {2, 3};
  EXPECT_EQ(hand_over_text(json), "step-42: waiting for parts 2 and 3 of 4");
  json["missing"] = {3};
  EXPECT_EQ(hand_over_text(json), "step-42: waiting for part 3 of 4");
}

TEST(HandOverText, TellsTheOtherStates) {
  EXPECT_EQ(hand_over_text(entry("queued")), "step-42: queued");
  Json committing = entry("committing");
  committing["version"] = 7;
  EXPECT_EQ(hand_over_text(committing), "step-42: committing version 7");
  EXPECT_EQ(hand_over_text(failing("conflict", "conflict")), "step-42: conflict: the reason");
  EXPECT_EQ(hand_over_text(failing("failed", "permission")), "step-42: failed: the reason");
}

TEST(QueuedText, NamesWhatWaitsAndHowItGoesOn) {
  EXPECT_EQ(queued_text(Json()), "");
  EXPECT_EQ(queued_text({{"store", "/s"}, {"queued", Json::array()}}), "");
  EXPECT_EQ(queued_text({{"store", "/s"}, {"queued", {"step-42"}}}),
            "1 hand-over waits in the store: step-42; the next mount --writer with --store /s "
            "continues it");
  EXPECT_EQ(queued_text({{"store", "/s"}, {"queued", {"step-42", "step-43"}}}),
            "2 hand-overs wait in the store: step-42, step-43; the next mount --writer with "
            "--store /s continues them");
}

TEST(QueuedText, TellsWhatDoesNotGoOnByItself) {
  Json stuck = failing("conflict", "conflict");
  stuck["name"] = "step-43";
  Json status = {{"store", "/s"},
                 {"queued", {"step-42", "step-43"}},
                 {"writer", {{"queue", {entry("queued"), stuck}}}}};
  EXPECT_EQ(queued_text(status),
            "1 hand-over waits in the store: step-42; the next mount --writer with --store /s "
            "continues it\n"
            "not published: step-43; take it back out of publish/ at that mount");
  status["queued"] = {"step-43"};
  EXPECT_EQ(queued_text(status),
            "not published: step-43; take it back out of publish/ at that mount");
}

TEST(StatusLines, OfAReadersMountHaveAQueueOnlyIfTheStoreHasOne) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("hand-over"), std::string::npos);
  EXPECT_EQ(lines_of(state).find("staging"), std::string::npos);
  state.queued = {"step-42"};
  EXPECT_NE(lines_of(state).find("1 hand-over waits in the store: step-42"), std::string::npos);
}

TEST(StatusLines, TellWhatIsWrongWhereTheStateIs) {
  DaemonState state = some_state();
  HandOver one;
  one.name = "step-7";
  one.state = HandOver::State::conflict;
  one.error = "somebody else";
  state.writer.emplace();
  state.writer->queue = {one};
  HookStatus hook;
  hook.type = "vllm";
  hook.target = "http://h:1";
  hook.state = HookStatus::State::failed;
  hook.error = "500";
  state.hooks = {hook};
  EXPECT_NE(lines_of(state).find("state        conflict: step-7, hook-failed: vllm http://h:1\n"),
            std::string::npos)
      << lines_of(state);
  EXPECT_EQ(problem_lines(parse_json(status_text(state, 0), "status")),
            "/mnt/w: step-7: somebody else\n"
            "/mnt/w: vllm http://h:1: 500\n");
}

TEST(StatusLines, TellWhatIsFollowedIfItIsNotTheNewest) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("follows"), std::string::npos);
  state.sync.follow = parse_follow("canary");
  EXPECT_NE(lines_of(state).find("follows      the tag canary, which does not exist yet\n"),
            std::string::npos)
      << lines_of(state);
  state.sync.followed = 3;
  EXPECT_NE(lines_of(state).find("follows      canary: version 3\n"), std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, TellWhetherTheReaderIsAnnounced) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("announced"), std::string::npos);
  state.announce = AnnounceState{.every = std::chrono::seconds(30)};
  EXPECT_NE(lines_of(state).find("not yet"), std::string::npos);
  state.announce->id = "0123";
  state.announce->last_time = 990;
  EXPECT_NE(lines_of(state).find("every 30 s, as 0123"), std::string::npos) << lines_of(state);
  state.announce->error = "403";
  EXPECT_NE(lines_of(state).find("not now: 403"), std::string::npos);
}

TEST(StatusLines, TellWhatIsKeptIfItIsNotAll) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("keeps"), std::string::npos);
  state.kept = {.only = {"a*", "b*"}, .kept_bytes = 4, .version_bytes = 10, .made_bytes = 2};
  EXPECT_NE(lines_of(state).find(
                "keeps        only a* b*: 4 B of 10 B; 2 B of other files built for readers\n"),
            std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, TellWhatTheSeedSpared) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("seed"), std::string::npos);
  state.seed = {.directory = "/hub", .files = 1, .tensors = 300, .taken_bytes = 2048};
  EXPECT_NE(lines_of(state).find(
                "seed         2.0 KiB taken from /hub (1 file, 300 tensors), not fetched\n"),
            std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, TellWhatCameFromTheHub) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("Hub"), std::string::npos);
  state.hub_bytes = 2048;
  EXPECT_NE(lines_of(state).find(
                "hub          2.0 KiB of snapshots fetched from the Hub, not the bucket\n"),
            std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, TellOfTheHistoryIfThereIsOne) {
  DaemonState state = some_state();
  EXPECT_EQ(lines_of(state).find("history"), std::string::npos);
  PatchHistory& history = state.sync.history;
  history.off = "why";
  EXPECT_NE(lines_of(state).find("history      none; not kept: why\n"), std::string::npos)
      << lines_of(state);
  history.off.clear();
  history.first = 1;
  history.levels = {{PatchLevel::one, 2, 1u << 20, 1, 3}};
  history.written = {100, 50};
  EXPECT_NE(lines_of(state).find(
                "history      back to version 1: 1.0 MiB of patches in 2 spans, written 1.5 "
                "times\n"),
            std::string::npos)
      << lines_of(state);
  history.backlog = 1;
  history.error = "the disk is full";
  EXPECT_NE(lines_of(state).find("; 1 version to be taken; not kept: the disk is full\n"),
            std::string::npos)
      << lines_of(state);
}

TEST(StatusLines, OfASyncTellOfFilesAndNotOfAMount) {
  DaemonState state = some_state();
  state.serving.mode = "directory";
  const std::string text = lines_of(state);
  EXPECT_NE(text.find("directory   /mnt/w\n"), std::string::npos) << text;
  EXPECT_NE(text.find("served by   ordinary files\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("open files"), std::string::npos) << text;
}

TEST(StatusLines, OfAWritersMountShowQueueAndStaging) {
  DaemonState state = some_state();
  state.writer.emplace();
  EXPECT_NE(lines_of(state).find("queue        empty"), std::string::npos) << lines_of(state);
  HandOver one;
  one.name = "step-42";
  state.writer->queue = {one, one};
  state.writer->staging.files = 1;
  state.writer->staging.bytes = 2048;
  state.writer->staging.tops = {{"run\n", false, 1, 2048, 1000 - 7200}};
  const std::string text = lines_of(state);
  EXPECT_NE(text.find("queue        step-42: queued\n             step-42: queued\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("staging      1 file, 2.0 KiB\n"
                      "             staging/run?: 1 file, 2.0 KiB, last changed 2 h ago\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace weightfs::fs
