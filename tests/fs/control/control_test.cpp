// The control socket, both sides, and clients that mean no good.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "fs/control/client.hpp"
#include "fs/control/path.hpp"
#include "fs/control/protocol.hpp"
#include "fs/control/server.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::code_of;
using test::eventually;
using test::TempDir;
using How = WaitEnd::How;

constexpr auto kControlLimit = seconds(30);

/// A daemon's side: what is here, and what was handed over.
class FakeDaemon {
 public:
  [[nodiscard]] ControlHandlers handlers() {
    return {.wait = [this](const WaitFor& what, auto& state) { return look(what, state); },
            .hand_over = [this](const HandOverRequest& asked, Caller who,
                                const Context& context) { return take(asked, who, context); },
            .pin =
                [this](const PinRequest& asked) {
                  if (asked.version == 99) throw Error(ErrorCode::not_found, "it is not here");
                  pinned = asked.version;
                  return asked.version == 0 ? std::uint64_t{7} : asked.version;
                },
            .unpin =
                [this](const UnpinRequest& asked) {
                  unpinned = asked;
                  return std::size_t{3};
                },
            .diff = [](const DiffRequest& asked, const Context&) { return compare(asked); }};
  }

  void show(std::uint64_t version) {
    const std::lock_guard lock(mutex_);
    latest_ = version;
  }

  std::atomic<unsigned> looks = 0, begun = 0, hand_overs = 0;
  std::atomic<bool> hangs = false;  // hand-overs wait until they are stopped
  HandOverRequest request;          // the last one
  Caller peer = {};
  std::optional<std::uint64_t> pinned;
  std::optional<UnpinRequest> unpinned;

 private:
  /// Versions have three tensors; nothing leads to version 9.
  static std::optional<PatchDiffPage> compare(const DiffRequest& asked) {
    if (asked.versions.to == 9) return std::nullopt;
    PatchDiffPage page;
    page.tensors = {{"tensor \"" + std::to_string(asked.first) + "\"", "a/b.safetensors",
                     TensorDiff::Change::changed, "BF16", 64, asked.first, 7}};
    if (asked.first < 2) page.next = asked.first + 1;
    return page;
  }

  std::optional<WaitEnd> look(const WaitFor& what, ControlHandlers::WaitState& state) {
    looks++;
    const std::lock_guard lock(mutex_);
    if (what.tag == "conflict") return WaitEnd{How::conflict, 0, "somebody else did", ""};
    if (what.tag == "throws") throw Error(ErrorCode::io, "the disk is broken");
    if (what.order) state.order = what.order;
    if (what.version && *what.version <= latest_) return WaitEnd{How::here, *what.version, "", ""};
    return std::nullopt;
  }

  std::uint64_t take(const HandOverRequest& asked, Caller who, const Context& context) {
    begun++;
    while (hangs) {
      context.check("waiting for a writer");
      std::this_thread::yield();
    }
    if (asked.path == "busy") throw Error(ErrorCode::busy, "pid 7 writes");
    const std::lock_guard lock(mutex_);
    request = asked;
    peer = who;
    return ++hand_overs;
  }

  std::mutex mutex_;
  std::uint64_t latest_ = 0;
};

/// A client that says what it likes.
class RawClient {
 public:
  explicit RawClient(const stdfs::path& path) : socket_(connect_socket(path)) {
    fcntl(socket_.fd(), F_SETFL, 0);  // blocks
    const timeval limit{.tv_sec = kControlLimit.count(), .tv_usec = 0};
    setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket_.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }

  /// Returns: false if the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void end() { shutdown(socket_.fd(), SHUT_WR); }

  /// Everything until the other side closes; it must.
  std::string receive_all() {
    std::string text;
    std::array<char, 4096> buffer;
    while (true) {
      const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), 0);
      EXPECT_TRUE(got >= 0 || errno == ECONNRESET) << errno;
      if (got <= 0) return text;
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }
  [[nodiscard]] Json error() { return Json::parse(receive_all()).at("error"); }

  /// True if the server has closed the connection.
  [[nodiscard]] bool is_closed() const {
    pollfd waiting{.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
    return poll(&waiting, 1, 0) > 0;
  }

 private:
  File socket_;
};

/// This thread is another user as long as it lives.  Not by seteuid(), which changes all threads.
class AsUser {
 public:
  explicit AsUser(uid_t user) { become(user); }
  ~AsUser() { become(0); }
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  static void become(uid_t user) {
    EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0) << "uid " << user;
  }
};

class ControlTest : public testing::Test {
 protected:
  void start() { server_.emplace(path_, daemon_.handlers()); }

  [[nodiscard]] WaitEnd wait(const WaitFor& what, const Context& context = {}) const {
    return control_wait(path_, what, context.within(kControlLimit));
  }
  [[nodiscard]] std::uint64_t hand_over(const HandOverRequest& request,
                                        const Context& context = {}) const {
    return control_hand_over(path_, request, context.within(kControlLimit));
  }
  void wait_looks(unsigned more) const {
    for (const unsigned end = daemon_.looks + more; daemon_.looks < end;) {
      std::this_thread::yield();
    }
  }
  void wait_begun() const {
    while (daemon_.begun == 0) std::this_thread::yield();
  }
  /// Other users may reach the socket.
  void admit_all() {
    for (stdfs::path parent = path_.parent_path(); parent != dir_.path().parent_path();
         parent = parent.parent_path()) {
      ASSERT_EQ(chmod(parent.c_str(), 0755), 0);
    }
  }
  /// A reply to a plain question: the server lives.
  void expect_alive() {
    daemon_.show(1);
    EXPECT_EQ(wait({.version = 1}).version, 1U);
  }

  TempDir dir_;
  stdfs::path path_ = dir_ / "run/control.sock";
  FakeDaemon daemon_;
  std::optional<ControlServer> server_;
};

// ---- waiting ----

TEST_F(ControlTest, WhatIsHereIsAnsweredAtOnce) {
  start();
  daemon_.show(3);
  const WaitEnd end = wait({.version = 3});
  EXPECT_EQ(end.how, How::here);
  EXPECT_EQ(end.version, 3U);
}

TEST_F(ControlTest, AWaitEndsWhenItsVersionCame) {
  start();
  auto waiting = std::async(std::launch::async, [&] { return wait({.version = 2}); });
  wait_looks(1);
  daemon_.show(2);
  server_->notify();
  EXPECT_EQ(waiting.get().version, 2U);
}

TEST_F(ControlTest, AWaitEndsAlsoIfNobodyNotifies) {
  start();
  auto waiting = std::async(std::launch::async, [&] { return wait({.version = 2}); });
  wait_looks(2);
  daemon_.show(2);
  EXPECT_EQ(waiting.get().version, 2U);
}

TEST_F(ControlTest, ManyMayWaitAtTheSameTime) {
  start();
  std::vector<std::future<WaitEnd>> waiting;
  for (unsigned i = 0; i < 100; i++) {
    waiting.push_back(std::async(std::launch::async, [&] { return wait({.version = 5}); }));
  }
  wait_looks(100);
  daemon_.show(5);
  server_->notify();
  for (auto& one : waiting) EXPECT_EQ(one.get().version, 5U);
}

TEST_F(ControlTest, TheEndOfAWaitComesOverWhole) {
  start();
  const WaitEnd end = wait({.tag = "conflict"});
  EXPECT_EQ(end.how, How::conflict);
  EXPECT_EQ(end.message, "somebody else did");
}

TEST_F(ControlTest, WhatTheDaemonThrowsIsThrownAtTheClient) {
  start();
  std::string message;
  EXPECT_EQ(code_of([&] { static_cast<void>(wait({.tag = "throws"})); }, &message), ErrorCode::io);
  EXPECT_EQ(message, "the disk is broken");
}

TEST_F(ControlTest, AWaitTimesOut) {
  start();
  const Context context = Context{}.within(milliseconds(20));
  EXPECT_EQ(code_of([&] { static_cast<void>(control_wait(path_, {.version = 9}, context)); }),
            ErrorCode::timed_out);
}

TEST_F(ControlTest, AWaitIsStopped) {
  start();
  std::stop_source stop;
  auto waiting = std::async(std::launch::async, [&] {
    return code_of([&] { static_cast<void>(wait({.version = 9}, {.stop = stop.get_token()})); });
  });
  wait_looks(1);
  stop.request_stop();
  EXPECT_EQ(waiting.get(), ErrorCode::cancelled);
}

TEST_F(ControlTest, AWaitForWhichTheDaemonEndsIsUnavailable) {
  start();
  auto waiting = std::async(std::launch::async, [&] {
    return code_of([&] { static_cast<void>(wait({.version = 9})); });
  });
  wait_looks(1);
  server_.reset();
  EXPECT_EQ(waiting.get(), ErrorCode::unavailable);
}

TEST_F(ControlTest, WithoutADaemonThereIsNoWait) {
  std::string message;
  EXPECT_EQ(code_of([&] { static_cast<void>(wait({.version = 1})); }, &message),
            ErrorCode::unavailable);
  EXPECT_NE(message.find(path_.string()), std::string::npos);
}

// ---- pins ----

TEST_F(ControlTest, APinComesOverWhole) {
  start();
  const Context context = Context{}.within(kControlLimit);
  EXPECT_EQ(control_pin(path_, {.version = 42}, context), 42U);
  EXPECT_EQ(daemon_.pinned, 42U);
  EXPECT_EQ(control_pin(path_, {}, context), 7U);
  EXPECT_EQ(daemon_.pinned, 0U);
  std::string message;
  EXPECT_EQ(code_of([&] { control_pin(path_, {.version = 99}, context); }, &message),
            ErrorCode::not_found);
  EXPECT_EQ(message, "it is not here");
}

TEST_F(ControlTest, AnUnpinComesOverWhole) {
  start();
  const Context context = Context{}.within(kControlLimit);
  EXPECT_EQ(control_unpin(path_, {.version = 42}, context), 3U);
  EXPECT_EQ(daemon_.unpinned->version, 42U);
  EXPECT_FALSE(daemon_.unpinned->session);
  EXPECT_EQ(control_unpin(path_, {.session = "cgroup /a"}, context), 3U);
  EXPECT_EQ(daemon_.unpinned->session, "cgroup /a");
  EXPECT_FALSE(daemon_.unpinned->version);
  control_unpin(path_, {}, context);
  EXPECT_FALSE(daemon_.unpinned->version || daemon_.unpinned->session);
}

TEST_F(ControlTest, PinningIsForRootAndTheOwner) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  start();
  admit_all();
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const Context context = Context{}.within(kControlLimit);
    const bool refused =
        code_of([&] { control_pin(path_, {.version = 1}, context); }) == ErrorCode::permission &&
        code_of([&] { control_unpin(path_, {}, context); }) == ErrorCode::permission;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(daemon_.pinned);
  EXPECT_FALSE(daemon_.unpinned);
}

// ---- handing over ----

TEST_F(ControlTest, AHandOverComesOverWhole) {
  start();
  const HandOverRequest request{.path = "run \"a\"/step-\xC3\xA4\n",
                                .name = "step-42",
                                .options = {.wishes = {.meta = {{"loss", "0.7"}, {"", ""}},
                                                       .include = {"*.py", "a/*"},
                                                       .snapshot = true,
                                                       .rebase = true}}};
  EXPECT_EQ(hand_over(request), 1U);
  EXPECT_EQ(daemon_.request.path, request.path);
  EXPECT_EQ(daemon_.request.name, request.name);
  EXPECT_EQ(daemon_.request.options.wishes.meta, request.options.wishes.meta);
  EXPECT_EQ(daemon_.request.options.wishes.include, request.options.wishes.include);
  EXPECT_TRUE(daemon_.request.options.wishes.snapshot);
  EXPECT_TRUE(daemon_.request.options.wishes.rebase);
  EXPECT_EQ(daemon_.request.options.wishes.rollback, 0U);
  EXPECT_EQ(daemon_.peer.uid, geteuid());
  EXPECT_EQ(daemon_.peer.gid, getegid());
}

TEST_F(ControlTest, ARollbackSaysWhereTo) {
  start();
  EXPECT_EQ(hand_over({.path = "empty", .name = "", .options = {.wishes = {.rollback = 41}}}), 1U);
  EXPECT_EQ(daemon_.request.options.wishes.rollback, 41U);
}

TEST_F(ControlTest, ARefusedHandOverSaysWhy) {
  start();
  std::string message;
  EXPECT_EQ(
      code_of([&] { static_cast<void>(hand_over({.path = "busy", .name = "", .options = {}})); },
              &message),
      ErrorCode::busy);
  EXPECT_EQ(message, "pid 7 writes");
}

TEST_F(ControlTest, ARebaseComesOverWhole) {
  ControlHandlers handlers = daemon_.handlers();
  Caller asked{1, 1};
  handlers.rebase = [&](Caller peer, const Context&) {
    asked = peer;
    return PublishQueue::Rebased{42, {"step-42", "step \xC3\xA4"}};
  };
  server_.emplace(path_, handlers);
  const auto rebased = control_rebase(path_, {}, Context{}.within(kControlLimit));
  EXPECT_EQ(rebased.newest, 42U);
  EXPECT_EQ(rebased.retried, (std::vector<std::string>{"step-42", "step \xC3\xA4"}));
  EXPECT_EQ(asked.uid, geteuid());
}

TEST_F(ControlTest, AReadersMountTakesNoHandOvers) {
  ControlHandlers handlers = daemon_.handlers();
  handlers.hand_over = {};
  handlers.rebase = {};
  server_.emplace(path_, handlers);
  EXPECT_EQ(
      code_of([&] { static_cast<void>(hand_over({.path = "a", .name = "", .options = {}})); }),
      ErrorCode::read_only);
  EXPECT_EQ(code_of([&] { control_rebase(path_, {}, Context{}.within(kControlLimit)); }),
            ErrorCode::read_only);
}

TEST_F(ControlTest, WhoWaitsIsAnsweredWhileAHandOverHangs) {
  start();
  daemon_.hangs = true;
  auto handing = std::async(std::launch::async,
                            [&] { return hand_over({.path = "a", .name = "", .options = {}}); });
  wait_begun();
  expect_alive();
  daemon_.hangs = false;
  EXPECT_EQ(handing.get(), 1U);
}

TEST_F(ControlTest, AStoppedHandOverIsTakenBack) {
  start();
  daemon_.hangs = true;
  std::stop_source stop;
  auto handing = std::async(std::launch::async, [&] {
    std::string message;
    const ErrorCode code = code_of(
        [&] {
          static_cast<void>(
              hand_over({.path = "a", .name = "", .options = {}}, {.stop = stop.get_token()}));
        },
        &message);
    EXPECT_NE(message.find("waiting for a writer"), std::string::npos) << message;  // its word
    return code;
  });
  wait_begun();
  stop.request_stop();
  EXPECT_EQ(handing.get(), ErrorCode::cancelled);
  EXPECT_EQ(daemon_.hand_overs, 0U);
}

TEST_F(ControlTest, AHandOverWhoseClientDiesIsStopped) {
  start();
  daemon_.hangs = true;
  {
    RawClient client(path_);
    client.send(to_line(HandOverRequest{.path = "a", .name = "", .options = {}}));
  }
  const auto next = std::async(std::launch::async,
                               [&] { return hand_over({.path = "b", .name = "", .options = {}}); });
  expect_alive();
  daemon_.hangs = false;
  next.wait();
  EXPECT_EQ(daemon_.request.path, "b");
}

TEST_F(ControlTest, ADaemonEndsWhileAHandOverHangs) {
  start();
  daemon_.hangs = true;
  auto handing = std::async(std::launch::async, [&] {
    return code_of([&] { static_cast<void>(hand_over({.path = "a", .name = "", .options = {}})); });
  });
  wait_begun();
  server_.reset();
  const ErrorCode code = handing.get();
  EXPECT_TRUE(code == ErrorCode::unavailable || code == ErrorCode::cancelled) << to_string(code);
}

// ---- comparing ----

TEST_F(ControlTest, AComparisonComesInPages) {
  start();
  const auto page = [&](std::uint32_t first) {
    return control_diff(path_, {{1, 2}, first}, Context{}.within(kControlLimit));
  };
  EXPECT_EQ(page(0).next, 1U);
  const PatchDiffPage last = page(2);
  EXPECT_EQ(last.next, std::nullopt);
  ASSERT_EQ(last.tensors.size(), 1U);
  const TensorDiff& row = last.tensors[0];
  EXPECT_EQ(row.name, "tensor \"2\"");
  EXPECT_EQ(row.file, "a/b.safetensors");
  EXPECT_EQ(row.dtype, "BF16");
  EXPECT_EQ(row.elements, 64U);
  EXPECT_EQ(row.changed, 2U);
  EXPECT_EQ(row.largest_ulp, 7U);
  EXPECT_EQ(row.change, TensorDiff::Change::changed);
  EXPECT_EQ(page(0).tensors[0].change, TensorDiff::Change::same);
}

TEST_F(ControlTest, WhatCannotBeComparedIsUnsupported) {
  start();
  const auto ask = [&] {
    static_cast<void>(control_diff(path_, {{1, 9}, 0}, Context{}.within(kControlLimit)));
  };
  EXPECT_EQ(code_of(ask), ErrorCode::unsupported);
  server_.reset();
  ControlHandlers handlers = daemon_.handlers();
  handlers.diff = {};
  server_.emplace(path_, handlers);
  EXPECT_EQ(code_of(ask), ErrorCode::unsupported);
}

TEST_F(ControlTest, AComparisonDoesNotWaitForAHandOver) {
  daemon_.hangs = true;
  start();
  auto handing = std::async(std::launch::async,
                            [&] { return hand_over({.path = "a", .name = "", .options = {}}); });
  wait_begun();
  EXPECT_EQ(control_diff(path_, {{1, 2}, 2}, Context{}.within(kControlLimit)).tensors.size(), 1U);
  daemon_.hangs = false;
  EXPECT_EQ(handing.get(), 1U);
}

// ---- the socket ----

TEST_F(ControlTest, APathMayBeLongerThanAnAddress) {
  for (int i = 0; i < 4; i++) path_ = path_.parent_path() / std::string(60, 'x') / "s.sock";
  ASSERT_GT(path_.string().size(), 200U);
  start();
  expect_alive();
  server_.reset();
  EXPECT_FALSE(stdfs::exists(path_));
}

TEST_F(ControlTest, AStaleSocketIsReplaced) {
  stdfs::create_directories(path_.parent_path());
  {
    const File directory = File::open(path_.parent_path(), O_RDONLY | O_DIRECTORY);
    const File dead = bind_socket(directory.fd(), path_.filename(), path_);
  }
  ASSERT_TRUE(stdfs::exists(path_));
  start();
  expect_alive();
}

TEST_F(ControlTest, TheSocketOfALivingDaemonIsNotTaken) {
  start();
  EXPECT_EQ(code_of([&] { const ControlServer second(path_, daemon_.handlers()); }),
            ErrorCode::busy);
  expect_alive();
}

TEST_F(ControlTest, WhatIsNoSocketIsLeftAlone) {
  test::write_text(path_, "mine");
  EXPECT_EQ(code_of([&] { start(); }), ErrorCode::exists);
  EXPECT_EQ(test::read_text(path_), "mine");
}

TEST_F(ControlTest, AnEndedServerLeavesNothing) {
  start();
  EXPECT_TRUE(stdfs::exists(path_));
  server_.reset();
  EXPECT_TRUE(stdfs::is_empty(path_.parent_path()));
}

TEST_F(ControlTest, AnEndedServerLeavesTheSocketOfAnother) {
  start();
  stdfs::remove(path_);
  ControlServer other(path_, daemon_.handlers());
  server_.reset();
  expect_alive();
}

TEST_F(ControlTest, EverybodyMayConnectToRootsDaemon) {
  start();
  struct stat attributes {};
  ASSERT_EQ(stat(path_.c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 0777, geteuid() == 0 ? 0666U : 0600U);
}

TEST(ControlPath, FollowsFromTheStoresPath) {
  const stdfs::path path = control_path("/no/such/store");
  EXPECT_EQ(path, control_path("/no/such/../such/store"));
  EXPECT_NE(path, control_path("/no/such/other"));
  EXPECT_EQ(path.parent_path() == "/run/weightfs", geteuid() == 0);
  EXPECT_EQ(path.extension(), ".sock");
}

// ---- clients that mean no good ----

TEST_F(ControlTest, ARequestThatIsWrongNamesTheField) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"hello", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{}", "'wait', 'hand_over', 'rebase', 'pin', 'unpin' or 'diff'"},
      {R"({"pin":{}})", "version"},
      {R"({"pin":{"version":1,"session":"x"}})", "session"},
      {R"({"unpin":{"version":1,"session":"x"}})", "both 'version' and 'session'"},
      {R"({"unpin":{"session":7}})", "session"},
      {R"({"diff":{"from":1,"to":2}})", "'first'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{},"include":[],"snapshot":true,"rebase":true,)"
       R"("rollback":"1"}})",
       "'rollback'"},
      {R"({"diff":{"from":1,"to":2,"first":4294967296}})", "'first'"},
      {R"({"diff":{"from":1,"to":"2","first":0}})", "'to'"},
      {R"({"steal":{}})", "'steal'"},
      {R"({"wait":{},"hand_over":{}})", "exactly one"},
      {R"({"wait":7})", "'wait' is not a JSON object"},
      {R"({"wait":{}})", "exactly one"},
      {R"({"wait":{"tag":"a","version":1}})", "exactly one"},
      {R"({"wait":{"tag":"a","ready":true}})", "'ready' and at most 'version'"},
      {R"({"wait":{"ready":1}})", "'ready'"},
      {R"({"wait":{"ready":false}})", "exactly one"},
      {R"({"wait":{"tag":7}})", "'tag'"},
      {R"({"wait":{"tag":"../x"}})", "'tag'"},
      {R"({"wait":{"tag":""}})", "'tag'"},
      {R"({"wait":{"version":-1}})", "'version'"},
      {R"({"wait":{"version":1.5}})", "'version'"},
      {R"({"wait":{"version":99999999999999999999}})", "'version'"},
      {R"({"wait":{"newer_than":"1"}})", "'newer_than'"},
      {R"({"wait":{"order":null}})", "'order'"},
      {R"({"wait":{"version":1,"version":2}})", "twice"},
      {R"({"hand_over":{}})", "'path'"},
      {R"({"hand_over":{"path":7}})", "'path'"},
      {R"({"hand_over":{"path":"a","name":"b"}})", "'meta'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{"x":1}}})", "'meta'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{},"include":"*"}})", "'include'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{},"include":[1]}})", "'include'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{},"include":[],"snapshot":1}})",
       "'snapshot'"},
      {R"({"hand_over":{"path":"a","name":"b","meta":{},"include":[],"snapshot":true,"rebase":0}})",
       "'rebase'"},
  };
  for (const auto& [line, words] : cases) {
    RawClient client(path_);
    client.send(std::string(line) + "\n");
    const Json error = client.error();
    EXPECT_EQ(error["code"], "invalid") << line;
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos)
        << line << ": " << error["message"];
  }
  EXPECT_EQ(daemon_.hand_overs, 0U);
  expect_alive();
}

TEST_F(ControlTest, ALineWithoutEndIsCutOff) {
  start();
  RawClient client(path_);
  const std::string piece(8192, 'x');
  while (client.send(piece)) {
  }
  EXPECT_NE(client.receive_all().find("more than 65536 bytes"), std::string::npos);
  expect_alive();
}

TEST_F(ControlTest, ADeeplyNestedRequestIsRefused) {
  start();
  RawClient client(path_);
  client.send(std::string(60'000, '[') + "\n");
  EXPECT_EQ(client.error()["code"], "invalid");
  expect_alive();
}

TEST_F(ControlTest, OneConnectionTakesOneRequest) {
  start();
  RawClient client(path_);
  client.send(to_line(WaitFor{.version = 9}));
  wait_looks(1);
  client.send("more\n");
  EXPECT_EQ(client.error()["code"], "invalid");
}

TEST_F(ControlTest, ARequestMayComeInPieces) {
  start();
  daemon_.show(1);
  RawClient client(path_);
  for (const char c : to_line(WaitFor{.version = 1})) client.send({&c, 1});
  EXPECT_EQ(Json::parse(client.receive_all())["end"]["version"], 1);
}

TEST_F(ControlTest, AnAnswerReachesAClientThatHasFinishedSending) {
  start();
  daemon_.show(1);
  RawClient client(path_);
  client.send(to_line(WaitFor{.version = 1}));
  client.end();
  EXPECT_EQ(Json::parse(client.receive_all())["end"]["version"], 1);
}

TEST_F(ControlTest, WhoWaitsAndGoesAwayIsForgotten) {
  start();
  for (std::size_t i = 0; i < 2 * kControlClientsMax; i++) {
    RawClient client(path_);
    client.send(to_line(WaitFor{.version = 9}));
  }
  // The server learns one after another that they have gone.
  daemon_.show(1);
  EXPECT_TRUE(eventually([&] {
    try {
      return wait({.version = 1}).version == 1;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
      return false;
    }
  }));
}

TEST_F(ControlTest, TooManySilentClientsAreToldSoAndHurtNobodyWhoWaits) {
  start();
  auto waiting = std::async(std::launch::async, [&] { return wait({.version = 2}); });
  wait_looks(1);
  std::vector<std::unique_ptr<RawClient>> silent;
  while (silent.size() < kControlClientsMax + 8) {
    silent.push_back(std::make_unique<RawClient>(path_));
  }
  EXPECT_EQ(silent.back()->error()["code"], "busy");
  EXPECT_FALSE(silent.front()->is_closed());
  daemon_.show(2);
  server_->notify();
  EXPECT_EQ(waiting.get().version, 2U);
  silent.clear();
  expect_alive();
}

// Who connects and goes away again and again: at no time are more than a few of them counted.
TEST_F(ControlTest, ClientsThatHaveGoneTakeNoPlaces) {
  std::atomic<bool> is_held = false, may_go_on = false;
  ControlHandlers handlers = daemon_.handlers();
  handlers.pin = [&](const PinRequest&) {
    is_held = true;
    while (!may_go_on) std::this_thread::yield();
    return std::uint64_t{7};
  };
  server_.emplace(path_, handlers);
  RawClient holding(path_);
  holding.send(to_line(PinRequest{}));
  while (!is_held) std::this_thread::yield();
  for (std::size_t i = 0; i < kControlClientsMax; i++) const RawClient gone(path_);
  daemon_.show(1);
  RawClient client(path_);
  client.send(to_line(WaitFor{.version = 1}));
  may_go_on = true;
  const Json reply = Json::parse(client.receive_all());
  EXPECT_TRUE(reply.contains("end")) << reply;
}

TEST_F(ControlTest, AUserWhoTakesAllPlacesThereAreLeavesSomeToOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  start();
  admit_all();
  std::vector<std::unique_ptr<RawClient>> greedy;
  {
    const AsUser user(65534);
    while (greedy.size() < kControlClientsMax) {
      greedy.push_back(std::make_unique<RawClient>(path_));
      greedy.back()->send(to_line(WaitFor{.version = 9}));
    }
    EXPECT_EQ(greedy.back()->error()["code"], "busy");
  }
  daemon_.show(1);
  for (const uid_t other : {65533u, 65532u}) {
    const AsUser user(other);
    EXPECT_EQ(wait({.version = 1}).version, 1U);
  }
  EXPECT_FALSE(greedy.front()->is_closed());
}

/// A line that is nearly right, or not at all.
std::string random_bytes(test::Random& rng) {
  static const std::string kSeeds[] = {
      to_line(WaitFor{.tag = "step-42"}), to_line(WaitFor{.order = 7}),
      to_line(HandOverRequest{.path = "a", .name = "b", .options = {}}),
      to_line(PinRequest{.version = 42}), to_line(UnpinRequest{.session = "session 7"})};
  std::string bytes = kSeeds[rng() % std::size(kSeeds)];
  for (auto changes = rng() % 8; changes > 0; changes--) {
    const std::size_t at = rng() % bytes.size();
    switch (rng() % 4) {
      case 0:
        bytes[at] = static_cast<char>(rng());
        break;
      case 1:
        bytes.erase(at, 1 + rng() % 8);
        break;
      case 2:
        bytes.insert(at, bytes.substr(rng() % bytes.size()));
        break;
      default:
        bytes.insert(at, 1, "\"{}[]:,\n\0\xFF"[rng() % 10]);
    }
    if (bytes.empty()) bytes = "\n";
  }
  return bytes;
}

TEST_F(ControlTest, RandomBytesHurtNobody) {
  auto rng = test::make_rng();
  start();
  auto waiting = std::async(std::launch::async, [&] { return wait({.version = 2}); });
  for (int i = 0; i < 3000; i++) {
    RawClient client(path_);
    client.send(random_bytes(rng));
    if (rng() % 2 != 0) {
      client.end();  // or goes away, at once
      const std::string reply = client.receive_all();
      EXPECT_TRUE(reply.empty() || Json::accept(reply)) << reply;
    }
  }
  EXPECT_EQ(waiting.wait_for(seconds(0)), std::future_status::timeout);
  daemon_.show(2);
  server_->notify();
  EXPECT_EQ(waiting.get().version, 2U);
}

TEST(ControlProtocol, ARequestThatCannotBeSaidIsRefused) {
  EXPECT_EQ(code_of([] { to_line(WaitFor{.tag = "\xFF"}); }), ErrorCode::invalid);
  EXPECT_EQ(code_of([] {
              to_line(HandOverRequest{
                  .path = std::string(kControlLineBytesMax, 'x'), .name = "", .options = {}});
            }),
            ErrorCode::invalid);
}

TEST(ControlProtocol, ALongMessageIsCut) {
  const std::string line = to_line(ErrorCode::io, std::string(1 << 20, 'x'));
  EXPECT_LT(line.size(), 10'000U);
  EXPECT_EQ(code_of([&] { parse_reply(line); }), ErrorCode::io);
}

TEST(ControlProtocol, AReplyThatCannotBeUnderstoodIsCorrupt) {
  for (const char* line : {"", "{}", R"({"end":{}})", R"({"order":-1})", R"({"error":7})",
                           R"({"end":{"how":"maybe","version":1,"message":"","left":""}})"}) {
    EXPECT_EQ(code_of([&] { parse_reply(line); }), ErrorCode::corrupt) << line;
  }
}

}  // namespace
}  // namespace weightfs::fs
