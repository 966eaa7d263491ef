// A made-up /proc, and a look at the real one.
#include "fs/reader_session.hpp"

#include <gtest/gtest.h>
#include <signal.h>
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
    const auto reader = sessions().find(thread);
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

TEST_F(ReaderSessionTest, CallersThatAreInvisibleShareOneSession) {
  EXPECT_EQ(session_of(0), kInvisibleSession);
  EXPECT_EQ(sessions().find(0)->process, ProcessId{});
  add(20, 0, "python3");  // its session lies outside this namespace
  EXPECT_EQ(session_of(20), kInvisibleSession);
}

TEST_F(ReaderSessionTest, InTheProcOfAnotherPidNamespaceEverybodyIsInvisible) {
  add(20, 15, "python3");
  std::filesystem::remove(proc_ / "self");
  std::filesystem::create_symlink("4000", proc_ / "self");
  EXPECT_EQ(session_of(20), kInvisibleSession);
  EXPECT_FALSE(sessions().is_gone({999, 1}));
}

TEST_F(ReaderSessionTest, AThreadBelongsToItsProcess) {
  add(20, 15, "python3");
  add_thread(25, 20);
  const auto reader = sessions().find(25);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->session, "session 15");
  EXPECT_EQ(reader->process, (ProcessId{20, 77}));
  EXPECT_EQ(reader->command, "worker");
}

TEST_F(ReaderSessionTest, ANameMayHoldAnything) {
  add(20, 15, "a) R 1 1 1 (b");
  EXPECT_EQ(session_of(20), "session 15");
  EXPECT_EQ(sessions().find(20)->command, "a) R 1 1 1 (b");
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

// In a container the session's leader may be outside: then getsid() is 0.
TEST_F(ReaderSessionTest, InTheRealProcAChildSharesTheSessionUntilItLeavesIt) {
  const ReaderSessions real;
  const auto own = real.find(getpid());
  ASSERT_TRUE(own);
  const pid_t session = getsid(0);
  EXPECT_EQ(own->session,
            session == 0 ? std::string(kInvisibleSession) : "session " + std::to_string(session));
  std::optional<Reader> of_thread;
  std::thread([&] { of_thread = real.find(gettid()); }).join();
  ASSERT_TRUE(of_thread);
  EXPECT_EQ(of_thread->process, own->process);

  const pid_t child = fork();
  if (child == 0) {
    setsid();
    while (true) pause();
  }
  EXPECT_TRUE(test::eventually([&] {
    const auto reader = real.find(child);
    return reader && reader->session == "session " + std::to_string(child);
  }));
  const ProcessId process = real.find(child)->process;
  EXPECT_FALSE(real.is_gone(process));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(real.is_gone(process));
}

}  // namespace
}  // namespace weightfs::fs
