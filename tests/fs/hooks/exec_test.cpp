#include "fs/hooks/exec.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "store/base/error.hpp"
#include "store/os/child_process.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLong = seconds(60);

class ExecHookTest : public testing::Test {
 protected:
  /// A program of ours; returns its path.
  std::string script(const std::string& body) {
    const auto path = dir_ / ("script-" + std::to_string(scripts_++));
    test::write_text(path, "#!/bin/sh\n" + body);
    chmod(path.c_str(), 0755);
    return path.string();
  }
  static void tell(const std::string& command, const Context& context = Context{}.within(kLong)) {
    ExecHook hook(parse_hook("exec=" + command), "file:///b", "/mnt/w");
    hook.tell({.version = 42, .path = "/mnt/w/versions/42", .tag = "step-42"}, context);
  }
  static std::string failure_of(const std::string& command,
                                const Context& context = Context{}.within(kLong)) {
    try {
      tell(command, context);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  std::string text(const char* name) { return test::read_text(dir_ / name); }
  [[nodiscard]] std::string path(const char* name) const { return (dir_ / name).string(); }

  test::TempDir dir_;
  unsigned scripts_ = 0;
};

TEST_F(ExecHookTest, GivesArgumentsAsTheyAreWithoutAShell) {
  const std::string program = script("printf '%s\\n' \"$@\" > " + path("argv") + "\n");
  tell(program + " a 'b c' '$HOME;*' \"\"");
  EXPECT_EQ(text("argv"), "a\nb c\n$HOME;*\n\n");
}

TEST_F(ExecHookTest, GivesACleanEnvironmentWithTheVersion) {
  setenv("WEIGHTFS_TEST_SECRET", "secret", 1);
  tell(script("/usr/bin/env | sort > " + path("env") + "; pwd > " + path("pwd") + "; cat > " +
              path("stdin") + "\n"));
  unsetenv("WEIGHTFS_TEST_SECRET");
  std::string seen = text("env");
  // What the shell of the script adds itself.
  for (const char* line : {"PWD=/\n", "_=/usr/bin/env\n", "OLDPWD=/\n", "SHLVL=0\n", "SHLVL=1\n"}) {
    if (const auto at = seen.find(line); at != std::string::npos) {
      seen.erase(at, std::string(line).size());
    }
  }
  EXPECT_EQ(seen,
            "LANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
            "WEIGHTFS_MOUNTPOINT=/mnt/w\nWEIGHTFS_PATH=/mnt/w/versions/42\nWEIGHTFS_TAG=step-42\n"
            "WEIGHTFS_URL=file:///b\nWEIGHTFS_VERSION=42\n");
  EXPECT_EQ(text("pwd"), "/\n");
  EXPECT_EQ(text("stdin"), "");
}

TEST_F(ExecHookTest, HasNoDescriptorOfOurs) {
  const int leaked = dup2(STDIN_FILENO, 77);
  ASSERT_EQ(leaked, 77);
  tell(script("ls /proc/self/fd > " + path("fds") + "\n"));
  close(leaked);
  EXPECT_EQ(text("fds").find("77"), std::string::npos) << text("fds");
}

TEST_F(ExecHookTest, AFailureSaysTheExitCodeAndTheLastLine) {
  const std::string program = script("echo first; echo 'no such engine' >&2; exit 3\n");
  EXPECT_EQ(failure_of(program), program + " ended with exit code 3: no such engine");
  const std::string silent = script("exit 4\n");
  EXPECT_EQ(failure_of(silent), silent + " ended with exit code 4 without output");
  const std::string killed = script("kill -9 $$\n");
  EXPECT_EQ(failure_of(killed), killed + " was killed by Killed without output");
  EXPECT_NE(failure_of("/absent/program").find("cannot run /absent/program"), std::string::npos);
}

TEST_F(ExecHookTest, ATimeoutKillsItsWholeGroup) {
  const std::string program = script("sleep 1000 & echo $! > " + path("pid.new") + "\nmv " +
                                     path("pid.new") + " " + path("pid") + "\nwait\n");
  EXPECT_NE(failure_of(program, Context{}.within(milliseconds(700))).find("timed out"),
            std::string::npos);
  ASSERT_TRUE(std::filesystem::exists(path("pid")));
  const pid_t pid = std::stoi(text("pid"));
  EXPECT_TRUE(test::eventually([&] {
    // It may be a zombie for a moment, until init has seen it.
    std::error_code ignored;
    if (kill(pid, 0) != 0) return true;
    const std::string stat = test::read_text("/proc/" + std::to_string(pid) + "/stat");
    return stat.find(") Z") != std::string::npos;
  }));
}

TEST_F(ExecHookTest, AStopEndsItAtOnce) {
  std::stop_source stop;
  const std::string program = script("touch " + path("runs") + "\nexec sleep 1000\n");
  std::jthread stopper([&] {
    EXPECT_TRUE(test::eventually([&] { return std::filesystem::exists(path("runs")); }));
    stop.request_stop();
  });
  const auto begin = Clock::now();
  EXPECT_NE(failure_of(program, {.stop = stop.get_token()}).find("stopped"), std::string::npos);
  EXPECT_LT(Clock::now() - begin, kLong);
}

TEST_F(ExecHookTest, WhatItLeavesBehindDoesNotHoldItUp) {
  const auto begin = Clock::now();
  tell(script("sleep 1000 &\n"));  // has its output open
  EXPECT_LT(Clock::now() - begin, kLong);
}

// As after kill -9 of the daemon: the command lives on, and nobody waits for it.
TEST_F(ExecHookTest, WhatADaemonLeftRunningIsEndedBeforeTheNextOneRuns) {
  const std::string first = script("sleep 1000 &\necho $$ > " + path("pid.new") + "\nmv " +
                                   path("pid.new") + " " + path("pid") + "\nwait\n");
  const std::string next = script("case \"$(cut -d ' ' -f 3 /proc/$(cat " + path("pid") +
                                  ")/stat)\" in ''|Z) touch " + path("alone") + " ;; esac\n");
  std::mutex mutex;  // guards memory
  std::string memory;
  const auto find = [&] {
    const std::lock_guard lock(mutex);
    return memory;
  };
  const HookMemory shared{.find = find, .save = [&](const std::string& id) {
                            const std::lock_guard lock(mutex);
                            memory = id;
                          }};
  const auto run = [&](const std::string& command, const HookMemory& known) {
    ExecHook hook(parse_hook("exec=" + command), "file:///b", "/mnt/w", known);
    hook.tell({.version = 42, .path = "/mnt/w/versions/42", .tag = ""}, Context{}.within(kLong));
  };
  std::string end;
  std::jthread other([&] {
    try {
      run(first, shared);
    } catch (const Error& error) {
      end = error.what();
    }
  });
  EXPECT_TRUE(
      test::eventually([&] { return std::filesystem::exists(path("pid")) && !find().empty(); }));

  std::string another = find();  // a process that got its number later
  another.insert(another.find(' ') + 1, "9");
  EXPECT_NO_THROW(end_left_child(another, {}));
  EXPECT_EQ(kill(std::stoi(text("pid")), 0), 0);

  run(next, shared);
  EXPECT_TRUE(std::filesystem::exists(path("alone")));
  other.join();
  EXPECT_NE(end.find("was killed by Killed"), std::string::npos) << end;
}

// After kill -9 nobody would know that it runs, and a second one would be started.
TEST_F(ExecHookTest, NoneRunsInAStoreThatCannotRememberIt) {
  HookMemory full;
  full.save = [&](const std::string& id) {
    if (!id.empty()) {  // too late
      EXPECT_FALSE(test::eventually([&] { return exists(dir_ / "ran"); }));
    }
    throw Error(ErrorCode::no_space, "the store is full");
  };
  ExecHook hook(parse_hook("exec=" + script("touch " + path("ran") + "\n")), "file:///b", "/mnt/w",
                full);
  try {
    hook.tell({.version = 42, .path = "/mnt/w/versions/42", .tag = ""}, Context{}.within(kLong));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_space);
  }
  EXPECT_FALSE(std::filesystem::exists(path("ran")));
}

TEST_F(ExecHookTest, AFailureIsNoSuccessWhereNobodyMayWaitForChildren) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);  // inherited, perhaps
  const std::string failure = failure_of(script("sleep 1\nexit 3\n"));
  std::signal(SIGCHLD, before);
  EXPECT_NE(failure, "");
}

TEST_F(ExecHookTest, OutputIsBounded) {
  const ChildEnd end =
      run_child_process({.argv = {script("head -c 1000000 /dev/zero | tr '\\0' x; echo end\n")},
                         .environment = {{"PATH=/usr/bin:/bin"}},
                         .output_bytes_max = 1000},
                        Context{}.within(kLong));
  EXPECT_TRUE(end.ok());
  EXPECT_TRUE(end.is_cut);
  EXPECT_EQ(end.output, std::string(996, 'x') + "end\n");
}

}  // namespace
}  // namespace weightfs::fs
