// mount --again: a mount whose daemon is gone, as its record says.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "fs/cli/parse_options.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/mount/mount_point.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

std::optional<MountInfo> find_weightfs(const std::filesystem::path& path) {
  auto mount = topmost_at(path);
  return mount && mount->type == kMountType ? std::move(mount) : std::nullopt;
}

[[noreturn]] void throw_silent(const std::filesystem::path& path,
                               const std::optional<MountRecord>& record) {
  const std::string pid = record ? fmt::format(", pid {},", record->pid) : "";
  throw Error(ErrorCode::timed_out,
              fmt::format("the daemon of {}{} does not answer: it is stopped, or hangs; kill it "
                          "(kill -9) and mount again",
                          path.string(), pid));
}

MountRecord require_record(const std::filesystem::path& path,
                           const std::optional<MountInfo>& mount) {
  auto record = find_mount_record(path);
  if (record && !record->words.empty()) return std::move(*record);
  if (record) {
    throw Error(ErrorCode::not_found,
                fmt::format("the record of {} is of an older release, without what --again needs; "
                            "run: {}",
                            path.string(), record->command));
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format(
          "there is no record of a mount at {} that this user may read: a record goes "
          "with an orderly umount, and with a restart of the host; mount it as it was made, "
          "weightfs mount {} {} and its options",
          path.string(), mount ? mount->source : "URL", path.string()));
}

/// The recorded command line, with what this one says of how to run it.
Options options_again(const MountRecord& record, const Options& given) {
  std::vector<const char*> argv{"weightfs"};
  for (const std::string& word : record.words) {
    if (word != "--foreground") argv.push_back(word.c_str());
  }
  if (given.mount.foreground) argv.push_back("--foreground");
  Options options = parse_options(static_cast<int>(argv.size()), argv.data());
  if (!options.error.empty()) {
    throw Error(ErrorCode::invalid,
                fmt::format("the recorded command of {} is not valid any more: "
                            "{}; it is: {}",
                            record.mount_point.string(), options.error, record.command));
  }
  options.json = given.json;
  options.quiet = given.quiet;
  return options;
}

}  // namespace

int run_mount_again(Call& call) {
  const std::filesystem::path path = canonical_mount_point(call.options.directory);
  const auto mount = find_weightfs(path);
  const Liveness liveness = mount ? liveness_of(path) : Liveness::dead;
  if (liveness == Liveness::silent) throw_silent(path, find_mount_record(path));
  if (liveness == Liveness::alive) {
    const auto record = find_mount_record(path);
    const int pid = record ? record->pid : 0;
    call.print({{"mountpoint", path.string()},
                {"url", mount->source},
                {"pid", pid == 0 ? Json(nullptr) : Json(pid)},
                {"already", true}},
               fmt::format("{} is mounted, from {}{}; nothing is done\n", path.string(),
                           mount->source, pid == 0 ? "" : fmt::format(", by pid {}", pid)));
    return 0;
  }
  const MountRecord record = require_record(path, mount);
  restore_environment(record);
  const Options options = options_again(record, call.options);
  if (!options.kernels.empty()) static_cast<void>(kernels::choose_variant(options.kernels));
  Call again(options, call.output);
  return run_mount(again);
}

}  // namespace weightfs::fs
