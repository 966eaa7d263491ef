#include "store/inspect/export.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/new_file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

/// The directory without a trailing '/', as a path that has a parent.
filesystem::path normal(const filesystem::path& directory) {
  filesystem::path path = filesystem::absolute(directory).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void check_target(const filesystem::path& directory) {
  std::error_code error;
  const auto status = filesystem::symlink_status(directory, error);
  if (!filesystem::exists(status)) return;
  const bool usable = filesystem::is_directory(status) && filesystem::is_empty(directory, error);
  if (usable && !error) return;
  throw Error(
      ErrorCode::exists,
      fmt::format("{} exists and is not an empty directory; choose another directory, or remove it",
                  directory.string()));
}

/// A file to be copied.
struct SourceFile {
  filesystem::path path;  // below the version
  std::uint64_t size_bytes = 0;
};

std::vector<SourceFile> sources_in(const filesystem::path& version) {
  std::vector<SourceFile> files;
  for (const auto& entry : filesystem::recursive_directory_iterator(version)) {
    if (!entry.is_regular_file()) continue;
    files.push_back({entry.path().lexically_relative(version), entry.file_size()});
  }
  return files;
}

std::uint64_t total_bytes(const std::vector<SourceFile>& files) {
  std::uint64_t bytes = 0;
  for (const SourceFile& file : files) bytes += file.size_bytes;
  return bytes;
}

/// Makes `to`, which must not exist, with mode 0644 and the source's time, and syncs it.
/// Returns: the bytes copied.
std::uint64_t copy_file(const filesystem::path& from, const filesystem::path& to,
                        const Context& context, ProgressCounter& counter) {
  constexpr std::size_t kCopyBytes = 4u << 20;
  const File source = File::open(from, O_RDONLY);
  struct stat attributes {};
  if (::fstat(source.fd(), &attributes) != 0) throw_errno(errno, "stat " + from.string());
  const File target = File::open(to, O_WRONLY | O_CREAT | O_EXCL, 0644);
  Bytes buffer(kCopyBytes);
  const auto size = static_cast<std::uint64_t>(attributes.st_size);
  for (std::uint64_t at = 0; at < size;) {
    context.check("copying " + from.string());
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, size - at));
    const std::span<std::byte> piece(buffer.data(), part);
    if (!read_at(source.fd(), at, piece, from)) {
      throw Error(ErrorCode::io, from.string() + " is shorter than its size");
    }
    write_at(target.fd(), at, piece, to);
    at += part;
    counter.add(part);
  }
  const timespec times[2] = {attributes.st_mtim, attributes.st_mtim};
  if (::fchmod(target.fd(), 0644) != 0 || ::futimens(target.fd(), times) != 0) {
    throw_errno(errno, "set mode and time of " + to.string());
  }
  fsync_file(target.fd(), to);
  return size;
}

}  // namespace

void export_version(History& history, std::uint64_t version, const filesystem::path& directory,
                    const Context& context, const Progress& progress,
                    const kernels::SharedCoder& coder) {
  const filesystem::path target = normal(directory);
  check_target(target);
  planning_again(history.skips(), [&] {
    const Plan plan = make_plan(history, history.get(version, context), {}, context);
    ScratchDirectory partial(target.parent_path(),
                             fmt::format(".{}.partial-", target.filename().string()));
    WriteOptions options;
    options.directory = partial.path();
    options.spool = target.parent_path();
    options.mode = 0644;
    options.coder = coder;
    write_version(plan, history.repository(), options, context, progress);
    partial.keep_as(target);
  });
  fsync_directory(target.parent_path());
}

std::uint64_t copy_version(const filesystem::path& version, const filesystem::path& directory,
                           const Context& context, const Progress& progress) {
  const filesystem::path target = normal(directory);
  check_target(target);
  const std::vector<SourceFile> files = sources_in(version);
  ProgressCounter counter(progress, "copying", total_bytes(files));
  ScratchDirectory partial(target.parent_path(),
                           fmt::format(".{}.partial-", target.filename().string()));
  for (const SourceFile& file : files) {
    const filesystem::path to = partial.path() / file.path;
    filesystem::create_directories(to.parent_path());
    copy_file(version / file.path, to, context, counter);
  }
  partial.keep_as(target);
  fsync_directory(target.parent_path());
  return total_bytes(files);
}

std::uint64_t copy_delta(const filesystem::path& delta, const filesystem::path& file,
                         const Context& context, const Progress& progress) {
  const NewFile target(file);
  ProgressCounter counter(progress, "copying", filesystem::file_size(delta));
  const std::uint64_t size = copy_file(delta, target.partial(), context, counter);
  target.keep();
  return size;
}

}  // namespace weightfs
