// pin, unpin: what a mount of this host keeps.

#include <fmt/format.h>

#include "fs/mount_control.hpp"
#include "fs/verbs.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kPinTimeout{30};

}  // namespace

int run_pin(Call& call) {
  const MountControl mount(call.options.target);
  const StopSignals signals;
  const Context context = Context{.stop = signals.token()}.within(kPinTimeout);
  const std::uint64_t version = mount.pin({.version = call.options.version_a}, context);
  call.print({{"mountpoint", mount.mount_point().string()}, {"version", version}},
             fmt::format("version {} is kept at {} until: weightfs unpin {} --version {}\n",
                         version, mount.path_of(version), mount.mount_point().string(), version));
  return 0;
}

int run_unpin(Call& call) {
  const MountControl mount(call.options.target);
  const StopSignals signals;
  const Context context = Context{.stop = signals.token()}.within(kPinTimeout);
  UnpinRequest request;
  if (call.options.version_a != 0) request.version = call.options.version_a;
  if (!call.options.session.empty()) request.session = call.options.session;
  const std::uint64_t ended = mount.unpin(request, context);
  call.print({{"mountpoint", mount.mount_point().string()}, {"ended", ended}},
             fmt::format("{} pin{} ended\n", ended, ended == 1 ? "" : "s"));
  return 0;
}

}  // namespace weightfs::fs
