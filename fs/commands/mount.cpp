// mount, umount.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <ostream>
#include <string_view>

#include "fs/base/coder_choice.hpp"
#include "fs/base/text_table.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/client/status_lines.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/host_choice.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/daemon/daemon.hpp"
#include "fs/daemon/start_daemon.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/mount/mount_point.hpp"
#include "fs/mount/mount_users.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kPidTimeout{2};

constexpr std::chrono::seconds kUnmountTimeout{10};
constexpr std::chrono::seconds kLazyEndTimeout{2};

// ---- mount ----

MountOptions mount_options(const Options& options) {
  MountOptions mount = options.mount;
  mount.mount_point = std::filesystem::absolute(options.directory);
  mount.writing.gc = {.is_on = options.gc.in_background,
                      .collect = {options.gc.keep, options.gc.grace, {}},
                      .interval = options.gc.interval};
  mount.writing.part = options.part;
  mount.writing.part_wait = options.part_wait;
  return mount;
}

/// --again is to find the token where the launcher's environment is no more.
void take_run(Options& options) {
  if (!options.mount.writer || !options.part.is_part()) return;
  const PartChoice choice = part_choice(options);
  check_choice(choice, "TAG");  // each hand-over has a tag of its own
  if (options.part.run.empty()) options.flags.push_back("--run=" + choice.run);
  options.part = choice;
}

Json to_json(const MountReady& ready, const HostOptions& host, const MountOptions& options) {
  return {{"mountpoint", ready.mount_point.string()},
          {"url", host.url},
          {"writer", options.writer},
          {"version", ready.version},
          {"partial", ready.is_partial},
          {"follow", to_string(host.follow.what)},
          {"pid", ready.pid},
          {"serve", {{"mode", ready.serve}, {"why", ready.why}}},
          {"store", ready.store.string()},
          {"log", ready.log.empty() ? Json(nullptr) : Json(ready.log.string())},
          {"offline", ready.offline},
          {"notes", ready.notes},
          {"gpu_failure", ready.gpu_failure.empty() ? Json(nullptr) : Json(ready.gpu_failure)}};
}

/// The user's next step, as a line.
std::string next_step(const MountReady& ready, const HostOptions& host,
                      const MountOptions& options) {
  const std::string mount_point = ready.mount_point.string();
  if (options.writer) {
    return fmt::format("save into {0}/staging/NAME, then: mv {0}/staging/NAME {0}/publish/NAME\n",
                       mount_point);
  }
  if (ready.version == 0 && host.follow.what.kind != Follow::Kind::latest)
    return fmt::format("waiting for {}\n", describe(host.follow.what));
  if (ready.version == 0) return fmt::format("publish with: weightfs publish {} DIR\n", host.url);
  return fmt::format("serve: vllm serve {}/latest\n", mount_point);
}

std::string to_text(const MountReady& ready, const HostOptions& host, const MountOptions& options) {
  std::string text = fmt::format(
      "mounted {} at {}: {}, served by {}, pid {}\n", host.url, ready.mount_point.string(),
      ready.version == 0 ? "no version yet" : fmt::format("version {}", ready.version), ready.serve,
      ready.pid);
  if (!ready.why.empty()) text += fmt::format("no passthrough: {}\n", ready.why);
  for (const std::string& note : ready.notes) text += note + "\n";
  if (!ready.gpu_failure.empty()) text += fmt::format("no GPU: {}\n", ready.gpu_failure);
  if (ready.is_partial) {
    text += fmt::format(
        "version {} streams in while it is read; to wait for all of it: weightfs wait {} --ready\n",
        ready.version, ready.mount_point.string());
  }
  if (ready.offline) text += "the bucket is unreachable; serving the store's versions\n";
  return text + next_step(ready, host, options);
}

/// mount -a compares fstab with what is mounted, but not as URLs: file:///x/ is file:///x.
bool is_mounted(const HostOptions& host, const MountOptions& options) {
  const auto mount = find_mount(options.mount_point);
  return mount && mount->type == kMountType && mount->source == host.url &&
         liveness_of(mount->path) == Liveness::alive;
}

// ---- umount ----

/// The process behind a mount, as a descriptor, which never refers to another process.
struct DaemonProcess {
  int pid = 0;
  File pidfd;
  bool answers = true;            // with a pid: it exists
  Json queued = Json::array();    // names of hand-overs, as it says
  std::string queued_lines = {};  // what to say of them
};

DaemonProcess watch_process(int pid) {
  return {pid, File(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
}

/// Who made a mount serves it.  Not the owner of /proc/PID, which is root's for a process that may
/// leave no core file.
bool is_process_of(unsigned user, std::uint64_t pid) {
  constexpr std::string_view kUid = "Uid:\t";  // the real one comes first
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kUid)) continue;
    unsigned uid = 0;
    const auto read = std::from_chars(line.data() + kUid.size(), line.data() + line.size(), uid);
    return read.ec == std::errc() && uid == user;
  }
  return false;
}

/// All that is taken from the status, before anything is done: it may be another user's, and say
/// anything.
DaemonProcess read_daemon(const MountInfo& mount) {
  const std::string what = mount.path.string();
  const Json status = parse_json(read_status_of_other(mount, kPidTimeout), what);
  const std::uint64_t pid = json_uint(status, "pid", what);
  DaemonProcess daemon;
  if (is_process_of(mount.user, pid)) daemon = watch_process(static_cast<int>(pid));
  daemon.queued = queued_names(status);
  daemon.queued_lines = queued_text(status);
  return daemon;
}

/// Returns: no daemon if the mount is dead, or its pid is unknown.
DaemonProcess find_daemon(const MountInfo& mount) {
  try {
    return read_daemon(mount);
  } catch (const Json::exception&) {
    return {};  // something answers there, which is no daemon of weightfs
  } catch (const Error& error) {
    DaemonProcess daemon;
    const auto record = find_mount_record(mount.path);
    if (error.code() == ErrorCode::timed_out && record) daemon = watch_process(record->pid);
    daemon.answers = false;
    return daemon;
  }
}

/// Returns: true if the process has ended in time.
bool wait_end(const DaemonProcess& daemon, std::chrono::milliseconds timeout) {
  if (!daemon.pidfd) return true;
  const auto deadline = Clock::now() + timeout;
  pollfd waiting{.fd = daemon.pidfd.fd(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    ready = poll(&waiting, 1, static_cast<int>(std::max<long>(left, 0)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

/// What keeps the file system of an unmounted mount, and what to do about it, for the end of a
/// message; empty if nothing is visible here.
std::string describe_copies(const std::vector<MountCopies>& copies) {
  std::string text;
  for (const MountCopies& copy : copies) {
    std::vector<std::string> words{"umount", "--recursive"};
    for (const auto& path : copy.paths) words.push_back(path.string());
    const std::string command = shell_line(words);
    const std::string at = fmt::format("{}", fmt::join(words.begin() + 2, words.end(), ", "));
    text += copy.pids.empty()
                ? fmt::format("; it is still mounted at {}; run: {}", at, command)
                : fmt::format(
                      "; another mount namespace, of {}, still has it at {}; end what runs "
                      "there, or run: nsenter -t {} -m {}",
                      describe_users(copy.pids), at, copy.pids.front(), command);
  }
  return text;
}

}  // namespace

int run_mount(Call& call) {
  if (call.options.again) return run_mount_again(call);
  Options given = call.options;
  take_run(given);
  const HostOptions host = host_options(given, "mount");
  const MountOptions options = mount_options(given);
  const auto& helper = call.options.helper;
  if (helper && (helper->is_fake || is_mounted(host, options))) return 0;
  const auto print = [&](const MountReady& ready) {
    if (helper && !helper->is_verbose) return;
    call.print(to_json(ready, host, options), to_text(ready, host, options));
    call.output.out.flush();
  };
  if (options.foreground) {
    run_daemon(host, options, {.logging = {}, .ready = print}, call.progress());
  } else {
    print(start_daemon(host, options, call.progress()));
  }
  return 0;
}

int run_umount(Call& call) {
  const MountInfo mount = get_mount(call.options.target);
  const DaemonProcess daemon = find_daemon(mount);
  unmount(mount.path, call.options.lazy, daemon.answers ? Answering::yes : Answering::no);
  if (!daemon.answers) remove_mount_record(mount.path);
  const bool is_silent = !daemon.answers && daemon.pidfd;
  const bool ended =
      !is_silent && wait_end(daemon, call.options.lazy ? kLazyEndTimeout : kUnmountTimeout);
  if (!ended && !is_silent && !call.options.lazy) {
    throw Error(ErrorCode::timed_out,
                fmt::format("{} is unmounted, but its daemon, pid {}, has not ended within {} s{}",
                            mount.path.string(), daemon.pid, kUnmountTimeout.count(),
                            describe_copies(copies_of(mount))));
  }
  std::string note;
  if (is_silent) {
    note = fmt::format(
        "pid {} does not answer, and keeps its store locked until it continues or is killed\n",
        daemon.pid);
  } else if (!ended) {
    note = fmt::format("pid {} serves files that are still open, and then ends\n", daemon.pid);
  }
  if (!daemon.queued_lines.empty()) note += daemon.queued_lines + "\n";
  call.print({{"mountpoint", mount.path.string()},
              {"pid", daemon.pid},
              {"ended", ended},
              {"queued", daemon.queued}},
             fmt::format("unmounted {}\n{}", mount.path.string(), note));
  return 0;
}

}  // namespace weightfs::fs
