#include "store/inspect/export.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"

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

}  // namespace

void export_version(History& history, std::uint64_t version, const filesystem::path& directory,
                    const Context& context, const Progress& progress,
                    const kernels::SharedCoder& coder) {
  const filesystem::path target = normal(directory);
  check_target(target);
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
  fsync_directory(target.parent_path());
}

}  // namespace weightfs
