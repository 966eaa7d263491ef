// wait: until a version is in the bucket and opens at a mount of this host.

#include <fmt/format.h>

#include "fs/mount_control.hpp"
#include "fs/mount_status.hpp"
#include "fs/verbs.hpp"
#include "store/error.hpp"

namespace weightfs::fs {
namespace {

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

}  // namespace

int run_wait(Call& call) {
  const MountControl mount(call.options.target);
  const StopSignals signals;
  const WaitFor what = wait_for(call.options);
  Context context{.stop = signals.token()};
  if (call.options.timeout) context = context.within(*call.options.timeout);
  const WaitEnd end = mount.wait(what, name_of(what), context);
  const std::string path = mount.path_of(end.version);
  call.print(
      {{"mountpoint", mount.mount_point().string()}, {"version", end.version}, {"path", path}},
      fmt::format("version {} is at {}\n", end.version, path));
  return 0;
}

}  // namespace weightfs::fs
