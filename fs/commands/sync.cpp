// sync: the versions as ordinary files, kept up to date, without FUSE and without root.

#include <fmt/format.h>

#include <ostream>

#include "fs/commands/bucket_choice.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/directory/sync_service.hpp"
#include "store/bucket/bucket.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {
namespace {

SyncServiceOptions service_options(const Options& options) {
  const Target target{canonical_url(options.target), {}, {}};
  return {.url = target.url,
          .bucket = bucket_options_for(options, target),
          .directory = std::filesystem::absolute(options.directory),
          .store = options.store.empty() ? options.store : std::filesystem::absolute(options.store),
          .limits = options.limits,
          .poll = options.poll,
          .follow = options.follow,
          .gpu = options.gpu,
          .hooks = options.hooks,
          .once = options.once,
          .warm = options.warm,
          .command = command_again("sync", target.url, options.directory, options.flags)};
}

Json to_json(const SyncReady& ready, const SyncServiceOptions& options) {
  return {{"directory", ready.directory.string()},
          {"url", options.url},
          {"version", ready.version},
          {"follow", to_string(options.follow)},
          {"waiting", ready.waiting ? Json(describe(options.follow)) : Json(nullptr)},
          {"pid", ready.pid},
          {"store", ready.store.string()},
          {"offline", ready.offline},
          {"gpu_failure", ready.gpu_failure.empty() ? Json(nullptr) : Json(ready.gpu_failure)}};
}

std::string to_text(const SyncReady& ready, const SyncServiceOptions& options) {
  const std::string directory = ready.directory.string();
  const bool is_done = options.once && !ready.waiting;
  std::string text = fmt::format(
      "{} {} {}: {}\n", directory, is_done ? "is up to date with" : "follows", options.url,
      ready.version == 0 ? "no version yet" : fmt::format("version {}", ready.version));
  if (!ready.gpu_failure.empty()) text += fmt::format("no GPU: {}\n", ready.gpu_failure);
  if (ready.offline) text += "the bucket is out of reach; the store's versions are shown\n";
  if (ready.waiting) {
    text += fmt::format("{} does not exist yet\n", describe(options.follow));
  }
  if (ready.version == 0) return text;
  return text + fmt::format("serve: vllm serve {}/latest\n", directory);
}

}  // namespace

int run_sync(Call& call) {
  const SyncServiceOptions options = service_options(call.options);
  run_sync_service(
      options,
      [&](const SyncReady& ready) {
        call.print(to_json(ready, options), to_text(ready, options));
        call.output.out.flush();
      },
      call.progress());
  return 0;
}

}  // namespace weightfs::fs
