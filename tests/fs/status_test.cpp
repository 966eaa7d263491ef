#include "fs/status.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "fs/mount_status.hpp"
#include "store/error.hpp"
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
  state.sync.checked_time = 990;
  state.sync.fetched_bytes = 100;
  state.sync.image_bytes = 200;
  return state;
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
  EXPECT_EQ(json["bytes"], Json({{"images", 200}, {"fetched", 100}}));
  EXPECT_TRUE(json["weightfs"].is_string());
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
  state.pins.sessions = {{"session 15", "python3", 8, milliseconds(12900), true},
                         {"invisible", "", 7, seconds(3), false}};
  const auto pin = [](int version, Json session, Json command, int age, bool loading) {
    return Json{{"version", version},
                {"session", std::move(session)},
                {"command", std::move(command)},
                {"age", age},
                {"loading", loading}};
  };
  EXPECT_EQ(
      Json::parse(status_text(state, 1000))["pins"],
      Json({pin(7, nullptr, nullptr, 100, false), pin(8, nullptr, nullptr, 0, false),
            pin(8, "session 15", "python3", 12, true), pin(7, "invisible", nullptr, 3, false)}));
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
  state.writer = {.rebase = true, .include = {"*.pt"}, .queue = {one, two}, .staging = staging};

  const Json json = Json::parse(status_text(state, 1000));
  EXPECT_EQ(json["queued"], Json::array({"untagged-1", "step-2"}));
  const Json& writer = json["writer"];
  EXPECT_EQ(writer["rebase"], true);
  EXPECT_EQ(writer["include"], Json::array({"*.pt"}));
  EXPECT_EQ(writer["queue"][0], Json({{"order", 6},
                                      {"name", "untagged-1"},
                                      {"tag", ""},
                                      {"state", "uploading"},
                                      {"phase", "coding"},
                                      {"done", 3},
                                      {"total", 12},
                                      {"version", nullptr},
                                      {"since", 900},
                                      {"error", nullptr}}));
  EXPECT_EQ(writer["queue"][1]["error"],
            Json({{"code", "conflict"}, {"message", "somebody else"}}));
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
                            {"error", {{"message", "the reason"}, {"time", 950}}}}));
  EXPECT_EQ(hooks[1], Json({{"type", "exec"},
                            {"target", "/bin/x"},
                            {"url", nullptr},
                            {"state", "current"},
                            {"since", nullptr},
                            {"wanted", 8},
                            {"reported", 8},
                            {"failures", 0},
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
    EXPECT_EQ(std::string(error.what()),
              dir.path().string() + " is no weightfs mount: nothing is mounted there");
  }
  try {
    get_mount("/proc");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/proc is no weightfs mount: proc is mounted"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace weightfs::fs
