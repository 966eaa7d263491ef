// Pass world: processes that open files through symlinks, in the way the kernel resolves them, with
// a clock and a repository that the tests control.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fs/passes/passes.hpp"

namespace weightfs::fs {

class PassWorld : public Processes {
 public:
  struct Process {
    std::string session;
    BootTime started{};
    pid_t parent = 0;
    uid_t uid = 0;
    bool is_gone = false;
    std::multiset<std::uint64_t> open;  // handles
    std::set<std::uint64_t> mapped;     // versions
  };
  static constexpr std::uint32_t kConfig = 100, kIndex = 101;

  explicit PassWorld(std::size_t shards, PassTimes times = {})
      : passes(times, *this), shards_(shards) {}

  /// A process that starts now.
  pid_t start(const std::string& session, pid_t parent = 0, uid_t uid = 0) {
    const pid_t pid = ++last_pid_;
    alive_[session]++;
    processes[pid] = {
        .session = session, .started = now, .parent = parent, .uid = uid, .open = {}, .mapped = {}};
    return pid;
  }

  /// Ends a process; everything that it has open is closed.
  void end(pid_t pid) {
    close(pid);
    Process& process = processes.at(pid);
    if (!std::exchange(process.is_gone, true)) alive_.at(process.session)--;
  }

  /// A READLINK.
  std::uint64_t link(pid_t pid, const std::string& name = "latest") {
    return passes.told(name, reader(pid), newest, LinkUse::unknown, now);
  }
  /// A readlink(2).
  std::uint64_t read_link(pid_t pid, const std::string& name = "latest") {
    return passes.told(name, reader(pid), newest, LinkUse::text, now);
  }
  /// stat(2) of a file through it.
  std::uint64_t look(pid_t pid, const std::string& name = "latest") {
    return passes.told(name, reader(pid), newest, LinkUse::look, now);
  }

  /// open(2) through a symlink, like the kernel: repeated once if ESTALE is returned.
  /// Returns: the version it got.
  std::uint64_t open(pid_t pid, std::uint32_t file, const std::string& name = "latest") {
    return open_told(pid, file, link(pid, name), name);
  }
  /// The same, for a walk that was told this version earlier.
  std::uint64_t open_told(pid_t pid, std::uint32_t file, std::uint64_t told,
                          const std::string& name = "latest") {
    PassOpen request = request_of(pid, told, file);
    request.link = name;
    request.was_newest = told == newest || told == told_newest;
    for (int tries = 0; tries < 2; tries++) {
      const Passes::Opened opened = passes.opened(request, now);
      if (opened.wanted == 0) {
        is_refused = opened.is_refused;
        take(pid, opened.hold);
        return request.version;
      }
      looked_again++;
      request.version = opened.wanted;
      request.is_retry = true;
    }
    ADD_FAILURE() << "ESTALE reached the caller";
    return 0;
  }
  void open_by_name(pid_t pid, std::uint64_t version, std::uint32_t file) {
    take(pid, passes.opened(request_of(pid, version, file), now).hold);
  }

  void close(pid_t pid) {
    for (const std::uint64_t handle : std::exchange(processes.at(pid).open, {})) {
      passes.released(handle, now);
    }
  }

  void sweep() { passes.sweep(now); }
  void pass_time(BootTime time) {
    now += time;
    sweep();
  }

  [[nodiscard]] bool is_gone(const ProcessId& process) const override {
    return process.pid != 0 && processes.at(process.pid).is_gone;
  }
  [[nodiscard]] std::vector<ProcessId> ancestors(const ProcessId& process) const override {
    std::vector<ProcessId> found;
    if (process.pid == 0) return found;
    for (pid_t pid = processes.at(process.pid).parent; pid != 0; pid = processes.at(pid).parent) {
      found.push_back({pid, 1});
    }
    return found;
  }
  [[nodiscard]] std::set<std::string> find_dead(std::set<std::string> sessions) const override {
    std::erase_if(sessions, [this](const auto& one) { return alive_.at(one) > 0; });
    return sessions;
  }
  [[nodiscard]] bool uses(const std::string& session, std::uint64_t version) const override {
    return std::any_of(processes.begin(), processes.end(), [&](const auto& item) {
      return item.second.session == session && !item.second.is_gone &&
             item.second.mapped.contains(version);
    });
  }

  [[nodiscard]] Reader reader(pid_t pid) const {
    const Process& process = processes.at(pid);
    const BootTime tick = std::chrono::milliseconds(10);
    if (process.session.starts_with("invisible")) {
      return {.session = process.session, .process = {0, process.uid}, .uid = process.uid};
    }
    return {.session = process.session,
            .process = {pid, 1},
            .command = "loader",
            .uid = process.uid,
            .started = process.started - process.started % tick};
  }

  BootTime now{std::chrono::seconds(100000)};
  std::uint64_t newest = 42;
  std::uint64_t told_newest = 0;  // by a READLINK some time ago
  std::map<pid_t, Process> processes;
  Passes passes;
  std::size_t absent_count = 0;  // the last shards
  unsigned looked_again = 0;
  bool is_refused = false;  // the last OPEN

 private:
  [[nodiscard]] PassOpen request_of(pid_t pid, std::uint64_t version, std::uint32_t file) const {
    return {.reader = reader(pid),
            .version = version,
            .file = file,
            .name = file,
            .kind = file < kConfig ? PassFile::weights : PassFile::small,
            .weights_count = shards_,
            .absent_count = absent_count,
            .is_absent = file < kConfig && file > shards_ - absent_count,
            .newest = newest};
  }
  void take(pid_t pid, const PassHold& hold) {
    if (const std::uint64_t handle = passes.hold(hold)) processes.at(pid).open.insert(handle);
  }

  const std::size_t shards_;
  pid_t last_pid_ = 0;
  std::map<std::string, int> alive_;  // processes of each session
};

}  // namespace weightfs::fs
