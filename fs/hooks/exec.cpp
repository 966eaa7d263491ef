#include "fs/hooks/exec.hpp"

#include <fmt/format.h>

#include <cstring>

#include "store/base/error.hpp"
#include "store/os/child_process.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kExecShownMax = 300;
constexpr auto kExecEndPatience = std::chrono::seconds(10);  // after SIGKILL

/// The last non-empty line, truncated.
std::string last_line(const std::string& output) {
  const std::size_t last = output.find_last_not_of(" \t\r\n");
  if (last == std::string::npos) return "";
  const std::size_t before = output.find_last_of("\r\n", last);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return output.substr(begin, std::min(last + 1 - begin, kExecShownMax));
}

std::string end_text(const ChildEnd& end) {
  std::string text = end.signal != 0 ? fmt::format("was killed by {}", strsignal(end.signal))
                                     : fmt::format("ended with exit code {}", end.exit_code);
  const std::string said = last_line(end.output);
  return said.empty() ? text + " without output" : text + ": " + said;
}

}  // namespace

ExecHook::ExecHook(const HookOptions& spec, std::string repository,
                   std::filesystem::path mount_point, HookMemory memory)
    : argv_(spec.argv),
      repository_(std::move(repository)),
      mount_point_(std::move(mount_point)),
      memory_(std::move(memory)) {}

std::optional<std::uint64_t> ExecHook::find_reported(const Context&) { return std::nullopt; }

void ExecHook::tell(const HookTarget& target, const Context& context) {
  const ChildPlan plan{
      .argv = argv_,
      .environment = {{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                       "LANG=C.UTF-8", fmt::format("WEIGHTFS_VERSION={}", target.version),
                       "WEIGHTFS_PATH=" + target.path.string(), "WEIGHTFS_TAG=" + target.tag,
                       "WEIGHTFS_URL=" + repository_,
                       "WEIGHTFS_MOUNTPOINT=" + mount_point_.string()}},
      .directory = "/",
      .ends_group = true,
      .started = memory_.save};
  end_left_child(memory_.find(), context.within(kExecEndPatience));
  memory_.save("");  // it is gone; and who cannot remember this could not remember the next one
  const ChildEnd end = run_child_process(plan, context);
  if (!end.ok()) throw Error(ErrorCode::io, fmt::format("{} {}", argv_[0], end_text(end)));
}

}  // namespace weightfs::fs
