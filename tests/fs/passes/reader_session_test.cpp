// A made-up /proc, and a look at the real one.
#include "fs/passes/reader_session.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>
#include <thread>

#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::TempDir;
using test::write_text;

constexpr pid_t kDaemon = 10;

class ReaderSessionTest : public testing::Test {
 protected:
  ReaderSessionTest() {
    add(kDaemon, 1, "weightfs");
    std::filesystem::create_symlink(std::to_string(kDaemon), proc_ / "self");
  }

  struct Seen {
    std::string cgroup = "0::/own\n";
    std::uint64_t start = 77;
    char state = 'S';
  };
  void add(pid_t pid, int session, const std::string& name, const Seen& seen) {
    const auto folder = proc_ / std::to_string(pid);
    write_text(folder / "status", "Name:\t" + name + "\nUmask:\t0022\nTgid:\t" +
                                      std::to_string(pid) + "\nPid:\t" + std::to_string(pid) +
                                      "\n");
    std::string stat =
        std::to_string(pid) + " (" + name + ") " + seen.state + " 1 2 " + std::to_string(session);
    for (int field = 7; field < 22; field++) stat += " 5";
    write_text(folder / "stat", stat + " " + std::to_string(seen.start) + " 6 6\n");
    write_text(folder / "cgroup", seen.cgroup);
  }
  void add(pid_t pid, int session, const std::string& name) { add(pid, session, name, Seen{}); }
  void add_thread(pid_t thread, pid_t process) {
    write_text(proc_ / std::to_string(thread) / "status",
               "Name:\tworker\nTgid:\t" + std::to_string(process) + "\n");
  }

  [[nodiscard]] ReaderSessions sessions() const { return ReaderSessions(proc_.path(), kDaemon); }
  [[nodiscard]] std::string session_of(pid_t thread) const {
    const auto reader = sessions().find(thread, 1000);
    return reader ? reader->session : "none";
  }

  TempDir proc_;
};

TEST_F(ReaderSessionTest, InTheDaemonsCgroupItIsTheProcessSession) {
  add(20, 15, "python3");
  add(21, 15, "python3");
  add(22, 16, "python3");
  EXPECT_EQ(session_of(20), "session 15");
  EXPECT_EQ(session_of(21), "session 15");
  EXPECT_EQ(session_of(22), "session 16");
}

TEST_F(ReaderSessionTest, InAnotherCgroupItIsTheCgroup) {
  add(20, 15, "vllm", {.cgroup = "0::/kubepods/a\n"});
  add(21, 16, "vllm", {.cgroup = "0::/kubepods/a\n"});
  add(22, 15, "vllm", {.cgroup = "0::/kubepods/b\n"});
  EXPECT_EQ(session_of(20), "cgroup /kubepods/a");
  EXPECT_EQ(session_of(21), "cgroup /kubepods/a");
  EXPECT_EQ(session_of(22), "cgroup /kubepods/b");
}

TEST_F(ReaderSessionTest, OfSeveralHierarchiesTheOnesThatDifferCount) {
  add(kDaemon, 1, "weightfs", {.cgroup = "2:cpu:/own\n1:name=systemd:/own\n0::/\n"});
  add(20, 15, "vllm", {.cgroup = "2:cpu:/a\n1:name=systemd:/b\n0::/\n"});
  add(21, 15, "vllm", {.cgroup = "2:cpu:/own\n1:name=systemd:/own\n0::/\n"});
  EXPECT_EQ(session_of(20), "cgroup /a,/b");
  EXPECT_EQ(session_of(21), "session 15");
}

TEST_F(ReaderSessionTest, CallersThatAreInvisibleShareOneSessionForEachUid) {
  EXPECT_EQ(session_of(0), "invisible, uid 1000");
  EXPECT_EQ(sessions().find(0, 0)->session, "invisible, uid 0");
  EXPECT_EQ(sessions().find(0, 1000)->process, (ProcessId{0, 1000}));
  add(20, 0, "python3");  // its session lies outside this namespace
  EXPECT_EQ(session_of(20), "session 0");
}

TEST_F(ReaderSessionTest, InTheProcOfAnotherPidNamespaceEverybodyIsInvisible) {
  add(20, 15, "python3");
  std::filesystem::remove(proc_ / "self");
  std::filesystem::create_symlink("4000", proc_ / "self");
  EXPECT_EQ(session_of(20), "invisible, uid 1000");
  EXPECT_FALSE(sessions().is_gone({999, 1}));
}

TEST_F(ReaderSessionTest, AThreadBelongsToItsProcess) {
  add(20, 15, "python3");
  add_thread(25, 20);
  const auto reader = sessions().find(25, 1000);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->session, "session 15");
  EXPECT_EQ(reader->process, (ProcessId{20, 77}));
  EXPECT_EQ(reader->command, "worker");
}

TEST_F(ReaderSessionTest, ANameMayHoldAnything) {
  add(20, 15, "a) R 1 1 1 (b");
  EXPECT_EQ(session_of(20), "session 15");
  EXPECT_EQ(sessions().find(20, 1000)->command, "a) R 1 1 1 (b");
}

TEST_F(ReaderSessionTest, AThreadThatHasEndedIsNobody) { EXPECT_EQ(session_of(20), "none"); }

TEST_F(ReaderSessionTest, AProcessIsGoneWhenItHasEndedOrItsNumberIsAnotherOnes) {
  add(20, 15, "python3");
  EXPECT_FALSE(sessions().is_gone({20, 77}));
  EXPECT_TRUE(sessions().is_gone({20, 76}));
  EXPECT_TRUE(sessions().is_gone({21, 77}));
  add(20, 15, "python3", {.state = 'Z'});
  EXPECT_TRUE(sessions().is_gone({20, 77})) << "nobody has waited for it yet";
}

TEST_F(ReaderSessionTest, TheSystemCallTellsWhatALinkIsReadFor) {
  const auto use_in = [&](const std::string& text) {
    write_text(proc_ / "20/syscall", text);
    return sessions().use_of_link(20);
  };
  const auto call = [](long number) { return std::to_string(number) + " 0x1 0x2\n"; };
  EXPECT_EQ(sessions().use_of_link(20), LinkUse::unknown);
  EXPECT_EQ(use_in(call(SYS_readlinkat)), LinkUse::text);
  EXPECT_EQ(use_in(call(SYS_openat)), LinkUse::open);
  EXPECT_EQ(use_in(call(SYS_statx)), LinkUse::look);
  EXPECT_EQ(use_in(call(SYS_execve)), LinkUse::unknown);
  EXPECT_EQ(use_in("running\n"), LinkUse::unknown);
  EXPECT_EQ(sessions().use_of_link(0), LinkUse::unknown);
}

TEST_F(ReaderSessionTest, ASessionIsDeadWhenNoProcessOfItIsLeft) {
  add(20, 15, "python3");
  add(21, 16, "vllm", {.cgroup = "0::/kubepods/a\n"});
  const std::set<std::string> all{"session 15", "session 16", "cgroup /kubepods/a",
                                  "cgroup /kubepods/b", "invisible, uid 0"};
  EXPECT_EQ(sessions().find_dead(all), (std::set<std::string>{"session 16", "cgroup /kubepods/b"}));
  add(20, 15, "python3", {.state = 'Z'});
  EXPECT_EQ(sessions().find_dead({"session 15"}), std::set<std::string>{"session 15"});
}

// In a container the session's leader may be outside: then getsid() is 0.
TEST_F(ReaderSessionTest, InTheRealProcAChildSharesTheSessionUntilItLeavesIt) {
  const ReaderSessions real;
  const auto own = real.find(getpid(), 0);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->session, "session " + std::to_string(getsid(0)));
  std::optional<Reader> of_thread;
  std::thread([&] { of_thread = real.find(gettid(), 0); }).join();
  ASSERT_TRUE(of_thread);
  EXPECT_EQ(of_thread->process, own->process);

  const pid_t child = fork();
  if (child == 0) {
    setsid();
    while (true) pause();
  }
  EXPECT_TRUE(test::eventually([&] {
    const auto reader = real.find(child, 0);
    return reader && reader->session == "session " + std::to_string(child);
  }));
  const ProcessId process = real.find(child, 0)->process;
  EXPECT_FALSE(real.is_gone(process));
  EXPECT_EQ(real.ancestors(process).at(0), own->process);
  EXPECT_LE(real.find(child, 0)->started, boot_now());
  EXPECT_GT(real.find(child, 0)->started + std::chrono::minutes(5), boot_now());
  const std::string session = "session " + std::to_string(child);
  EXPECT_TRUE(real.find_dead({session, own->session, "invisible, uid 0"}).empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(real.is_gone(process));
  EXPECT_EQ(real.find_dead({session, own->session}), std::set<std::string>{session});
  EXPECT_TRUE(real.ancestors(process).empty());
}

}  // namespace
}  // namespace weightfs::fs
