#include "fs/runtime/status.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "fs/client/mount_status.hpp"
#include "store/base/error.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::TempDir;
using test::write_text;

constexpr auto kNever = seconds(60);

DaemonState some_daemon_state() {
  DaemonState state{.url = "file:///b",
                    .bucket = {},
                    .repository = "0123",
                    .mount_point = "/mnt/w",
                    .store = "/s",
                    .log = "/s/weightfs.log",
                    .control = "/run/weightfs/0.sock",
                    .pid = 42,
                    .versions = {7, 8},
                    .sync = {},
                    .serving = {.mode = "passthrough",
                                .why = "",
                                .bound = {7, 8},
                                .open_passthrough = 2,
                                .open_daemon = 1,
                                .daemon_reads = 5,
                                .waiting_reads = 6},
                    .coder = {"avx2", std::nullopt, ""}};
  state.sync.state = SyncStatus::State::current;
  state.sync.latest = 8;
  state.sync.newest = 8;
  state.sync.newest_time = 900;
  state.sync.behind_since = 900;
  state.sync.checked_time = 990;
  state.sync.rhythm = std::chrono::seconds(16);
  state.sync.fetched_bytes = 100;
  state.sync.image_bytes = 200;
  return state;
}

/// The state, and of every problem its state and what it is about.
std::vector<std::string> health_of(const DaemonState& state) {
  const Json json = Json::parse(status_text(state, 1000));
  std::vector<std::string> words{json["state"]};
  for (const Json& one : json["problems"]) {
    words.push_back(one["state"].get<std::string>() + " " +
                    (one["what"].is_null() ? "" : one["what"].get<std::string>()));
    EXPECT_NE(one["message"], "");
  }
  return words;
}
using Words = std::vector<std::string>;

TEST(StatusText, SaysInOneWordWhatIsWrong) {
  DaemonState state = some_daemon_state();
  EXPECT_EQ(health_of(state), Words{"current"});

  state.sync.follow = parse_follow("canary");
  EXPECT_EQ(health_of(state), (Words{"missing", "missing the tag canary"}));
  state.sync.state = SyncStatus::State::starting;
  EXPECT_EQ(health_of(state), Words{"starting"});  // nobody knows yet
  state.sync.state = SyncStatus::State::current;

  HookStatus hook;
  hook.type = "vllm";
  hook.target = "http://h:1";
  hook.state = HookStatus::State::current;
  state.hooks = {hook, hook};
  state.hooks[1].state = HookStatus::State::unreachable;
  EXPECT_EQ(health_of(state),
            (Words{"hook-failed", "hook-failed vllm http://h:1", "missing the tag canary"}));
  state.hooks[1].state = HookStatus::State::failed;
  state.hooks[1].error = "500";
  EXPECT_EQ(health_of(state)[0], "hook-failed");

  state.sync.state = SyncStatus::State::waiting;
  state.sync.error = "the bucket does not answer";
  state.sync.error_code = "unavailable";
  EXPECT_EQ(health_of(state), (Words{"waiting", "waiting ", "hook-failed vllm http://h:1"}));

  HandOver one;
  one.name = "step-7";
  one.state = HandOver::State::failed;
  one.error = "no such parent";
  state.writer.emplace();
  state.writer->queue = {one};
  EXPECT_EQ(health_of(state)[0], "failed");
  one.name = "step-8";
  one.state = HandOver::State::conflict;
  state.writer->queue.push_back(one);
  EXPECT_EQ(health_of(state)[0], "conflict");
  EXPECT_EQ(health_of(state)[1], "conflict step-8");
  EXPECT_EQ(health_of(state)[2], "failed step-7");
}

TEST(StatusText, TellsEverything) {
  const Json json = Json::parse(status_text(some_daemon_state(), 1000));
  EXPECT_EQ(json["url"], "file:///b");
  EXPECT_EQ(json["repository"], "0123");
  EXPECT_EQ(json["mountpoint"], "/mnt/w");
  EXPECT_EQ(json["store"], "/s");
  EXPECT_EQ(json["log"], "/s/weightfs.log");
  EXPECT_EQ(json["control"], "/run/weightfs/0.sock");
  EXPECT_EQ(json["pid"], 42);
  EXPECT_EQ(json["version"], 8);
  EXPECT_EQ(json["newest"], 8);
  EXPECT_EQ(json["lag_versions"], 0);
  EXPECT_EQ(json["lag_seconds"], 0);
  EXPECT_EQ(json["state"], "current");
  EXPECT_EQ(json["checked"], 990);
  EXPECT_EQ(json["rhythm_ms"], 16000);
  EXPECT_EQ(json["offline_since"], nullptr);
  EXPECT_EQ(json["error"], nullptr);
  EXPECT_EQ(json["versions"], Json::array({7, 8}));
  EXPECT_EQ(json["serve"], Json({{"mode", "passthrough"},
                                 {"why", ""},
                                 {"bound", {7, 8}},
                                 {"open_passthrough", 2},
                                 {"open_daemon", 1},
                                 {"daemon_reads", 5},
                                 {"waiting_reads", 6}}));
  EXPECT_EQ(json["bytes"], Json({{"images", 200}, {"fetched", 100}, {"hub", 0}}));
  EXPECT_EQ(json["seed"], nullptr);
  EXPECT_TRUE(json["weightfs"].is_string());
}

TEST(StatusText, TellsWhatTheSeedSpared) {
  DaemonState state = some_daemon_state();
  state.seed = {.directory = "/hub/main", .files = 2, .tensors = 300, .taken_bytes = 5000};
  EXPECT_EQ(
      Json::parse(status_text(state, 1000))["seed"],
      Json({{"directory", "/hub/main"}, {"files", 2}, {"tensors", 300}, {"taken_bytes", 5000}}));
}

TEST(StatusText, TellsWhatCameFromTheHub) {
  DaemonState state = some_daemon_state();
  state.hub_bytes = 77;
  EXPECT_EQ(Json::parse(status_text(state, 1000))["bytes"]["hub"], 77);
}

TEST(StatusText, TellsWhereImagesAreAndWhatWasDoneAfterTheFlip) {
  DaemonState state = some_daemon_state();
  const auto images = [&] { return Json::parse(status_text(state, 1000))["images"]; };
  EXPECT_EQ(images(), Json({{"head_start", nullptr}, {"home", "disk"}, {"room_ahead", nullptr}}));
  state.sync.head_start = HeadStartStatus{.waiting_bytes = 100, .taken_bytes = 700};
  EXPECT_EQ(images()["head_start"],
            Json({{"waiting_bytes", 100}, {"taken_bytes", 700}, {"due_in_ms", nullptr}}));
  state.sync.head_start->due_in = std::chrono::milliseconds(-20);
  EXPECT_EQ(images()["head_start"]["due_in_ms"], -20);
  state.sync.room_ahead = RoomAheadStatus{};
  EXPECT_EQ(images()["room_ahead"], Json({{"versions", 0}, {"last", nullptr}, {"last_ms", 0.0}}));
  state.sync.room_ahead = RoomAheadStatus{4, 6, std::chrono::milliseconds(150)};
  EXPECT_EQ(images()["room_ahead"], Json({{"versions", 4}, {"last", 6}, {"last_ms", 150.0}}));

  state.sync.room_ahead.reset();
  state.sync.memory = MemoryStatus{200, {7, 8}, 1, {}};
  EXPECT_EQ(images()["base_renewals"], 0);
  EXPECT_EQ(images()["base_renewed"], nullptr);
  state.sync.memory->renewals = {2, 65};
  EXPECT_EQ(images()["base_renewals"], 2);
  EXPECT_EQ(images()["base_renewed"], 65);
}

TEST(StatusText, TellsWhatIsKeptOfTheHistory) {
  DaemonState state = some_daemon_state();
  const auto history = [&] { return Json::parse(status_text(state, 1000))["history"]; };
  EXPECT_EQ(history()["levels"], Json::array());
  EXPECT_EQ(history()["first"], nullptr);
  EXPECT_EQ(history()["off"], nullptr);
  PatchHistory& known = state.sync.history;
  known.levels = {{PatchLevel::one, 3, 300, 5, 8}, {PatchLevel::eight}};
  EXPECT_EQ(history()["write_amplification"], nullptr);
  EXPECT_EQ(history()["recorded"], nullptr);
  known.written = {200, 100};
  known.first = 5;
  known.versions = 4;
  known.bytes = 300;
  EXPECT_EQ(history()["bytes_max"], nullptr);
  known.bytes_max = 1000;
  known.recorded = 8;
  known.backlog = 1;
  known.path_bytes = 250;
  known.off = "no";
  known.error = "why";
  const Json json = history();
  EXPECT_EQ(json["levels"][0],
            Json({{"level", "1"}, {"spans", 3}, {"bytes", 300}, {"first", 5}, {"last", 8}}));
  EXPECT_EQ(json["levels"][1]["last"], nullptr);
  EXPECT_EQ(json["first"], 5);
  EXPECT_EQ(json["versions"], 4);
  EXPECT_EQ(json["bytes"], 300);
  EXPECT_EQ(json["bytes_max"], 1000);
  EXPECT_EQ(json["recorded"], 8);
  EXPECT_EQ(json["backlog"], 1);
  EXPECT_EQ(json["path_bytes"], 250);
  EXPECT_EQ(json["taken_bytes"], 200);
  EXPECT_EQ(json["folded_bytes"], 100);
  EXPECT_EQ(json["write_amplification"], 1.5);
  EXPECT_EQ(json["off"], "no");
  EXPECT_EQ(json["error"], "why");
}

TEST(StatusText, TellsWhatIsFollowedAndWhatIsWaitedFor) {
  DaemonState state = some_daemon_state();
  const auto follow = [&] { return Json::parse(status_text(state, 1000))["follow"]; };
  state.sync.followed = 8;
  EXPECT_EQ(follow(), Json({{"what", "latest"}, {"version", 8}, {"waiting", nullptr}}));
  state.sync.follow = parse_follow("12");
  state.sync.followed = 0;
  EXPECT_EQ(follow(), Json({{"what", "12"}, {"version", nullptr}, {"waiting", "version 12"}}));
}

TEST(StatusText, TellsWhatIsKept) {
  DaemonState state = some_daemon_state();
  const auto kept = [&] { return Json::parse(status_text(state, 1000))["kept"]; };
  state.kept = {.only = {}, .kept_bytes = 10, .version_bytes = 10, .made_bytes = 0};
  EXPECT_TRUE(kept().is_null());
  state.kept = {.only = {"b*"}, .kept_bytes = 4, .version_bytes = 10, .made_bytes = 2};
  EXPECT_EQ(kept(),
            Json({{"only", {"b*"}}, {"kept_bytes", 4}, {"version_bytes", 10}, {"made_bytes", 2}}));
  state.kept.only = {};
  EXPECT_EQ(kept()["only"], Json::array()) << "files of another mount's time are missing";
}

TEST(StatusText, TellsWhatIsBeingFilled) {
  DaemonState state = some_daemon_state();
  const auto partial = [&] { return Json::parse(status_text(state, 1000))["partial"]; };
  EXPECT_EQ(partial(), Json::array());
  state.sync.partial[3] = {.bytes = 100, .bytes_here = 60, .error = std::nullopt};
  state.sync.partial[5] = {
      .bytes = 10, .error = Error(ErrorCode::corrupt, "pack 5-0 is damaged"), .is_damaged = true};
  const Json error{{"code", "corrupt"}, {"message", "pack 5-0 is damaged"}, {"damaged", true}};
  EXPECT_EQ(partial(), Json({{{"version", 3}, {"bytes", 100}, {"here", 60}, {"error", nullptr}},
                             {{"version", 5}, {"bytes", 10}, {"here", 0}, {"error", error}}}));
}

TEST(StatusText, TellsThePins) {
  DaemonState state = some_daemon_state();
  EXPECT_EQ(Json::parse(status_text(state, 1000))["pins"], Json::array());
  state.pins.by_hand = {{7, 900}, {8, 2000}};  // a clock that was wrong
  state.pins.passes = {{.session = "session 15",
                        .link = "tags/best",
                        .version = 8,
                        .age = milliseconds(12900),
                        .is_full = true,
                        .is_loading = true,
                        .command = "python3",
                        .members = {{20, "python3"}, {0, ""}}}};
  const auto by_hand = [](int version, int age) {
    return Json{
        {"version", version}, {"session", nullptr}, {"link", nullptr},  {"command", nullptr},
        {"age", age},         {"full", false},      {"loading", false}, {"members", Json::array()}};
  };
  const Json members{{{"pid", 20}, {"command", "python3"}},
                     {{"pid", nullptr}, {"command", nullptr}}};
  const Json pass{{"version", 8},        {"session", "session 15"},
                  {"link", "tags/best"}, {"command", "python3"},
                  {"age", 12},           {"full", true},
                  {"loading", true},     {"members", members}};
  EXPECT_EQ(Json::parse(status_text(state, 1000))["pins"],
            Json({by_hand(7, 100), by_hand(8, 0), pass}));
}

TEST(StatusText, TellsWhoGetsNoPass) {
  DaemonState state = some_daemon_state();
  EXPECT_EQ(Json::parse(status_text(state, 1000))["pins_full"], Json::array());
  state.pins.full = {{.uid = 1000, .refused = 12}};
  EXPECT_EQ(Json::parse(status_text(state, 1000))["pins_full"],
            Json({{{"uid", 1000}, {"refused", 12}}}));
}

TEST(StatusText, TellsWhatDoesTheWork) {
  DaemonState state = some_daemon_state();
  const auto kernels = [&] { return Json::parse(status_text(state, 1000))["kernels"]; };
  EXPECT_EQ(kernels(), Json({{"variant", "avx2"}, {"gpu", nullptr}}));
  EXPECT_EQ(coder_text(kernels()), "avx2");
  state.coder.gpu = 1;
  EXPECT_EQ(kernels()["gpu"], Json({{"device", 1}, {"state", "in use"}}));
  EXPECT_EQ(coder_text(kernels()), "avx2; GPU 1 in use");
  state.coder.gpu_failure = "it is gone";
  EXPECT_EQ(kernels()["gpu"], Json({{"device", 1}, {"state", "failed: it is gone"}}));
  EXPECT_EQ(coder_text(kernels()), "avx2; GPU 1 failed: it is gone");
}

TEST(StatusText, AReadersMountHasNoWriterAndNamesWhatItsStoreHolds) {
  DaemonState state = some_daemon_state();
  state.queued = {"step-42"};
  const Json json = Json::parse(status_text(state, 1000));
  EXPECT_EQ(json["writer"], nullptr);
  EXPECT_EQ(json["queued"], Json::array({"step-42"}));
  EXPECT_EQ(Json::parse(status_text(some_daemon_state(), 1000))["queued"], Json::array());
}

TEST(StatusText, TellsTheQueueAndTheStagingOfAWriter) {
  DaemonState state = some_daemon_state();
  HandOver one;
  one.order = 6;
  one.name = "untagged-1";
  one.state = HandOver::State::uploading;
  one.phase = "coding";
  one.done_bytes = 3;
  one.total_bytes = 12;
  one.early_bytes = 5;
  one.time = 900;
  HandOver two;
  two.name = two.tag = "step-2";
  two.state = HandOver::State::conflict;
  two.error = "somebody else";
  two.error_code = "conflict";
  StagingSummary staging{.files = 3, .bytes = 70, .tops = {}};
  staging.tops.push_back({"run", false, 2, 50, 940});
  staging.tops.push_back({"step-2", true, 1, 20, 2000});  // a clock that was wrong
  staging.tops.push_back({"empty", false, 0, 0, 0});
  HandOverEnd failed, published;
  failed.how = HandOverEnd::How::failed;
  published.name = published.tag = "step-1";
  published.how = HandOverEnd::How::published;
  published.version = 7;
  published.bytes = 100;
  published.early_bytes = 90;
  state.writer = {.rebase = true,
                  .include = {"*.pt"},
                  .part = {2, 4, "job.1"},
                  .queue = {one, two},
                  .staging = staging,
                  .early = {.waiting_files = 1,
                            .growing_files = 3,
                            .coded_files = 2,
                            .coded_bytes = 30,
                            .uploaded_bytes = 20,
                            .grown_bytes = 10},
                  .published = {.versions = 1, .bytes = 100, .early_bytes = 90},
                  .ended = {failed, published},
                  .skips = {.made = 2,
                            .bytes = 70,
                            .last = VersionPair{8, 16},
                            .making = {},
                            .out_of_reach = {{1, 16}},
                            .failed = {},
                            .off = "",
                            .error = "the bucket"}};

  const Json json = Json::parse(status_text(state, 1000));
  EXPECT_EQ(json["queued"], Json::array({"untagged-1", "step-2"}));
  const Json& writer = json["writer"];
  EXPECT_EQ(writer["rebase"], true);
  EXPECT_EQ(writer["include"], Json::array({"*.pt"}));
  EXPECT_EQ(writer["part"], 2);
  EXPECT_EQ(writer["parts"], 4);
  EXPECT_EQ(writer["run"], "job.1");
  EXPECT_EQ(writer["queue"][0], Json({{"order", 6},
                                      {"name", "untagged-1"},
                                      {"tag", ""},
                                      {"state", "uploading"},
                                      {"phase", "coding"},
                                      {"done", 3},
                                      {"total", 12},
                                      {"early_bytes", 5},
                                      {"parts", nullptr},
                                      {"missing", Json::array()},
                                      {"version", nullptr},
                                      {"since", 900},
                                      {"error", nullptr}}));
  EXPECT_EQ(writer["queue"][1]["error"],
            Json({{"code", "conflict"}, {"message", "somebody else"}}));
  EXPECT_EQ(writer["early"], Json({{"waiting_files", 1},
                                   {"growing_files", 3},
                                   {"coded_files", 2},
                                   {"coded_bytes", 30},
                                   {"uploaded_bytes", 20},
                                   {"grown_bytes", 10}}));
  EXPECT_EQ(writer["published"], Json({{"versions", 1},
                                       {"bytes", 100},
                                       {"early_bytes", 90},
                                       {"last", Json::array({{{"name", "step-1"},
                                                              {"tag", "step-1"},
                                                              {"version", 7},
                                                              {"bytes", 100},
                                                              {"early_bytes", 90}}})}}));
  EXPECT_EQ(writer["skips"], Json({{"made", 2},
                                   {"bytes", 70},
                                   {"last", {{"from", 8}, {"to", 16}}},
                                   {"making", nullptr},
                                   {"out_of_reach", Json::array({{{"from", 1}, {"to", 16}}})},
                                   {"failed", Json::array()},
                                   {"off", nullptr},
                                   {"error", "the bucket"}}));
  EXPECT_EQ(writer["staging"]["files"], 3);
  EXPECT_EQ(writer["staging"]["bytes"], 70);
  EXPECT_EQ(
      writer["staging"]["tops"][0],
      Json({{"name", "run"}, {"handed_over", false}, {"files", 2}, {"bytes", 50}, {"age", 60}}));
  EXPECT_EQ(writer["staging"]["tops"][1]["age"], 0);
  EXPECT_EQ(writer["staging"]["tops"][2]["age"], nullptr);
}

TEST(StatusText, TellsOfEveryHook) {
  DaemonState state = some_daemon_state();
  EXPECT_EQ(Json::parse(status_text(state, 1000))["hooks"], Json::array());
  HookStatus vllm;
  vllm.type = "vllm";
  vllm.target = vllm.url = "http://h:1";
  vllm.state = HookStatus::State::failed;
  vllm.wanted = 8;
  vllm.reported = 7;
  vllm.since = 900;
  vllm.error = "the reason";
  vllm.error_time = 950;
  vllm.failures = 3;
  vllm.update = HookUpdate{.how = HookUpdate::How::in_place,
                           .reason = "",
                           .stage = HookUpdate::Seconds(0.5),
                           .pause = HookUpdate::Seconds(0.25),
                           .apply = HookUpdate::Seconds(0.125)};
  HookStatus exec;
  exec.type = "exec";
  exec.target = "/bin/x";
  exec.state = HookStatus::State::current;
  exec.wanted = exec.told = 8;
  state.hooks = {vllm, exec};
  const Json hooks = Json::parse(status_text(state, 1000))["hooks"];
  EXPECT_EQ(hooks[0], Json({{"type", "vllm"},
                            {"target", "http://h:1"},
                            {"url", "http://h:1"},
                            {"state", "failed"},
                            {"since", 900},
                            {"wanted", 8},
                            {"reported", 7},
                            {"failures", 3},
                            {"update",
                             {{"how", "in-place"},
                              {"reason", nullptr},
                              {"running", "recomputed"},
                              {"stage_s", 0.5},
                              {"pause_s", 0.25},
                              {"apply_s", 0.125}}},
                            {"error", {{"message", "the reason"}, {"time", 950}}}}));
  EXPECT_EQ(hooks[1], Json({{"type", "exec"},
                            {"target", "/bin/x"},
                            {"url", nullptr},
                            {"state", "current"},
                            {"since", nullptr},
                            {"wanted", 8},
                            {"reported", 8},
                            {"failures", 0},
                            {"update", nullptr},
                            {"error", nullptr}}));
}

TEST(StatusText, TellsHowFarBehindItIs) {
  DaemonState state = some_daemon_state();
  state.sync.newest = 11;
  const Json json = Json::parse(status_text(state, 1000));
  EXPECT_EQ(json["lag_versions"], 3);
  EXPECT_EQ(json["lag_seconds"], 100);
}

TEST(StatusText, AClockThatIsWrongGivesNoNegativeLag) {
  DaemonState state = some_daemon_state();
  state.sync.newest = 11;
  EXPECT_EQ(Json::parse(status_text(state, 500))["lag_seconds"], 0);
}

TEST(StatusText, TellsTheLastErrorAndSinceWhenTheBucketIsOutOfReach) {
  DaemonState state = some_daemon_state();
  state.log = "";
  state.sync.state = SyncStatus::State::waiting;
  state.sync.offline_since = 800;
  state.sync.error = "packs/1: not \xFF utf-8";
  state.sync.error_code = "unavailable";
  state.sync.error_time = 810;
  const Json json = Json::parse(status_text(state, 1000));
  EXPECT_EQ(json["state"], "waiting");
  EXPECT_EQ(json["offline_since"], 800);
  EXPECT_EQ(json["error"]["code"], "unavailable");
  EXPECT_EQ(json["error"]["message"], "packs/1: not \xEF\xBF\xBD utf-8");
  EXPECT_EQ(json["error"]["time"], 810);
  EXPECT_EQ(json["log"], nullptr);
}

TEST(ReadFileWithin, ReadsAWholeFile) {
  const TempDir dir;
  const std::string text(300'000, 'x');
  write_text(dir / "f", text);
  EXPECT_EQ(read_file_within(dir / "f", kNever), text);
  write_text(dir / "empty", "");
  EXPECT_EQ(read_file_within(dir / "empty", kNever), "");
}

TEST(ReadFileWithin, SaysWhatIsWrong) {
  const TempDir dir;
  try {
    read_file_within(dir / "absent", kNever);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos);
  }
}

// A FIFO that nobody writes to blocks its reader in open(2), like a daemon that never answers.
TEST(ReadFileWithin, DoesNotWaitForOneThatNeverAnswers) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "f").c_str(), 0600), 0);
  try {
    read_file_within(dir / "f", milliseconds(50));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    EXPECT_NE(std::string(error.what()).find((dir / "f").string()), std::string::npos);
  }
}

TEST(ReadFileWithin, RefusesWhatNeverEnds) {
  try {
    read_file_within("/dev/zero", kNever);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
  }
}

TEST(Target, AUrlOrAPathThatIsNoMountIsItself) {
  const TempDir dir;
  const Target url = resolve_target("file://" + dir.path().string() + "/");
  EXPECT_EQ(url.url, "file://" + dir.path().string());
  EXPECT_EQ(url.mount_point, "");
  EXPECT_EQ(resolve_target(dir.path().string()).url, url.url);
}

TEST(GetMount, SaysWhatIsThereInstead) {
  const TempDir dir;
  try {
    get_mount(dir.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_EQ(
        std::string(error.what()),
        dir.path().string() +
            " is not a weightfs mount: nothing is mounted there; run weightfs status to list the "
            "mounts of this host");
  }
  try {
    get_mount("/proc");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/proc is not a weightfs mount: proc is mounted"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace weightfs::fs
