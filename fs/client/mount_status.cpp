#include "fs/client/mount_status.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>

#include "fs/base/child_call.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/directory/sync_directory.hpp"
#include "fs/mount/mount_point.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/bucket/bucket.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {
namespace {

/// A ChildCall: copies the file to the pipe.
int copy_file(const char* path, int to) {
  std::array<char, 65536> buffer;
  const int from = ::open(path, O_RDONLY | O_CLOEXEC);
  if (from < 0) return errno;
  while (true) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0) return errno;
    if (got == 0) return 0;
    for (ssize_t written = 0; written < got;) {
      const ssize_t n =
          ::write(to, buffer.data() + written, static_cast<std::size_t>(got - written));
      if (n < 0) return errno;
      written += n;
    }
  }
}

/// Does not look into a dead mount.
std::optional<MountInfo> find_served(const std::filesystem::path& path) {
  auto mount = find_mount(path);
  if (mount) {
    if (mount->type == kMountType) return mount;
    if (is_dead(path)) return std::nullopt;
  }
  const auto directory = find_sync_directory(path);
  if (!directory) return std::nullopt;
  return MountInfo{directory->path, std::string(kDirectoryType), directory->url, 0, 0};
}

/// Says what is mounted at `path`, or that nothing is.
std::string describe(const std::filesystem::path& path) {
  const auto mount = find_mount(path);
  if (!mount) {
    std::error_code ignored;
    const bool exists = std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
    return exists ? "nothing is mounted there" : "it does not exist";
  }
  return fmt::format("{} is mounted there, from {}", mount->type, mount->source);
}

}  // namespace

namespace {

std::string read_file_as(std::optional<ChildUser> as, const std::filesystem::path& path,
                         std::chrono::milliseconds timeout) {
  auto answer = call_in_child(copy_file, path, timeout, as);
  if (!answer) {
    throw Error(ErrorCode::timed_out,
                fmt::format("{} could not be read within {:.1f} s", path.string(),
                            std::chrono::duration<double>(timeout).count()));
  }
  if (answer->error == ENOTCONN || answer->error == ECONNABORTED) {
    throw Error(ErrorCode::unavailable,
                fmt::format("cannot read {}: its daemon is gone", path.string()));
  }
  if (answer->error != 0) throw_errno(answer->error, fmt::format("read {}", path.string()));
  return std::move(answer->text);
}

/// Whether the kernel has kept this process out because the mount is another user's own.
bool is_private(const MountInfo& mount, const Error& error) {
  return error.code() == ErrorCode::permission && mount.type == kMountType &&
         mount.user != ::geteuid();
}

/// The text, once it is JSON.  `read`: returns the text of .weightfs/status.
std::string checked_status(const MountInfo& mount, const std::function<std::string()>& read) {
  try {
    std::string text = read();
    parse_json(text, (mount.path / ".weightfs/status").string());
    return text;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("the daemon of {} is gone; mount again: {}", mount.path.string(),
                              mount_again_command(mount)));
    }
    if (error.code() == ErrorCode::timed_out) {
      throw Error(ErrorCode::timed_out, fmt::format("the daemon of {} does not answer: {}",
                                                    mount.path.string(), error.what()));
    }
    throw;
  }
}

}  // namespace

std::string read_file_within(const std::filesystem::path& path, std::chrono::milliseconds timeout) {
  return read_file_as(std::nullopt, path, timeout);
}

std::string read_status(const MountInfo& mount, std::chrono::milliseconds timeout) {
  return checked_status(mount, [&] {
    if (mount.type == kDirectoryType) return read_own_status(mount.path);
    try {
      return read_file_within(mount.path / ".weightfs/status", timeout);
    } catch (const Error& error) {
      if (!is_private(mount, error)) throw;
      throw Error(ErrorCode::permission,
                  fmt::format("{} is a mount of uid {}, into which this user may not look{}: run "
                              "this as that user",
                              mount.path.string(), mount.user,
                              ::geteuid() == 0 ? ", though it is root" : ""));
    }
  });
}

std::string read_status_of_other(const MountInfo& mount, std::chrono::milliseconds timeout) {
  return checked_status(mount, [&] {
    const std::filesystem::path path = mount.path / ".weightfs/status";
    try {
      return read_file_within(path, timeout);
    } catch (const Error& error) {
      if (!is_private(mount, error) || ::geteuid() != 0) throw;
    }
    return read_file_as(ChildUser{mount.user, mount.group}, path, timeout);
  });
}

MountInfo get_mount(const std::filesystem::path& path) {
  auto mount = find_mount(path);
  if (mount && mount->type == kMountType) return std::move(*mount);
  throw Error(
      ErrorCode::not_found,
      fmt::format(
          "{} is not a weightfs mount: {}; run weightfs status to list the mounts of this host",
          path.string(), describe(path)));
}

MountInfo get_served(const std::filesystem::path& path) {
  if (auto served = find_served(path)) return std::move(*served);
  return get_mount(path);
}

std::optional<MountInfo> find_served_around(std::filesystem::path path) {
  for (; !path.empty(); path = path.parent_path()) {
    if (auto served = find_served(path)) return served;
    if (!path.has_relative_path()) break;
  }
  return std::nullopt;
}

bool is_synced(const std::filesystem::path& path) {
  const auto directory = find_sync_directory(path);
  return directory && directory->is_running;
}

Target resolve_target(const std::string& text) {
  if (text.find("://") == std::string::npos) {
    const auto mount = find_served(text);
    if (mount) {
      const std::string what = (mount->path / ".weightfs/status").string();
      const Json status = parse_json(read_status(*mount), what);
      return {.url = canonical_url(json_string(status, "url", what)),
              .mount_point = mount->path,
              .bucket = bucket_options_from(status, what),
              .latest = json_uint(status, "version", what),
              .repository = status.contains("repository") ? json_string(status, "repository", what)
                                                          : std::string()};
    }
  }
  return {canonical_url(text), {}, {}};
}

}  // namespace weightfs::fs
