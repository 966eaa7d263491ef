// sync: the versions as ordinary files, kept up to date, without FUSE or root.

#include <fmt/format.h>

#include <ostream>

#include "fs/commands/command_context.hpp"
#include "fs/commands/host_choice.hpp"
#include "fs/directory/sync_service.hpp"
#include "store/catalog/follow.hpp"

namespace weightfs::fs {
namespace {

SyncServiceOptions service_options(const Options& options) {
  SyncServiceOptions sync = options.sync;
  sync.directory = std::filesystem::absolute(options.directory);
  return sync;
}

Json to_json(const SyncReady& ready, const HostOptions& host) {
  return {{"directory", ready.directory.string()},
          {"url", host.url},
          {"version", ready.version},
          {"follow", to_string(host.follow.what)},
          {"waiting", ready.waiting ? Json(describe(host.follow.what)) : Json(nullptr)},
          {"pid", ready.pid},
          {"store", ready.store.string()},
          {"offline", ready.offline},
          {"gpu_failure", ready.gpu_failure.empty() ? Json(nullptr) : Json(ready.gpu_failure)}};
}

std::string to_text(const SyncReady& ready, const HostOptions& host, bool once) {
  const std::string directory = ready.directory.string();
  const bool is_done = once && !ready.waiting;
  std::string text =
      fmt::format("{} {} {}: {}\n", directory, is_done ? "is up to date with" : "follows", host.url,
                  ready.version == 0 ? "no version yet" : fmt::format("version {}", ready.version));
  if (!ready.gpu_failure.empty()) text += fmt::format("no GPU: {}\n", ready.gpu_failure);
  if (ready.offline) text += "the bucket is unreachable; showing the store's versions\n";
  if (ready.waiting) {
    text += fmt::format("{} does not exist yet\n", describe(host.follow.what));
  }
  if (ready.version == 0) return text;
  return text + fmt::format("serve: vllm serve {}/latest\n", directory);
}

}  // namespace

int run_sync(Call& call) {
  const HostOptions host = host_options(call.options, "sync");
  const SyncServiceOptions options = service_options(call.options);
  run_sync_service(
      host, options,
      [&](const SyncReady& ready) {
        call.print(to_json(ready, host), to_text(ready, host, options.once));
        call.output.out.flush();
      },
      call.progress());
  return 0;
}

}  // namespace weightfs::fs
