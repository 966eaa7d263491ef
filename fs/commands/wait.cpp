// wait: until a version is in the bucket and can be opened at a mount of this host, or all of it is
// here.

#include <fmt/format.h>

#include "fs/client/mount_control.hpp"
#include "fs/commands/command_context.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

/// A tag given to --version means the same as with --tag, since it may be a hand-over's.
WaitFor wait_for_version(const Follow& word, bool ready) {
  switch (word.kind) {
    case Follow::Kind::version:
      return {.version = word.version};
    case Follow::Kind::tag:
      return {.tag = word.tag};
    case Follow::Kind::latest:
      break;
  }
  return ready ? WaitFor{} : WaitFor{.newer_than = 0};
}

WaitFor wait_for(Call& call, const MountControl& mount) {
  const Options& options = call.options;
  if (!options.wait.tag.empty()) return {.tag = options.wait.tag};
  if (options.version) return wait_for_version(*options.version, options.wait.ready);
  if (options.wait.newer_than)
    return {.newer_than = number_at(call, mount.latest(), *options.wait.newer_than)};
  return {};
}

std::string name_of(const WaitFor& what) {
  if (what.tag) return fmt::format("the tag {}", *what.tag);
  if (what.version) return fmt::format("version {}", *what.version);
  return fmt::format("a version above {}", what.newer_than.value_or(0));
}

bool is_empty(const WaitFor& what) { return !what.tag && !what.version && !what.newer_than; }

}  // namespace

int run_wait(Call& call) {
  if (call.options.wait.replicas != 0) return run_wait_replicas(call);
  const MountControl mount(call.options.target);
  const WaitFor what = wait_for(call, mount);
  const StopSignals signals;
  Context context{.stop = signals.token()};
  if (call.options.wait.timeout) context = context.within(*call.options.wait.timeout);
  call.tell_wait(mount.describe_wait(is_empty(what) ? "all of latest" : name_of(what)));
  WaitEnd end;
  if (!is_empty(what)) end = mount.wait(what, name_of(what), context);
  if (call.options.wait.ready) {
    const auto version = is_empty(what) ? std::nullopt : std::optional(end.version);
    end = mount.wait_whole(version, context, call.progress());
  }
  const std::string path = mount.path_of(end.version);
  call.print(
      {{"mountpoint", mount.mount_point().string()}, {"version", end.version}, {"path", path}},
      fmt::format("version {} is at {}\n", end.version, path));
  return 0;
}

}  // namespace weightfs::fs
