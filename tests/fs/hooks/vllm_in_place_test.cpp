// vLLM in place: an engine of several ranks with the worker extension, which fails when it is told
// to; what the hook does then, and that nobody ever computes with weights that are not known.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "fs/hooks/hooks.hpp"
#include "fs/hooks/vllm.hpp"
#include "store/base/error.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::ServedReply;
using test::ServedRequest;
using UpdateHow = HookUpdate::How;
using RankCalls = std::vector<std::string>;

/// As vLLM 0.32 with the package of scripts/python: what it says, and how it gets out of step.
class RankedEngine {
 public:
  struct Rank {
    std::string instance = {};
    std::uint64_t weights = 1, held = 0, from = 0, to = 0;
    std::string state = "idle", error = {}, refused = {};
    bool is_proven = false, is_updating = false;
    int learns = 0;                   // until it was asked so often
    std::string fails_in = {};        // a method, of this rank alone
    std::vector<Json> left_behind{};  // answers of earlier calls
  };

  explicit RankedEngine(std::size_t ranks)
      : ranks_(ranks), server_([this](const ServedRequest& request) { return answer(request); }) {
    restart();
  }

  /// Another process: it loads its own version, and holds nothing.
  void restart() {
    const std::lock_guard lock(mutex_);
    start_anew();
  }
  /// In the next one, which is never answered.
  void restart_in(const std::string& call) {
    const std::lock_guard lock(mutex_);
    restarts_in_ = call;
  }
  /// Fails this many times.  `call`: a path, or a method.
  void fail(const std::string& call, int times = 1, int status = 500) {
    const std::lock_guard lock(mutex_);
    failures_[call] = {times, status};
  }
  /// Does the next one, but somebody between has given up: the answer is another.
  void lose_answer(const std::string& call, const ServedReply& instead) {
    const std::lock_guard lock(mutex_);
    lost_[call] = instead;
  }
  void with_rank(std::size_t i, const std::function<void(Rank&)>& change) {
    const std::lock_guard lock(mutex_);
    change(ranks_.at(i));
  }
  void configure(const std::function<void(Json&)>& change) {
    const std::lock_guard lock(mutex_);
    change(config_);
  }
  /// It is reloaded, and nobody sees its ranks.
  void drop_extension() {
    configure([](Json& config) { config["parallel_config"].erase("worker_extension_cls"); });
  }
  /// Stages of all ranks end after this many questions.
  void stage_slowly(int polls) {
    const std::lock_guard lock(mutex_);
    polls_ = polls;
  }
  void set_mount(const std::string& mount) {
    const std::lock_guard lock(mutex_);
    mount_ = mount;
  }
  void hold_blocks(bool holds) {
    const std::lock_guard lock(mutex_);
    has_running_ = holds;
  }
  /// Proof fails from now on.
  void spoil() {
    const std::lock_guard lock(mutex_);
    is_spoilt_ = true;
  }
  RankCalls take_calls() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }
  [[nodiscard]] bool is_paused() const {
    const std::lock_guard lock(mutex_);
    return is_paused_;
  }
  /// Whether it computes, and all ranks have this version.
  [[nodiscard]] bool serves(std::uint64_t version) const {
    const std::lock_guard lock(mutex_);
    return !is_paused_ && died_.empty() && has(version) && label_ == std::to_string(version);
  }
  [[nodiscard]] std::string died() const {
    const std::lock_guard lock(mutex_);
    return died_;
  }
  [[nodiscard]] std::string url() const { return server_.url(); }

 private:
  void start_anew() {
    for (Rank& rank : ranks_) rank = {.instance = "process-" + std::to_string(++instances_)};
    config_["instance_id"] = std::to_string(instances_);
    label_ = "default";
    is_paused_ = false;
  }

  [[nodiscard]] bool has(std::uint64_t version) const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const Rank& rank) { return rank.weights == version; });
  }

  ServedReply answer(const ServedRequest& request) {
    const std::lock_guard lock(mutex_);
    const Json body = request.body.empty() ? Json::object() : Json::parse(request.body);
    const std::string method = body.value("method", "");
    const std::string name = method.empty() ? request.path() : method;
    calls_.push_back(shown(request, body, method));
    if (auto& [times, status] = failures_[name]; times > 0) {
      times--;
      return {.status = status, .body = "it was told to fail"};
    }
    if (name == restarts_in_) {
      restarts_in_.clear();
      start_anew();
      return {.body = "{", .cut_after = 0, .reset = true};
    }
    const ServedReply reply = carry_out(request, body, method, name);
    const auto lost = lost_.extract(name);
    return lost ? lost.mapped() : reply;
  }

  ServedReply carry_out(const ServedRequest& request, const Json& body, const std::string& method,
                        const std::string& name) {
    if (!method.empty()) return call_ranks(method, body);
    if (name == "/start_weight_update") return call_ranks("start", body);
    if (name == "/update_weights") return call_ranks("update", body.at("update_info"));
    if (name == "/finish_weight_update") return finish(body);
    return answer_itself(request, body);
  }

  static std::string shown(const ServedRequest& request, const Json& body,
                           const std::string& method) {
    if (method == "reload_weights") {
      return "reload " + body.at("kwargs").at("weights_path").get<std::string>();
    }
    if (!method.empty()) return method + body.at("args").dump();
    return request.target + (request.body.empty() ? "" : " " + request.body);
  }

  ServedReply finish(const Json& body) {
    ServedReply reply = call_ranks("finish", body);
    if (reply.status == 200 && body.contains("weight_version")) label_ = body["weight_version"];
    return reply;
  }

  ServedReply answer_itself(const ServedRequest& request, const Json& body) {
    const std::string path = request.path();
    if (path == "/weight_info") return {.body = Json{{"weight_version", label_}}.dump()};
    if (path == "/server_info") return {.body = Json{{"vllm_config", config_}}.dump()};
    if (path == "/pause") is_paused_ = true;
    if (path == "/resume") resume();
    if (path == "/update_weight_version") label_ = body.at("new_version");
    if (path == "/reset_prefix_cache" && has_running_ &&
        !request.query().contains("reset_running_requests")) {
      return {.body = R"({"success":false})"};
    }
    return {.body = R"({"success":true})"};
  }

  void resume() {
    const bool is_open = std::any_of(ranks_.begin(), ranks_.end(),
                                     [](const Rank& rank) { return rank.is_updating; });
    if (is_open) died_ = "it was resumed in the middle of an update";
    if (!has(ranks_[0].weights) || ranks_[0].weights == 0) died_ = "it was resumed with a mixture";
    is_paused_ = false;
  }

  /// A rank that fails leaves the answers of those behind it for the next call.
  ServedReply call_ranks(const std::string& method, const Json& body) {
    for (Rank& rank : ranks_) rank.left_behind.push_back(run(rank, method, body));
    Json results = Json::array();
    for (Rank& rank : ranks_) {
      const Json result = rank.left_behind.front();
      rank.left_behind.erase(rank.left_behind.begin());
      if (result == "FAILURE") return {.status = 500, .body = "Worker failed with error"};
      results.push_back(result);
    }
    return {.body = Json{{"results", results}}.dump()};
  }

  Json run(Rank& rank, const std::string& method, const Json& body) {
    if (rank.fails_in == method) return fail_in(rank, method);
    if (method == "start") return std::exchange(rank.is_updating, true) ? "FAILURE" : Json();
    if (method == "finish") return std::exchange(rank.is_updating, false) ? Json() : "FAILURE";
    if (method == "update") return update(rank, body.at("old"), body.at("new"));
    if (method == "reload_weights") return reload(rank, body.at("kwargs").at("weights_path"));
    if (method == "weightfs_hold") {
      rank.held = body.at("args")[0];
      rank.state = "idle";
      rank.error = "";
    }
    if (method == "weightfs_stage") stage(rank, body.at("args")[0], body.at("args")[1]);
    if (method == "weightfs_compare" && !is_spoilt_) rank.is_proven = true;
    if (method == "weightfs_compare" && is_spoilt_) rank.refused = "2 of 9 tensors differ";
    if (method == "weightfs_status" && rank.state == "staging" && --polls_ <= 0) {
      rank.state = "ready";
    }
    const Json said = status(rank);
    if (method == "weightfs_status" && rank.learns > 0) rank.learns--;
    return said;
  }

  /// A stage, or an update, fails in its status; anything else raises.
  Json fail_in(Rank& rank, const std::string& method) {
    if (method != "weightfs_stage" && method != "update") return "FAILURE";
    rank.state = "failed";
    rank.error = "the disk is gone";
    rank.held = method == "update" ? 0 : rank.held;
    return method == "update" ? Json() : status(rank);
  }

  void stage(Rank& rank, std::uint64_t old, std::uint64_t wanted) const {
    rank.from = old;
    rank.to = wanted;
    const bool is_right = rank.held == old && rank.weights == old && rank.refused.empty();
    rank.state = !is_right ? "failed" : polls_ > 0 ? "staging" : "ready";
    rank.error = is_right ? "" : "it is not staged";
  }

  static Json update(Rank& rank, std::uint64_t old, std::uint64_t wanted) {
    const bool is_staged = rank.state == "ready" && rank.from == old && rank.to == wanted;
    rank.state = is_staged ? "idle" : "failed";
    if (is_staged) rank.weights = rank.held = wanted;
    return {};
  }

  static Json reload(Rank& rank, const std::string& path) {
    if (rank.learns > 0) return {};  // what is loaded is put back
    rank.weights = std::stoul(path.substr(path.rfind('/') + 1));
    return {};
  }

  [[nodiscard]] Json status(const Rank& rank) const {
    return {{"instance", rank.instance},
            {"mount", mount_},
            {"held", rank.held},
            {"state", rank.state},
            {"from", rank.from},
            {"to", rank.to},
            {"error", rank.error},
            {"refused", rank.refused},
            {"changes", 7},
            {"needs_proof", !rank.is_proven},
            {"stage_s", 0.25},
            {"updating", rank.is_updating},
            {"learning", rank.learns > 0}};
  }

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Rank> ranks_;
  unsigned instances_ = 0;
  std::string label_, mount_ = "/mnt/w", died_;
  Json config_{{"parallel_config",
                {{"worker_extension_cls", "weightfs.vllm.backend.WorkerExtension"},
                 {"data_parallel_size", 1},
                 {"world_size", ranks_.size()}}},
               {"weight_transfer_config", {{"backend", "weightfs"}}},
               {"cache_config", {{"enable_prefix_caching", true}}},
               {"kv_transfer_config", nullptr}};
  std::map<std::string, std::pair<int, int>> failures_;
  std::map<std::string, ServedReply> lost_;
  std::string restarts_in_;
  RankCalls calls_;
  int polls_ = 0;
  bool is_paused_ = false, has_running_ = false, is_spoilt_ = false;
  test::HttpServer server_;
};

class VllmInPlaceTest : public testing::Test {
 protected:
  static HookTarget target(std::uint64_t version) {
    return {.version = version, .path = "/mnt/w/versions/" + std::to_string(version), .tag = ""};
  }
  std::unique_ptr<VllmHook> make(RankedEngine& engine, const std::string& more = "",
                                 Clock::duration patience = std::chrono::minutes(1)) {
    return std::make_unique<VllmHook>(client_, parse_hook("vllm=" + engine.url() + more), "/mnt/w",
                                      VllmPace{.first = std::chrono::milliseconds(1),
                                               .longest = std::chrono::milliseconds(1),
                                               .patience = patience});
  }
  /// As a round of the reconciler.  Returns how the version came.
  static UpdateHow tell(VllmHook& hook, std::uint64_t version) {
    (void)hook.find_reported({});
    hook.tell(target(version), {});
    EXPECT_EQ(hook.find_reported({}), version);
    return hook.find_update()->how;
  }
  static std::string failure_of(VllmHook& hook, std::uint64_t version) {
    try {
      tell(hook, version);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  /// The hook has reloaded 1 and proven 2.
  static void bring_to_2(VllmHook& hook) {
    EXPECT_EQ(tell(hook, 1), UpdateHow::reload);
    EXPECT_EQ(tell(hook, 2), UpdateHow::proof);
  }
  static void expect_words(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  static std::size_t count(const RankCalls& calls, const std::string& begin) {
    return static_cast<std::size_t>(std::count_if(
        calls.begin(), calls.end(), [&](const auto& call) { return call.starts_with(begin); }));
  }

  HttpClient client_{engine_http_options()};
};

const std::string kRankLook = "/server_info?config_format=json", kRankInfo = "/weight_info",
                  kRankStatus = "weightfs_status[]", kRankStart = "/start_weight_update",
                  kRankPause = "/pause?mode=keep&clear_cache=false", kRankResume = "/resume",
                  kRankReset =
                      "/reset_prefix_cache?reset_running_requests=true&reset_external=true";

TEST_F(VllmInPlaceTest, ReloadsProvesAndThenTakesTheChangeAlone) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
  EXPECT_EQ(engine.take_calls(),
            RankCalls({kRankInfo, kRankLook, kRankPause, kRankStatus, "reload /mnt/w/versions/1",
                       "weightfs_hold[1]", "/reset_mm_cache", "/reset_encoder_cache", kRankReset,
                       R"(/update_weight_version {"new_version":"1"})", kRankResume, kRankInfo}));
  expect_words(hook->find_update()->reason, "new to this hook");
  EXPECT_EQ(hook->base_of_change(), 1U);

  EXPECT_EQ(tell(*hook, 2), UpdateHow::proof);
  EXPECT_EQ(
      engine.take_calls(),
      RankCalls({kRankInfo, kRankStatus, "weightfs_stage[1,2]", kRankPause, kRankStart,
                 R"(/update_weights {"update_info":{"new":2,"old":1}})", kRankStatus,
                 R"(/finish_weight_update {"weight_version":"2"})", "weightfs_mark[]",
                 "reload /mnt/w/versions/2", "weightfs_compare[]", "weightfs_hold[2]",
                 "/reset_mm_cache", "/reset_encoder_cache", kRankReset, kRankResume, kRankInfo}));

  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
  EXPECT_EQ(engine.take_calls(),
            RankCalls({kRankInfo, kRankStatus, "weightfs_stage[2,3]", kRankPause, kRankStart,
                       R"(/update_weights {"update_info":{"new":3,"old":2}})", kRankStatus,
                       R"(/finish_weight_update {"weight_version":"3"})", "/reset_mm_cache",
                       "/reset_encoder_cache", kRankReset, kRankResume, kRankInfo}));
  EXPECT_TRUE(engine.serves(3));
  EXPECT_EQ(hook->find_update()->reason, "");
  EXPECT_GE(hook->find_update()->pause, hook->find_update()->apply);
  EXPECT_EQ(hook->base_of_change(), 3U);
}

TEST_F(VllmInPlaceTest, SeveralVersionsAreOneChange) {
  RankedEngine engine(8);
  const auto hook = make(engine);
  bring_to_2(*hook);
  (void)engine.take_calls();
  EXPECT_EQ(tell(*hook, 9), UpdateHow::in_place);
  EXPECT_EQ(count(engine.take_calls(), "weightfs_stage[2,9]"), 1U);
  EXPECT_TRUE(engine.serves(9));
}

TEST_F(VllmInPlaceTest, StagingIsWaitedForBeforeThePause) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  (void)engine.take_calls();
  engine.stage_slowly(9);
  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
  const RankCalls calls = engine.take_calls();
  const auto pause = std::find(calls.begin(), calls.end(), kRankPause);
  EXPECT_GE(std::count(calls.begin(), pause, kRankStatus), 5);
  EXPECT_GT(hook->find_update()->stage.count(), 0);
}

TEST_F(VllmInPlaceTest, OneThatHangsInStageIsReloaded) {
  RankedEngine engine(8);
  const auto hook = make(engine, ",timeout=4");
  bring_to_2(*hook);
  engine.stage_slowly(1'000'000);
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "not every rank has staged the change after 2 s");
  EXPECT_TRUE(engine.serves(3));
  engine.stage_slowly(0);
  EXPECT_EQ(tell(*hook, 4), UpdateHow::in_place);
}

TEST_F(VllmInPlaceTest, ARankThatCannotStageCostsNoPauseOfItsOwn) {
  RankedEngine engine(8);
  const auto hook = make(engine);
  bring_to_2(*hook);
  (void)engine.take_calls();
  engine.with_rank(5, [](auto& rank) { rank.fails_in = "weightfs_stage"; });
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "rank 5: the disk is gone");
  EXPECT_TRUE(engine.serves(3));
  const RankCalls calls = engine.take_calls();
  EXPECT_EQ(count(calls, kRankPause), 1U);
  EXPECT_EQ(count(calls, kRankStart), 0U);
  engine.with_rank(5, [](auto& rank) { rank.fails_in = ""; });
  EXPECT_EQ(tell(*hook, 4), UpdateHow::in_place);
}

TEST_F(VllmInPlaceTest, ARankThatFailsInThePauseIsReloadedBeforeAnybodyComputes) {
  RankedEngine engine(8);
  const auto hook = make(engine);
  bring_to_2(*hook);
  (void)engine.take_calls();
  engine.with_rank(3, [](auto& rank) { rank.fails_in = "update"; });
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "rank 3: the disk is gone");
  EXPECT_TRUE(engine.serves(3)) << engine.died();
  const RankCalls calls = engine.take_calls();
  EXPECT_EQ(count(calls, "/finish_weight_update"), 1U);
  EXPECT_EQ(count(calls, "/finish_weight_update {"), 0U);  // no label
  const auto reload = std::find(calls.begin(), calls.end(), "reload /mnt/w/versions/3");
  EXPECT_LT(std::find(calls.begin(), calls.end(), "/finish_weight_update"), reload);
  EXPECT_LT(reload, std::find(calls.begin(), calls.end(), kRankResume));
  engine.with_rank(3, [](auto& rank) { rank.fails_in = ""; });
  EXPECT_EQ(tell(*hook, 4), UpdateHow::in_place);
}

TEST_F(VllmInPlaceTest, WhateverFailsInThePauseItIsResumedOnlyWithWholeWeights) {
  for (const std::string call :
       {"/start_weight_update", "/update_weights", "/finish_weight_update", "weightfs_mark",
        "weightfs_compare", "weightfs_hold", "reload_weights", "/pause", "/reset_mm_cache",
        "/reset_encoder_cache", "/update_weight_version", "/resume"}) {
    SCOPED_TRACE(call);
    RankedEngine engine(2);
    const auto hook = make(engine);
    tell(*hook, 1);
    engine.fail(call);
    if (!failure_of(*hook, 2).empty()) {
      EXPECT_TRUE(call == "/pause" || engine.is_paused());
      EXPECT_EQ(hook->base_of_change(), 0U);
      EXPECT_EQ(failure_of(*hook, 2), "");  // the next round
      EXPECT_EQ(hook->find_update()->how, UpdateHow::reload);
    }
    EXPECT_TRUE(engine.serves(2)) << engine.died();
    EXPECT_EQ(failure_of(*hook, 3), "");
    EXPECT_TRUE(engine.serves(3)) << engine.died();
  }
}

TEST_F(VllmInPlaceTest, IfTheReloadFailsAsWellItStaysPaused) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.fail("/update_weights");
  engine.fail("reload_weights");
  expect_words(failure_of(*hook, 3), "vLLM stays paused");
  EXPECT_TRUE(engine.is_paused());
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_TRUE(engine.serves(3)) << engine.died();
}

// vLLM forgets the answers of later ranks if an earlier one fails.
TEST_F(VllmInPlaceTest, AnswersThatAreOutOfStepAreNotBelieved) {
  RankedEngine engine(3);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.with_rank(0, [](auto& rank) { rank.fails_in = "weightfs_status"; });
  expect_words(failure_of(*hook, 3), "estart vLLM");
  EXPECT_TRUE(engine.is_paused());
  engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
  expect_words(failure_of(*hook, 3), "estart vLLM");
  EXPECT_TRUE(engine.is_paused());
  engine.restart();
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_TRUE(engine.serves(3));
}

// There the hook sees no rank, and gets an answer to the reload before if one has failed then.
TEST_F(VllmInPlaceTest, WithoutTheExtensionNothingIsBelievedAfterAReloadThatFailedInOneOfItsRanks) {
  for (const char* more : {"", ",inplace=no", ",inplace=no,kv=keep"}) {
    SCOPED_TRACE(more);
    RankedEngine engine(2);
    engine.drop_extension();
    const auto hook = make(engine, more);
    EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
    engine.with_rank(0, [](auto& rank) { rank.fails_in = "reload_weights"; });
    EXPECT_NE(failure_of(*hook, 2), "");
    engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
    engine.with_rank(1, [](auto& rank) { rank.fails_in = "reload_weights"; });
    for (int i = 0; i < 3; i++) {
      expect_words(failure_of(*hook, 2), "estart vLLM");
      EXPECT_TRUE(engine.is_paused());
    }
    engine.restart();
    EXPECT_EQ(failure_of(*hook, 2), "");
    EXPECT_TRUE(engine.serves(2)) << engine.died();
  }
}

// No rank was asked.
TEST_F(VllmInPlaceTest, ARefusalOfAProxyPutsNoRankOutOfStep) {
  for (const char* more : {"", ",inplace=no"}) {
    SCOPED_TRACE(more);
    RankedEngine engine(2);
    engine.drop_extension();
    const auto hook = make(engine, more);
    std::uint64_t version = 1;
    for (const int status : {404, 429, 503}) {
      engine.fail("reload_weights", 1, status);
      expect_words(failure_of(*hook, version), "answers " + std::to_string(status));
      EXPECT_EQ(failure_of(*hook, version), "");
      EXPECT_TRUE(engine.serves(version)) << engine.died();
      version++;
    }
  }
}

// A reload took longer than a proxy waits, or this hook, and a rank failed in it after that: vLLM
// kept the answer of the other, and the next reload got it while that rank was still loading.
TEST_F(VllmInPlaceTest, ARankThatFailsAfterTheProxyGaveUpIsNotBelieved) {
  const std::vector<ServedReply> losses{{.status = 502},
                                        {.status = 504},
                                        {.body = "{", .cut_after = 0, .reset = true},
                                        {.silent = true}};
  for (const char* more : {"", ",inplace=no", ",inplace=no,kv=keep"}) {
    for (const ServedReply& loss : losses) {
      SCOPED_TRACE(std::to_string(&loss - losses.data()) + more);
      RankedEngine engine(2);
      engine.drop_extension();
      const auto hook = make(engine, more);
      EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
      engine.with_rank(0, [](auto& rank) { rank.fails_in = "reload_weights"; });
      engine.lose_answer("reload_weights", loss);
      const auto time = loss.silent ? std::chrono::milliseconds(300) : std::chrono::minutes(1);
      EXPECT_THROW(hook->tell(target(2), Context{}.within(time)), Error);
      engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
      engine.with_rank(1, [](auto& rank) { rank.fails_in = "reload_weights"; });
      for (int i = 0; i < 2; i++) {
        expect_words(failure_of(*hook, 2), std::string(kVllmOutOfStep));
        EXPECT_TRUE(engine.is_paused()) << engine.died();
      }
      engine.restart();
      EXPECT_EQ(failure_of(*hook, 2), "");
      EXPECT_TRUE(engine.serves(2)) << engine.died();
    }
  }
}

// Its ranks are in step: those of the process before were not.
TEST_F(VllmInPlaceTest, AnEngineThatWasStartedAnewInAReloadIsTold) {
  for (const char* more : {"", ",inplace=no"}) {
    SCOPED_TRACE(more);
    RankedEngine engine(2);
    engine.drop_extension();
    const auto hook = make(engine, more);
    EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
    engine.restart_in("reload_weights");
    EXPECT_NE(failure_of(*hook, 2), "");
    EXPECT_EQ(failure_of(*hook, 2), "");
    EXPECT_TRUE(engine.serves(2)) << engine.died();
  }
}

// An older release does not say which version it has, so nothing shows that it was started anew.
TEST_F(VllmInPlaceTest, AnEngineWithoutLabelsIsAskedEachTimeWhichProcessItIs) {
  RankedEngine engine(2);
  engine.drop_extension();
  const auto hook = make(engine);
  engine.fail("/weight_info", 100, 404);
  hook->tell(target(1), {});
  engine.restart();
  engine.with_rank(0, [](auto& rank) { rank.fails_in = "reload_weights"; });
  EXPECT_NE(failure_of(*hook, 2), "");
  engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
  expect_words(failure_of(*hook, 2), std::string(kVllmOutOfStep));
}

// Nobody can ask it how many ranks it has while it hangs.
TEST_F(VllmInPlaceTest, AnEngineThatDoesNotAnswerAfterAReloadIsOutOfStepAllTheSame) {
  for (const char* more : {"", ",inplace=no"}) {
    SCOPED_TRACE(more);
    RankedEngine engine(2);
    engine.drop_extension();
    const auto hook = make(engine, more);
    EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
    engine.fail("reload_weights");
    engine.fail("/server_info");
    EXPECT_NE(failure_of(*hook, 2), "");
    EXPECT_NE(failure_of(*hook, 2), "");  // it was not asked yet
    expect_words(failure_of(*hook, 2), std::string(kVllmOutOfStep));
  }
}

TEST_F(VllmInPlaceTest, RanksThatAreOutOfStepAreNotBelievedAfterARestartOfTheDaemon) {
  const test::TempDir dir;
  const auto db = Db::open(dir / "db");
  RankedEngine engine(2);
  engine.drop_extension();
  std::atomic<std::uint64_t> newest{1};
  const auto start = [&] {
    HooksOptions options{.specs = {parse_hook("vllm=" + engine.url() + ",every=0.01")},
                         .repository = "file:///b",
                         .mount_point = "/mnt/w"};
    auto hooks = std::make_unique<Hooks>(std::move(options), *db);
    hooks->start([&] { return Hooks::Shown{.version = newest, .tag = "", .is_newest = true}; });
    return hooks;
  };
  const auto fails = [](const Hooks& hooks, const std::string& words) {
    return test::eventually([&] {
      const HookStatus status = hooks.status()[0];
      return status.state == HookStatus::State::failed &&
             status.error.find(words) != std::string::npos;
    });
  };
  auto hooks = start();
  EXPECT_TRUE(test::eventually([&] { return engine.serves(1); }));
  engine.with_rank(0, [](auto& rank) { rank.fails_in = "reload_weights"; });
  newest = 2;
  EXPECT_TRUE(fails(*hooks, "estart vLLM"));
  hooks.reset();
  engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
  engine.with_rank(1, [](auto& rank) { rank.fails_in = "reload_weights"; });
  for (int i = 0; i < 2; i++) {
    hooks = start();
    EXPECT_TRUE(fails(*hooks, std::string(kVllmOutOfStep)));
    EXPECT_TRUE(engine.is_paused());
  }
  engine.restart();
  EXPECT_TRUE(test::eventually([&] { return engine.serves(2); })) << engine.died();
  newest = 3;
  hooks->notify();
  EXPECT_TRUE(test::eventually([&] { return engine.serves(3); })) << engine.died();
}

TEST_F(VllmInPlaceTest, OneRankLeavesNothingBehindAndIsToldAgain) {
  RankedEngine engine(1);
  engine.drop_extension();
  const auto hook = make(engine);
  engine.with_rank(0, [](auto& rank) { rank.fails_in = "reload_weights"; });
  EXPECT_NE(failure_of(*hook, 1), "");
  engine.with_rank(0, [](auto& rank) { rank.fails_in = ""; });
  EXPECT_EQ(failure_of(*hook, 1), "");
  EXPECT_TRUE(engine.serves(1)) << engine.died();
}

// To end what was not begun fails in each rank, and that would be the answer of the next call.
TEST_F(VllmInPlaceTest, AQuestionForItsStateThatFailsEndsNothing) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  engine.fail("weightfs_status");
  expect_words(failure_of(*hook, 1), "weightfs_status answers 500");
  EXPECT_TRUE(engine.is_paused());
  EXPECT_EQ(count(engine.take_calls(), "/finish_weight_update"), 0U);
  bring_to_2(*hook);
  EXPECT_TRUE(engine.serves(2)) << engine.died();
}

// A hook that was killed had begun to stage.
TEST_F(VllmInPlaceTest, AnEngineThatLearnsIsNotReloadedBesideThat) {
  RankedEngine engine(2);
  engine.with_rank(1, [](RankedEngine::Rank& rank) { rank.learns = 3; });
  const auto hook = make(engine);
  EXPECT_EQ(tell(*hook, 2), UpdateHow::reload);
  EXPECT_TRUE(engine.serves(2)) << engine.died();
}

TEST_F(VllmInPlaceTest, ARestartedEngineIsReloadedFirst) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.restart();
  EXPECT_EQ(hook->find_reported({}), 0U);
  EXPECT_EQ(hook->base_of_change(), 0U);
  (void)engine.take_calls();
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(count(engine.take_calls(), kRankLook), 1U);  // it may be configured otherwise
  EXPECT_EQ(tell(*hook, 4), UpdateHow::proof);
}

TEST_F(VllmInPlaceTest, ARankThatCameBackOrHasAnotherVersionIsReloadedFirst) {
  RankedEngine engine(4);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.with_rank(2, [](auto& rank) { rank.instance = "another"; });
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "rank 2: it has been started again");
  EXPECT_EQ(tell(*hook, 4), UpdateHow::in_place);
  engine.with_rank(1, [](auto& rank) { rank.held = 0; });
  EXPECT_EQ(tell(*hook, 5), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "rank 1: it has no known version, not version 4");
  engine.with_rank(3, [](auto& rank) { rank.weights = rank.held = 2; });
  EXPECT_EQ(tell(*hook, 6), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "rank 3: it has version 2, not version 5");
  EXPECT_TRUE(engine.serves(6));
}

// The daemon was killed: nothing that the engine says counts, and what was begun is ended.
TEST_F(VllmInPlaceTest, ANewHookReloadsFirstWhereverTheOldOneStopped) {
  const std::vector<std::function<void(RankedEngine::Rank&)>> states{
      [](auto&) {}, [](auto& rank) { rank.state = "ready", rank.from = 2, rank.to = 3; },
      [](auto& rank) { rank.is_updating = true; },
      [](auto& rank) { rank.is_updating = true, rank.weights = 3, rank.held = 3; },
      [](auto& rank) { rank.weights = 3; }};
  for (std::size_t i = 0; i < states.size(); i++) {
    for (const std::size_t last : {1U, 2U}) {
      SCOPED_TRACE(std::to_string(i) + " in the first " + std::to_string(last));
      RankedEngine engine(2);
      bring_to_2(*make(engine));
      for (std::size_t rank = 0; rank < last; rank++) engine.with_rank(rank, states[i]);
      const auto hook = make(engine);
      EXPECT_EQ(failure_of(*hook, 3), "");
      EXPECT_EQ(hook->find_update()->how, UpdateHow::reload);
      EXPECT_TRUE(engine.serves(3)) << engine.died();
      EXPECT_EQ(tell(*hook, 4), UpdateHow::in_place);
      EXPECT_TRUE(engine.serves(4)) << engine.died();
    }
  }
}

TEST_F(VllmInPlaceTest, OneWhoseProofFailsIsReloadedFromThenOn) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  tell(*hook, 1);
  engine.spoil();
  EXPECT_EQ(tell(*hook, 2), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "rank 0: 2 of 9 tensors differ");
  EXPECT_EQ(hook->base_of_change(), 0U);
  (void)engine.take_calls();
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  EXPECT_EQ(hook->find_update()->reason, "rank 0: 2 of 9 tensors differ");
  EXPECT_EQ(count(engine.take_calls(), "weightfs_stage"), 0U);
  EXPECT_TRUE(engine.serves(3));
}

TEST_F(VllmInPlaceTest, CachesAreResetUntilTheyAre) {
  RankedEngine engine(1);
  const auto hook = make(engine);
  bring_to_2(*hook);
  (void)engine.take_calls();
  engine.fail("/reset_prefix_cache", 2);
  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
  EXPECT_EQ(count(engine.take_calls(), kRankReset), 3U);
  engine.fail("/reset_prefix_cache", 1'000'000);
  const auto hurried = make(engine, "", std::chrono::milliseconds(3));
  expect_words(failure_of(*hurried, 4), "vLLM stays paused");
  EXPECT_TRUE(engine.is_paused());
  engine.fail("/reset_prefix_cache", 0);
  EXPECT_EQ(tell(*hook, 4), UpdateHow::reload);
  EXPECT_TRUE(engine.serves(4));
}

TEST_F(VllmInPlaceTest, KeepsRunningRequestsWhereNoOtherCanGetWhatTheyHave) {
  RankedEngine engine(1);
  engine.configure([](Json& config) { config["cache_config"]["enable_prefix_caching"] = false; });
  engine.hold_blocks(true);
  const auto hook = make(engine, ",kv=keep");
  bring_to_2(*hook);
  EXPECT_TRUE(hook->find_update()->keeps_running);
  const RankCalls calls = engine.take_calls();
  EXPECT_EQ(count(calls, "/reset_prefix_cache"), 0U);
  EXPECT_EQ(count(calls, "/reset_encoder_cache"), 2U);
  EXPECT_EQ(count(calls, kRankPause), 2U);
}

TEST_F(VllmInPlaceTest, WithAPrefixCacheRunningRequestsAreKeptOnlyIfThereAreNone) {
  RankedEngine engine(1);
  const auto hook = make(engine, ",kv=keep");
  bring_to_2(*hook);
  EXPECT_TRUE(hook->find_update()->keeps_running);
  EXPECT_EQ(count(engine.take_calls(), "/reset_prefix_cache?reset_external=true"), 2U);
  engine.hold_blocks(true);
  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
  EXPECT_FALSE(hook->find_update()->keeps_running);
  EXPECT_EQ(count(engine.take_calls(), kRankReset), 1U);
}

TEST_F(VllmInPlaceTest, KeepIsForReloadsAsWell) {
  RankedEngine engine(1);
  engine.drop_extension();
  const auto hook = make(engine, ",kv=keep");
  EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
  const RankCalls calls = engine.take_calls();
  EXPECT_EQ(calls[2], kRankPause);
  EXPECT_EQ(calls[4], "/reset_prefix_cache");
  EXPECT_EQ(count(calls, "weightfs_"), 0U);
}

TEST_F(VllmInPlaceTest, AnotherMountIsNamedAndTheEngineReloaded) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.set_mount("/data/elsewhere");
  EXPECT_EQ(tell(*hook, 3), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "/data/elsewhere, and this one is /mnt/w");
  engine.set_mount("");
  EXPECT_EQ(tell(*hook, 4), UpdateHow::reload);
}

TEST_F(VllmInPlaceTest, AMountMayHaveAnotherName) {
  const test::TempDir dir;
  const auto mount = std::filesystem::canonical(dir.path()) / "mount";
  std::filesystem::create_directory(mount);
  std::filesystem::create_directory_symlink(mount, dir / "link");
  RankedEngine engine(1);
  engine.set_mount(dir / "link");
  VllmHook hook(client_, parse_hook("vllm=" + engine.url()), mount);
  bring_to_2(hook);
  EXPECT_EQ(tell(hook, 3), UpdateHow::in_place);
}

TEST_F(VllmInPlaceTest, DataParallelRanksAreReloadedSinceTheyAreNotSeen) {
  RankedEngine engine(2);
  engine.configure([](Json& config) { config["parallel_config"]["data_parallel_size"] = 2; });
  const auto hook = make(engine);
  tell(*hook, 1);
  EXPECT_EQ(tell(*hook, 2), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "data-parallel");
  EXPECT_EQ(count(engine.take_calls(), "weightfs_"), 0U);
}

TEST_F(VllmInPlaceTest, HowItIsConfiguredIsAskedAgainAfterAFailure) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  engine.fail("/server_info");
  EXPECT_EQ(tell(*hook, 1), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "/server_info answers 500");
  EXPECT_EQ(tell(*hook, 2), UpdateHow::reload);  // it is known now, and held
  EXPECT_EQ(tell(*hook, 3), UpdateHow::proof);
  (void)engine.take_calls();
  engine.fail("/pause");
  EXPECT_NE(failure_of(*hook, 4), "");
  EXPECT_EQ(failure_of(*hook, 4), "");
  EXPECT_EQ(count(engine.take_calls(), kRankLook), 1U);
}

TEST_F(VllmInPlaceTest, AQuestionWithoutAnAnswerIsNoRestart) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.fail("/weight_info");
  EXPECT_THROW((void)hook->find_reported({}), Error);
  EXPECT_EQ(hook->base_of_change(), 2U);
  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
}

// Nobody saw the end of the telling before, or it was labelled by somebody else.
TEST_F(VllmInPlaceTest, TheSameVersionAgainIsAReload) {
  RankedEngine engine(2);
  const auto hook = make(engine);
  bring_to_2(*hook);
  EXPECT_EQ(tell(*hook, 2), UpdateHow::reload);
  expect_words(hook->find_update()->reason, "the same version again");
  EXPECT_EQ(tell(*hook, 3), UpdateHow::in_place);
}

TEST_F(VllmInPlaceTest, TwoHooksOfOneEngineNeverMixVersions) {
  RankedEngine engine(2);
  const auto one = make(engine), other = make(engine);
  for (std::uint64_t version = 1; version < 9; version++) {
    (void)tell(version % 3 == 0 ? *one : *other, version);
    EXPECT_TRUE(engine.serves(version)) << engine.died();
  }
}

// Asked by another thread, while hooks ask and tell.
TEST_F(VllmInPlaceTest, HooksWantTheChangeThatTheirEngineReadsNext) {
  const test::TempDir dir;
  const auto db = Db::open(dir / "db");
  RankedEngine engine(2);
  HooksOptions options{.specs = {}, .repository = "file:///b", .mount_point = "/mnt/w"};
  for (const char* key : {",every=0.01", ",every=0.02"}) {
    options.specs.push_back(parse_hook("vllm=" + engine.url() + key));
  }
  std::atomic<std::uint64_t> newest{1};
  Hooks hooks(std::move(options), *db);
  EXPECT_TRUE(hooks.wanted_deltas(2).empty());
  hooks.start([&] { return Hooks::Shown{.version = newest, .tag = "", .is_newest = true}; });
  for (; newest < 5; newest++) {
    const std::vector wanted{DeltaId({newest, newest + 1}, true)};
    EXPECT_TRUE(test::eventually([&] { return hooks.wanted_deltas(newest + 1) == wanted; }));
    EXPECT_TRUE(test::eventually([&] { return engine.serves(newest); })) << engine.died();
  }
}

TEST_F(VllmInPlaceTest, OneThatDiesInThePauseIsGone) {
  auto engine = std::make_unique<RankedEngine>(2);
  const auto hook = make(*engine);
  bring_to_2(*hook);
  engine.reset();
  EXPECT_THROW(hook->tell(target(3), {}), TransportError);
  EXPECT_EQ(hook->base_of_change(), 0U);
}

TEST_F(VllmInPlaceTest, AStopIsNotTakenForAFailure) {
  RankedEngine engine(1);
  const auto hook = make(engine);
  bring_to_2(*hook);
  engine.stage_slowly(1'000'000);
  std::stop_source stop;
  (void)engine.take_calls();
  std::jthread stopper([&] {
    while (count(engine.take_calls(), "weightfs_stage") == 0) std::this_thread::yield();
    stop.request_stop();
  });
  EXPECT_THROW(hook->tell(target(3), {.stop = stop.get_token()}), Error);
  EXPECT_FALSE(engine.is_paused());
}

}  // namespace
}  // namespace weightfs::fs
