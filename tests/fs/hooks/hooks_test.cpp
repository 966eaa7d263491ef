// Several hooks together, with their threads, and what they remember.
#include "fs/hooks/hooks.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "fs/hooks/records.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::eventually;
using test::ServedReply;
using test::ServedRequest;
using HookPhase = HookStatus::State;

/// An engine of `http=`: counts how many requests are there at the same time.
class CountingEngine {
 public:
  CountingEngine() : server_([this](const ServedRequest& request) { return answer(request); }) {}

  [[nodiscard]] std::string url() const { return server_.url(); }
  [[nodiscard]] unsigned version() const { return version_; }
  [[nodiscard]] unsigned tells() const { return tells_; }
  [[nodiscard]] unsigned asks() const { return asks_; }
  [[nodiscard]] unsigned together_max() const { return together_max_; }
  void fail(bool fails) { fails_ = fails; }
  /// Tellings wait until they may go on.
  void block(bool blocks) { blocks_ = blocks; }
  [[nodiscard]] bool is_blocked() const { return waiting_ > 0; }

 private:
  ServedReply answer(const ServedRequest& request) {
    const unsigned together = ++together_;
    together_max_ = std::max<unsigned>(together_max_, together);
    ServedReply reply = request.method == "POST" ? tell(request) : ServedReply{};
    if (request.method == "GET") asks_++;
    if (request.method == "GET") reply.body = "{\"version\":" + std::to_string(version_) + "}";
    --together_;
    return reply;
  }
  ServedReply tell(const ServedRequest& request) {
    tells_++;
    waiting_++;
    EXPECT_TRUE(eventually([&] { return !blocks_; }));
    waiting_--;
    if (fails_) return {.status = 500, .body = "broken"};
    version_ = static_cast<unsigned>(
        std::stoul(request.body.substr(request.body.find("\"version\":") + 10)));
    return {};
  }

  std::atomic<unsigned> version_{0}, tells_{0}, asks_{0}, together_{0}, together_max_{0},
      waiting_{0};
  std::atomic<bool> fails_{false}, blocks_{false};
  test::HttpServer server_;
};

class HooksTest : public testing::Test {
 protected:
  std::unique_ptr<Hooks> make(const std::vector<std::string>& specs) {
    HooksOptions options{.specs = {}, .repository = "file:///b", .mount_point = "/mnt/w"};
    for (const std::string& spec : specs) options.specs.push_back(parse_hook(spec));
    return std::make_unique<Hooks>(std::move(options), *db_);
  }
  /// With threads.
  std::unique_ptr<Hooks> start(const std::vector<std::string>& specs) {
    auto hooks = make(specs);
    hooks->start(
        [this] { return Hooks::Shown{.version = newest_, .tag = "t", .is_newest = true}; });
    return hooks;
  }
  static bool is_current(const Hooks& hooks, std::size_t i, std::uint64_t version) {
    const HookStatus status = hooks.status()[i];
    return status.state == HookPhase::current && status.reported == version;
  }

  test::TempDir dir_;
  std::unique_ptr<Db> db_ = Db::open(dir_ / "db");
  std::atomic<std::uint64_t> newest_{1};
};

TEST_F(HooksTest, AFailingEngineDoesNotHoldBackTheOther) {
  CountingEngine good, bad;
  bad.fail(true);
  const auto hooks = start({"http=" + bad.url() + ",every=60", "http=" + good.url() + ",every=60"});
  EXPECT_TRUE(eventually([&] { return is_current(*hooks, 1, 1); }));
  EXPECT_TRUE(eventually([&] { return hooks->status()[0].state == HookPhase::failed; }));
  newest_ = 2;
  hooks->notify();  // long before the next round
  EXPECT_TRUE(eventually([&] { return is_current(*hooks, 1, 2); }));
  EXPECT_NE(hooks->status()[0].error.find("broken"), std::string::npos);
}

TEST_F(HooksTest, VersionsThatArriveWhileAnEngineLoadsAreCoalesced) {
  CountingEngine engine;
  engine.block(true);
  const auto hooks = start({"http=" + engine.url() + ",every=60"});
  EXPECT_TRUE(eventually([&] { return engine.is_blocked(); }));
  EXPECT_EQ(hooks->status()[0].state, HookPhase::telling);
  for (newest_ = 2; newest_ < 9; newest_++) hooks->notify();
  engine.block(false);
  EXPECT_TRUE(eventually([&] { return is_current(*hooks, 0, 9); }));
  EXPECT_EQ(engine.tells(), 2U);
}

TEST_F(HooksTest, TwoHooksOfOneEngineAreNeverAtWorkAtTheSameTime) {
  CountingEngine engine;
  const auto hooks =
      start({"http=" + engine.url() + "/a,every=0.01", "http=" + engine.url() + "/b,every=0.01"});
  for (unsigned version = 2; version < 12; version++) {
    newest_ = version;
    hooks->notify();
    EXPECT_TRUE(eventually(
        [&] { return is_current(*hooks, 0, version) && is_current(*hooks, 1, version); }));
  }
  EXPECT_EQ(engine.together_max(), 1U);
}

TEST_F(HooksTest, ANoticeThatChangesNothingAsksNobody) {
  CountingEngine engine;
  const auto hooks = start({"http=" + engine.url() + ",every=60"});
  EXPECT_TRUE(eventually([&] { return is_current(*hooks, 0, 1); }));
  for (int i = 0; i < 100; i++) hooks->notify();
  newest_ = 2;
  hooks->notify();
  EXPECT_TRUE(eventually([&] { return is_current(*hooks, 0, 2); }));
  EXPECT_EQ(engine.tells(), 2U);
  EXPECT_EQ(engine.asks(), 4U);  // before and after each
}

TEST_F(HooksTest, AnEngineThatNeverAnswersDoesNotHoldUpTheEnd) {
  std::atomic<bool> asked{false};
  const test::HttpServer server([&](const ServedRequest&) {
    asked = true;
    return ServedReply{.silent = true};
  });
  const auto hooks = start({"vllm=" + server.url(), "sglang=" + server.url()});
  EXPECT_TRUE(eventually([&] { return asked.load(); }));
  const auto begin = Clock::now();
  hooks->stop();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(HooksTest, ACommandIsRunOnceAlsoOverARestart) {
  const std::string command =
      "exec=/bin/sh -c 'echo $WEIGHTFS_VERSION >> " + (dir_ / "ran").string() + "'";
  for (int i = 0; i < 2; i++) {
    const auto hooks = start({command});
    EXPECT_TRUE(eventually([&] { return hooks->status()[0].state == HookPhase::current; }));
    EXPECT_TRUE(hooks->holds(1));
  }
  EXPECT_EQ(test::read_text(dir_ / "ran"), "1\n");
  const auto other = start({command + " more"});  // another command
  EXPECT_TRUE(eventually([&] { return other->status()[0].state == HookPhase::current; }));
  EXPECT_EQ(test::read_text(dir_ / "ran"), "1\n1\n");
}

TEST_F(HooksTest, OtherOptionsCostNoUpdateAndAnotherStoreDoes) {
  CountingEngine engine;
  const auto is_there = [&](const Hooks& hooks) {
    return eventually([&] { return is_current(hooks, 0, 1); });
  };
  const std::string spec = "http=" + engine.url();
  for (const char* more : {"", ",every=60", ",every=1,timeout=60"}) {
    EXPECT_TRUE(is_there(*start({spec + more})));
  }
  EXPECT_EQ(engine.tells(), 1U);
  db_ = Db::open(dir_ / "of-another-run");  // where 1 is something else
  EXPECT_TRUE(is_there(*start({spec})));
  EXPECT_EQ(engine.tells(), 2U);
}

TEST_F(HooksTest, HoldsFromTheBeginningWhatIsRecorded) {
  put_hook_record(*db_, "vllm=http://127.0.0.1:1", {.told = 7, .telling = 8});
  const auto hooks = make({"vllm=http://127.0.0.1:1"});
  EXPECT_TRUE(hooks->holds(7));
  EXPECT_TRUE(hooks->holds(8));
  EXPECT_FALSE(hooks->holds(9));
  EXPECT_TRUE(make({"vllm=http://127.0.0.1:1,timeout=60,kv=keep"})->holds(7));
  EXPECT_FALSE(make({"vllm=http://127.0.0.1:2"})->holds(7));
  EXPECT_FALSE(make({})->holds(0));
}

}  // namespace
}  // namespace weightfs::fs
