// What each kind of hook says to its engine, word for word and in which order, and what it makes of
// the answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "fs/hooks/http.hpp"
#include "fs/hooks/sglang.hpp"
#include "fs/hooks/vllm.hpp"
#include "fs/hooks/vllm_lora.hpp"
#include "store/base/error.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using Calls = std::vector<std::string>;
using test::ServedReply;
using test::ServedRequest;

const HookTarget kTarget{.version = 42, .path = "/mnt/w/versions/42", .tag = "step-42"};

/// An engine that answers what a test says it does; 404 to everything else.
class ScriptedEngine {
 public:
  ScriptedEngine() : server_([this](const ServedRequest& request) { return answer(request); }) {}

  /// Of "POST /pause": replies one after another, the last one for ever.
  void on(const std::string& call, std::vector<ServedReply> replies) {
    const std::lock_guard lock(mutex_);
    replies_[call] = std::move(replies);
  }
  void on(const std::string& call, const std::string& json) {
    on(call, std::vector<ServedReply>{{.body = json}});
  }
  void fail(const std::string& call, int status, const std::string& text) {
    on(call, std::vector<ServedReply>{{.status = status, .body = text}});
  }

  /// "POST /pause?mode=keep" and the body, in one string; forgets them.
  Calls take_calls() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }
  std::map<std::string, std::string> last_headers() {
    const std::lock_guard lock(mutex_);
    return headers_;
  }
  [[nodiscard]] std::string url() const { return server_.url(); }

 private:
  ServedReply answer(const ServedRequest& request) {
    const std::lock_guard lock(mutex_);
    const std::string call = request.method + " " + request.target;
    calls_.push_back(call + (request.body.empty() ? "" : " " + request.body));
    headers_ = request.headers;
    const auto found = replies_.find(request.method + " " + request.path());
    if (found == replies_.end()) return {.status = 404, .body = R"({"detail":"Not Found"})"};
    ServedReply reply = found->second.front();
    if (found->second.size() > 1) found->second.erase(found->second.begin());
    return reply;
  }

  std::mutex mutex_;  // guards the next three
  std::map<std::string, std::vector<ServedReply>> replies_;
  Calls calls_;
  std::map<std::string, std::string> headers_;
  test::HttpServer server_;
};

class HookProtocolsTest : public testing::Test {
 protected:
  HookOptions spec(const std::string& type, const std::string& more = "") {
    return parse_hook(type + "=" + engine_.url() + more);
  }
  static std::string failure_of(Hook& hook) {
    try {
      hook.tell(kTarget, {});
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  static void expect_words(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }

  ScriptedEngine engine_;
  HttpClient client_{engine_http_options()};
};

// ---- vLLM ----

const std::string kLookCall = "GET /server_info?config_format=json";
// Without a timeout: vLLM would leave the answers that it gives up for the next call.
const std::string kReloadCall =
    R"(POST /collective_rpc {"kwargs":{"is_checkpoint_format":true,)"
    R"("weights_path":"/mnt/w/versions/42"},"method":"reload_weights"})";

class VllmHookTest : public HookProtocolsTest {
 protected:
  VllmHookTest() {
    engine_.on("POST /pause", R"({"status":"paused"})");
    engine_.on("POST /collective_rpc", R"({"results":[null]})");
    engine_.on("POST /reset_prefix_cache", R"({"success":true})");
    engine_.on("POST /update_weight_version", R"({"success":true,"new_version":"42"})");
    engine_.on("POST /resume", R"({"status":"resumed"})");
    engine_.on("GET /weight_info", R"({"weight_version":"42"})");
  }
  static constexpr VllmPace kQuick{.first = std::chrono::milliseconds(1),
                                   .longest = std::chrono::milliseconds(1),
                                   .patience = std::chrono::milliseconds(3)};
  VllmHook hook_{client_, spec("vllm"), "/mnt/w", kQuick};
};

TEST_F(VllmHookTest, PausesReloadsResetsLabelsAndResumesInThisOrder) {
  hook_.tell(kTarget, {});
  EXPECT_EQ(engine_.take_calls(),
            Calls({kLookCall, "POST /pause?mode=keep", kReloadCall,
                   "POST /reset_prefix_cache?reset_running_requests=true",
                   R"(POST /update_weight_version {"new_version":"42"})", "POST /resume"}));
}

// How it was configured is asked once, and no method that it may not have is ever called.
TEST_F(VllmHookTest, OneWithoutTheExtensionIsNotTroubledAgain) {
  for (int i = 0; i < 3; i++) {
    (void)hook_.find_reported({});
    hook_.tell(kTarget, {});
  }
  const Calls calls = engine_.take_calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), kLookCall), 1);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), kReloadCall), 3);
  const auto update = hook_.find_update();
  ASSERT_TRUE(update);
  EXPECT_EQ(update->how, HookUpdate::How::reload);
  expect_words(update->reason, "not started with the worker extension");
  EXPECT_EQ(hook_.base_of_change(), 0U);
}

TEST_F(VllmHookTest, OneThatMayNotBeUpdatedInPlaceIsAskedOnlyWhoItIs) {
  VllmHook hook(client_, spec("vllm", ",inplace=no"), "/mnt/w", kQuick);
  hook.tell(kTarget, {});
  const Calls calls = engine_.take_calls();
  EXPECT_EQ(calls.front(), kLookCall);
  EXPECT_EQ(calls.at(1), "POST /pause?mode=keep");
  EXPECT_EQ(hook.find_update()->reason, "inplace=no");
}

TEST_F(VllmHookTest, ReadsTheVersionThatItReports) {
  EXPECT_EQ(hook_.find_reported({}), 42U);
  engine_.on("GET /weight_info", R"({"weight_version":"default"})");
  EXPECT_EQ(hook_.find_reported({}), 0U);
  engine_.fail("GET /weight_info", 404, "");
  EXPECT_EQ(hook_.find_reported({}), std::nullopt);
  engine_.fail("GET /weight_info", 500, "oh");
  EXPECT_THROW(hook_.find_reported({}), Error);
}

TEST_F(VllmHookTest, AFailureAtAnyStepEndsItThereAndIsNeverResumed) {
  const std::vector<std::string> steps{"/pause", "/collective_rpc", "/reset_prefix_cache",
                                       "/update_weight_version"};
  for (std::size_t i = 0; i < steps.size(); i++) {
    engine_.fail("POST " + steps[i], 500, "it is broken");
    const std::string failure = failure_of(hook_);
    expect_words(failure, engine_.url() + steps[i]);
    expect_words(failure, "answers 500: it is broken");
    Calls calls = engine_.take_calls();
    calls.erase(std::unique(calls.begin(), calls.end()), calls.end());  // some are tried again
    // That is asked whenever nobody knows how many ranks there are.
    std::erase_if(calls, [](const auto& call) { return call.starts_with("GET /server_info"); });
    EXPECT_EQ(calls.size(), i + 1);
    EXPECT_TRUE(calls.back().starts_with("POST " + steps[i])) << calls.back();
    engine_.on("POST " + steps[i], R"({"success":true})");
  }
  EXPECT_EQ(failure_of(hook_), "");
}

TEST_F(VllmHookTest, AnAnswerWithoutSuccessIsAFailureIfItDoesNotBecomeOne) {
  engine_.on("POST /reset_prefix_cache", R"({"success":false})");
  expect_words(failure_of(hook_), "stays paused");
  EXPECT_TRUE(engine_.take_calls().back().starts_with("POST /reset_prefix_cache"));
  engine_.on("POST /reset_prefix_cache", std::vector<ServedReply>{{.body = R"({"success":false})"},
                                                                  {.body = R"({"success":false})"},
                                                                  {.body = R"({"success":true})"}});
  VllmHook patient(client_, spec("vllm"), "/mnt/w");
  EXPECT_EQ(failure_of(patient), "");
}

TEST_F(VllmHookTest, AReloadThatFailsSaysWhatToDo) {
  engine_.fail("POST /collective_rpc", 500, "reload_weights() got an unexpected argument");
  const std::string failure = failure_of(hook_);
  expect_words(failure, "unexpected argument");
  expect_words(failure, "Restart vLLM");
  expect_words(failure, "too old");
}

TEST_F(VllmHookTest, WithoutDevelopmentEndpointsItSaysWhatToSet) {
  engine_.fail("POST /pause", 404, "");
  expect_words(failure_of(hook_), "VLLM_SERVER_DEV_MODE=1");
}

// A label that cannot be set says what the engine was started with, not what it has.
TEST_F(VllmHookTest, AnOlderReleaseGoesWithoutALabel) {
  engine_.fail("POST /update_weight_version", 404, "");
  engine_.on("GET /weight_info", R"({"weight_version":"default"})");
  EXPECT_EQ(failure_of(hook_), "");
  EXPECT_EQ(engine_.take_calls().back(), "POST /resume");
  EXPECT_EQ(hook_.find_reported({}), std::nullopt);
}

TEST_F(VllmHookTest, NobodyThereIsATransportErrorThatHasNotArrived) {
  std::string url;
  {
    const ScriptedEngine gone;
    url = gone.url();
  }
  VllmHook hook(client_, parse_hook("vllm=" + url), "/mnt/w");
  try {
    hook.find_reported({});
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_FALSE(error.may_have_arrived());
  }
}

TEST_F(VllmHookTest, SendsATokenThatIsReadEachTime) {
  const test::TempDir dir;
  test::write_text(dir / "token", "first\n");
  VllmHook hook(client_, spec("vllm", ",token-file=" + (dir / "token").string()), "/mnt/w");
  (void)hook.find_reported({});
  EXPECT_EQ(engine_.last_headers()["authorization"], "Bearer first");
  test::write_text(dir / "token", "second");
  (void)hook.find_reported({});
  EXPECT_EQ(engine_.last_headers()["authorization"], "Bearer second");
  std::filesystem::remove(dir / "token");
  EXPECT_THROW((void)hook.find_reported({}), Error);
}

// ---- SGLang ----

class SglangHookTest : public HookProtocolsTest {
 protected:
  SglangHookTest() {
    engine_.on("POST /pause_generation", R"({"status":"ok"})");
    engine_.on("POST /update_weights_from_disk", R"({"success":true,"message":"ok"})");
    engine_.on("POST /continue_generation", R"({"status":"ok"})");
    engine_.on("GET /model_info", R"({"model_path":"/m","weight_version":"42"})");
  }
  SglangHook hook_{client_, spec("sglang")};
};

TEST_F(SglangHookTest, PausesUpdatesAndContinuesInThisOrder) {
  hook_.tell(kTarget, {});
  EXPECT_EQ(engine_.take_calls(),
            Calls({R"(POST /pause_generation {"mode":"retract"})",
                   R"(POST /update_weights_from_disk {"abort_all_requests":false,)"
                   R"("flush_cache":true,"model_path":"/mnt/w/versions/42",)"
                   R"("weight_version":"42"})",
                   "POST /continue_generation {}"}));
}

TEST_F(SglangHookTest, AnUpdateThatFailsIsNotContinued) {
  engine_.on("POST /update_weights_from_disk", R"({"success":false,"message":"no such file"})");
  expect_words(failure_of(hook_), "no such file");
  EXPECT_EQ(engine_.take_calls().size(), 2U);
}

TEST_F(SglangHookTest, APauseThatFailsIsNotUpdated) {
  engine_.fail("POST /pause_generation", 500, "no");
  expect_words(failure_of(hook_), "/pause_generation answers 500: no");
  EXPECT_EQ(engine_.take_calls().size(), 1U);
}

TEST_F(SglangHookTest, AnOlderReleaseGoesWithoutAPause) {
  engine_.fail("POST /pause_generation", 404, "");
  EXPECT_EQ(failure_of(hook_), "");
  EXPECT_TRUE(engine_.take_calls().back().starts_with("POST /update_weights_from_disk"));
}

TEST_F(SglangHookTest, ReadsTheVersionFromEitherPlace) {
  EXPECT_EQ(hook_.find_reported({}), 42U);
  engine_.fail("GET /model_info", 404, "");
  engine_.on("GET /get_weight_version", R"({"weight_version":"41"})");
  EXPECT_EQ(hook_.find_reported({}), 41U);
  engine_.on("GET /model_info", R"({"model_path":"/m"})");
  engine_.fail("GET /get_weight_version", 404, "");
  EXPECT_EQ(hook_.find_reported({}), std::nullopt);
}

// ---- any server ----

TEST_F(HookProtocolsTest, AnyServerGetsOnePost) {
  HttpHook hook(client_, spec("http", "/weights?a=b"), "file:///b");
  engine_.on("POST /weights", "");
  hook.tell(kTarget, {});
  EXPECT_EQ(engine_.take_calls(),
            Calls({R"(POST /weights?a=b {"path":"/mnt/w/versions/42","tag":"step-42",)"
                   R"("url":"file:///b","version":42})"}));
  engine_.fail("POST /weights", 503, "busy");
  expect_words(failure_of(hook), "/weights answers 503: busy");
  EXPECT_EQ(failure_of(hook).find("a=b"), std::string::npos);
}

TEST_F(HookProtocolsTest, AnyServerMaySayItsVersion) {
  HttpHook hook(client_, spec("http", "/weights"), "file:///b");
  engine_.on("GET /weights", R"({"version":42})");
  EXPECT_EQ(hook.find_reported({}), 42U);
  engine_.on("GET /weights", R"({"version":"41"})");
  EXPECT_EQ(hook.find_reported({}), 41U);
  engine_.on("GET /weights", R"({"version":null})");
  EXPECT_EQ(hook.find_reported({}), 0U);
  for (const int status : {404, 405, 501}) {
    engine_.fail("GET /weights", status, "");
    EXPECT_EQ(hook.find_reported({}), std::nullopt);
  }
  engine_.fail("GET /weights", 500, "");
  EXPECT_THROW(hook.find_reported({}), Error);
}

TEST(VersionOfText, OnlyWhatWeightfsWrites) {
  EXPECT_EQ(version_of_text("42"), 42U);
  EXPECT_EQ(version_of_text("042"), 0U);
  EXPECT_EQ(version_of_text("42 "), 0U);
  EXPECT_EQ(version_of_text("-1"), 0U);
  EXPECT_EQ(version_of_text("default"), 0U);
  EXPECT_EQ(version_of_text(""), 0U);
  EXPECT_EQ(version_of_text("99999999999999999999999"), 0U);
}

// ---- LoRA adapters of vLLM ----

class VllmLoraHookTest : public HookProtocolsTest {
 protected:
  VllmLoraHookTest() {
    loaded("/elsewhere");
    engine_.on("POST /v1/load_lora_adapter", "Success");
    engine_.on("POST /v1/unload_lora_adapter", "Success");
    engine_.on("POST /reset_prefix_cache", R"({"success":true})");
  }
  void loaded(const std::string& root) {
    engine_.on("GET /v1/models",
               R"({"data":[{"id":"base","root":"/m"},{"id":"mine","root":")" + root + R"("}]})");
  }
  void not_loaded() { engine_.on("GET /v1/models", R"({"data":[{"id":"base","root":"/m"}]})"); }
  VllmLoraHook make(const std::string& keys = "") {
    return {client_, spec("vllm-lora", ",name=mine" + keys), "/mnt/w/versions"};
  }
  const std::string reset_ = "POST /reset_prefix_cache?reset_running_requests=true";
  const std::string load_ =
      R"(POST /v1/load_lora_adapter {"lora_name":"mine","lora_path":"/mnt/w/versions/42"})";
  const std::string load_in_place_ =
      R"(POST /v1/load_lora_adapter {"load_inplace":true,"lora_name":"mine",)"
      R"("lora_path":"/mnt/w/versions/42"})";
  const std::string unload_ = R"(POST /v1/unload_lora_adapter {"lora_name":"mine"})";
};

TEST_F(VllmLoraHookTest, ReadsTheVersionFromWhereTheAdapterCameFrom) {
  VllmLoraHook hook = make();
  EXPECT_EQ(hook.find_reported({}), 0U);
  loaded("/mnt/w/versions/41");
  EXPECT_EQ(hook.find_reported({}), 41U);
  loaded("/mnt/other/versions/41");
  EXPECT_EQ(hook.find_reported({}), 0U);
  not_loaded();
  EXPECT_EQ(hook.find_reported({}), 0U);
}

TEST_F(VllmLoraHookTest, LoadsANewAdapter) {
  not_loaded();
  VllmLoraHook hook = make();
  EXPECT_EQ(failure_of(hook), "");
  EXPECT_EQ(engine_.take_calls(), Calls({"GET /v1/models", load_, reset_}));
}

TEST_F(VllmLoraHookTest, ReplacesALoadedOneInPlace) {
  VllmLoraHook hook = make();
  EXPECT_EQ(failure_of(hook), "");
  EXPECT_EQ(engine_.take_calls(), Calls({"GET /v1/models", load_in_place_, reset_}));
}

TEST_F(VllmLoraHookTest, UnloadsItWhereInPlaceIsNotKnown) {
  engine_.on("POST /v1/load_lora_adapter",
             {{.status = 400, .body = "has already been loaded"}, {.body = "Success"}});
  VllmLoraHook hook = make();
  EXPECT_EQ(failure_of(hook), "");
  EXPECT_EQ(engine_.take_calls(),
            Calls({"GET /v1/models", load_in_place_, unload_, load_, reset_}));
}

TEST_F(VllmLoraHookTest, UnloadsItWhereInPlaceIsNotWanted) {
  VllmLoraHook hook = make(",inplace=no,reset=no");
  EXPECT_EQ(failure_of(hook), "");
  EXPECT_EQ(engine_.take_calls(), Calls({"GET /v1/models", unload_, load_}));
}

TEST_F(VllmLoraHookTest, SaysWhatToSet) {
  engine_.fail("POST /reset_prefix_cache", 404, "");
  VllmLoraHook hook = make();
  expect_words(failure_of(hook), "VLLM_SERVER_DEV_MODE=1");
  engine_.fail("POST /v1/load_lora_adapter", 404, "");
  expect_words(failure_of(hook), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1");
}

}  // namespace
}  // namespace weightfs::fs
