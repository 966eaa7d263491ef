// publish MOUNTPOINT DIR, rollback MOUNTPOINT N: copies DIR to staging/, hands the copy over and
// waits.  A DIR that is in staging/ already is handed over as it is. rebase: resumes after a
// conflict.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "fs/base/text_table.hpp"
#include "fs/client/mount_control.hpp"
#include "fs/commands/command_context.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/checkpoint.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::size_t kCopyBytes = 4u << 20;
constexpr std::chrono::seconds kProgressInterval{1};
constexpr std::string_view kCopyPrefix = ".publish-";

/// Path of `inner` below `outer`; nullopt if it is not below.  Both are canonical.
std::optional<stdfs::path> find_below(const stdfs::path& inner, const stdfs::path& outer) {
  const stdfs::path relative = inner.lexically_relative(outer);
  if (relative.empty() || *relative.begin() == "..") return std::nullopt;
  return relative;
}

void check_writer(const MountControl& mount) {
  if (!json_field(mount.status(), "writer", mount.mount_point().string()).is_null()) return;
  const std::string url = mount.status().at("url").get<std::string>();
  throw Error(ErrorCode::read_only,
              fmt::format("{0} is a reader's mount and cannot publish; mount it with --writer, or "
                          "publish without a mount: weightfs publish {1} DIR",
                          mount.mount_point().string(), url));
}

// ---- the copy ----

/// What has been copied, for the progress.
struct Copied {
  std::uint64_t done_bytes = 0, total_bytes = 0;
};

void copy_file(const CheckpointFile& file, const stdfs::path& from, const stdfs::path& to,
               const Context& context, const Progress& progress, Copied& copied) {
  const File source = File::open(from, O_RDONLY);
  stdfs::create_directories(to.parent_path());
  const File target = File::open(to, O_WRONLY | O_CREAT | O_EXCL, 0666);
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t at = 0; at < file.stamp.size_bytes;) {
    context.check("copying " + from.string());
    const std::size_t size =
        static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, file.stamp.size_bytes - at));
    const std::span<std::byte> piece(buffer.data(), size);
    if (!read_at(source.fd(), at, piece, from)) break;
    write_at(target.fd(), at, piece, to);
    at += size;
    copied.done_bytes += size;
    if (progress) progress("copying", copied.done_bytes, copied.total_bytes);
  }
  if (stamp_of(source.fd()) != file.stamp) {
    throw Error(ErrorCode::busy, fmt::format("{} was written to while it was copied; publish when "
                                             "the trainer has finished",
                                             from.string()));
  }
}

/// Copies only what is published: other files would be returned, and are in DIR anyway.
void copy_checkpoint(const Checkpoint& checkpoint, const stdfs::path& to, const Context& context,
                     const Progress& progress) {
  Copied copied{.done_bytes = 0, .total_bytes = checkpoint.size_bytes()};
  for (const CheckpointFile& file : checkpoint.files) {
    copy_file(file, checkpoint.directory / file.path, to / file.path, context, progress, copied);
  }
}

std::vector<std::string> all_includes(const MountControl& mount, const Options& options) {
  std::vector<std::string> all = mount.status().at("writer").at("include");
  all.insert(all.end(), options.publish.include.begin(), options.publish.include.end());
  return all;
}

/// What the mount's daemon will scan: with --part, shards of other hosts may be missing.
ScanScope scope_of(const MountControl& mount) {
  const Json& writer = mount.status().at("writer");
  return writer.value("part", Json()).is_null() ? ScanScope::whole : ScanScope::part;
}

/// A directory in staging/ that is to be handed over.
struct Staged {
  std::string path;                      // below staging/
  std::optional<ScratchDirectory> copy;  // the rest of it is removed at the end
  std::vector<std::string> unpublished;
};

stdfs::path canonical_directory(const stdfs::path& path) {
  std::error_code error;
  stdfs::path canonical = stdfs::canonical(path, error);
  if (error) throw_errno(error.value(), "open the directory " + path.string());
  return canonical;
}

Staged stage(Call& call, const MountControl& mount, const Context& context) {
  const stdfs::path directory = canonical_directory(call.options.directory);
  const stdfs::path staging = mount.mount_point() / "staging";
  if (find_below(directory, mount.mount_point() / "publish")) {
    throw Error(ErrorCode::busy, fmt::format("{} was already handed over", directory.string()));
  }
  if (const auto path = find_below(directory, staging)) return {path->string(), {}, {}};
  const Checkpoint checkpoint =
      scan_checkpoint(directory, all_includes(mount, call.options), scope_of(mount));
  ScratchDirectory copy(staging, kCopyPrefix);
  copy_checkpoint(checkpoint, copy.path(), context, call.progress());
  const std::string name = copy.path().filename();
  return {name, std::move(copy), checkpoint.unpublished};
}

/// The empty directory of a rollback.
Staged stage_nothing(const MountControl& mount) {
  ScratchDirectory empty(mount.mount_point() / "staging", kCopyPrefix);
  const std::string name = empty.path().filename();
  return {name, std::move(empty), {}};
}

// ---- the wait ----

/// Waits, and reports progress if that is shown.
WaitEnd wait_visibly(const MountControl& mount, std::uint64_t order, const std::string& name,
                     const Context& context, const Progress& progress) {
  while (progress) {
    try {
      return mount.wait({.order = order}, name, context.within(kProgressInterval));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out) throw;
    }
    mount.tell_progress(order, progress);
  }
  return mount.wait({.order = order}, name, context);
}

WaitEnd wait(Call& call, const MountControl& mount, std::uint64_t order, const Context& context) {
  const std::string& tag = call.options.publish.tag;
  try {
    return wait_visibly(mount, order, tag.empty() ? "the version" : tag, context, call.progress());
  } catch (const Error& error) {
    if (!context.stop.stop_requested()) throw;
    const auto version = mount.status().at("version").get<std::uint64_t>();
    const std::string how =
        tag.empty() ? fmt::format("--newer-than {}", version) : fmt::format("--tag {}", tag);
    throw Error(
        ErrorCode::cancelled,
        fmt::format("stopped waiting; the hand-over continues; to wait for it: weightfs wait {} {}",
                    mount.mount_point().string(), how));
  }
}

std::string to_text(const WaitEnd& end, const Staged& staged, const std::string& tag,
                    const std::string& path) {
  std::string text = fmt::format("published version {}", end.version);
  if (!tag.empty()) text += fmt::format(" as {}", tag);
  text += fmt::format(": it is at {}\n", path);
  for (const std::string& left : staged.unpublished) {
    text += fmt::format("not published: {} (--include publishes it too)\n", printable(left));
  }
  if (!staged.copy && !end.left.empty()) {
    text += fmt::format("files that were not published are in staging/{}\n", printable(end.left));
  }
  return text;
}

std::string to_text(const PublishQueue::Rebased& rebased, const std::string& mount_point) {
  std::string text = rebased.newest == 0 ? fmt::format("{}: there is no version yet\n", mount_point)
                                         : fmt::format("{} continues from version {}\n",
                                                       mount_point, rebased.newest);
  for (const std::string& name : rebased.retried) {
    text += fmt::format("publish/{} is retried\n", printable(name));
  }
  return text;
}

/// Settings of the environment and of files are not meant for this command alone.
void warn_of_flags(const Options& options) {
  if (options.gpu_flagged) {
    log_warning(
        "--gpu has no effect here, because the mount's daemon does the coding; pass it to "
        "mount");
  }
  if (options.snapshots_flagged) {
    log_warning(
        "--snapshot-every has no effect here, because the mount's daemon decides; pass it to "
        "mount");
  }
  if (options.bucket_flagged) {
    log_warning(
        "bucket options have no effect here, because the mount's daemon accesses the bucket; "
        "pass them to mount");
  }
}

}  // namespace

int run_rebase(Call& call) {
  const MountControl mount(call.options.target);
  check_writer(mount);
  const StopSignals signals;
  const PublishQueue::Rebased rebased = mount.rebase({.stop = signals.token()});
  const std::string mount_point = mount.mount_point().string();
  call.print(
      {{"mountpoint", mount_point}, {"version", rebased.newest}, {"retried", rebased.retried}},
      to_text(rebased, mount_point));
  return 0;
}

int run_hand_over(Call& call, const stdfs::path& mount_point, const VersionWishes& wishes) {
  const Options& options = call.options;
  const MountControl mount(mount_point);
  check_writer(mount);
  warn_of_flags(options);
  const StopSignals signals;
  const Context context{.stop = signals.token()};
  const Staged staged = wishes.rollback == 0 ? stage(call, mount, context) : stage_nothing(mount);
  const std::uint64_t order = mount.hand_over(
      {.path = staged.path, .name = wishes.tag, .options = {.wishes = wishes}}, context);
  const WaitEnd end = wait(call, mount, order, context);
  const std::string path = mount.path_of(end.version);
  call.print({{"url", mount.status().at("url")},
              {"mountpoint", mount.mount_point().string()},
              {"version", end.version},
              {"tag", options.publish.tag},
              {"path", path},
              {"unpublished", staged.unpublished},
              {"left", staged.copy || end.left.empty() ? Json(nullptr) : Json(end.left)}},
             to_text(end, staged, options.publish.tag, path));
  return 0;
}

}  // namespace weightfs::fs
