// pin, unpin: versions that a mount of this host keeps.

#include <fmt/format.h>

#include "fs/client/mount_control.hpp"
#include "fs/commands/command_context.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kPinTimeout{30};

/// Fetches the version first if it is not here.
std::uint64_t pin(Call& call, const MountControl& mount, std::uint64_t version,
                  const Context& context) {
  try {
    return mount.pin({.version = version}, context.within(kPinTimeout));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found || version == 0) throw;
  }
  static_cast<void>(mount.wait_whole(version, context, call.progress()));
  return mount.pin({.version = version}, context.within(kPinTimeout));
}

}  // namespace

int run_pin(Call& call) {
  const MountControl mount(call.options.target);
  const Follow word = call.options.version.value_or(Follow{});
  const std::uint64_t wanted = word.kind == Follow::Kind::latest
                                   ? 0
                                   : number_at(call, mount.latest(), word);  // 0: the latest at
                                                                             // that time
  const StopSignals signals;
  const std::uint64_t version = pin(call, mount, wanted, Context{.stop = signals.token()});
  call.print(
      {{"mountpoint", mount.mount_point().string()}, {"version", version}},
      fmt::format("version {} is kept at {}; to release it: weightfs unpin {} --version {}\n",
                  version, mount.path_of(version), mount.mount_point().string(), version));
  return 0;
}

int run_unpin(Call& call) {
  const MountControl mount(call.options.target);
  UnpinRequest request;
  if (call.options.version)
    request.version = number_at(call, mount.latest(), *call.options.version);
  if (!call.options.session.empty()) request.session = call.options.session;
  const StopSignals signals;
  const Context context = Context{.stop = signals.token()}.within(kPinTimeout);
  const std::uint64_t ended = mount.unpin(request, context);
  call.print({{"mountpoint", mount.mount_point().string()}, {"ended", ended}},
             fmt::format("{} ended\n", count_text(ended, "pin")));
  return 0;
}

}  // namespace weightfs::fs
