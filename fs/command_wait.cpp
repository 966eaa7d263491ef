// wait: until a version is in the bucket and opens at a mount of this host, or all of it is here.

#include <fmt/format.h>

#include "fs/mount_control.hpp"
#include "fs/mount_status.hpp"
#include "fs/verbs.hpp"
#include "store/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};

WaitFor wait_for(const Options& options) {
  WaitFor what;
  if (!options.tag.empty()) what.tag = options.tag;
  if (options.version_a != 0) what.version = options.version_a;
  what.newer_than = options.newer_than;
  return what;
}

std::string name_of(const WaitFor& what) {
  if (what.tag) return *what.tag;
  if (what.version) return fmt::format("version {}", *what.version);
  return fmt::format("a version above {}", what.newer_than.value_or(0));
}

bool is_empty(const WaitFor& what) { return !what.tag && !what.version && !what.newer_than; }

/// Until every byte is here; `version`: of this one, or of what `latest` is.  Tells how far it is,
/// where that is shown.
WaitEnd wait_whole(const MountControl& mount, std::optional<std::uint64_t> version,
                   const Context& context, const Progress& progress) {
  const WaitFor what{.version = version, .ready = true};
  const std::string name = version ? fmt::format("all of version {}", *version) : "all of latest";
  while (progress) {
    try {
      return mount.wait(what, name, context.within(kLookInterval));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out || Clock::now() >= context.deadline) throw;
    }
    mount.tell_partial(version, progress);
  }
  return mount.wait(what, name, context);
}

}  // namespace

int run_wait(Call& call) {
  const MountControl mount(call.options.target);
  const StopSignals signals;
  const WaitFor what = wait_for(call.options);
  Context context{.stop = signals.token()};
  if (call.options.timeout) context = context.within(*call.options.timeout);
  WaitEnd end;
  if (!is_empty(what)) end = mount.wait(what, name_of(what), context);
  if (call.options.ready) {
    const auto version = is_empty(what) ? std::nullopt : std::optional(end.version);
    end = wait_whole(mount, version, context, call.progress());
  }
  const std::string path = mount.path_of(end.version);
  call.print(
      {{"mountpoint", mount.mount_point().string()}, {"version", end.version}, {"path", path}},
      fmt::format("version {} is at {}\n", end.version, path));
  return 0;
}

}  // namespace weightfs::fs
