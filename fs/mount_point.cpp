#include "fs/mount_point.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "fs/bind_mounts.hpp"
#include "store/error.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr int kLinksMax = 40;  // as many as the kernel follows

// ---- /proc/self/mountinfo ----------------------------------------------------------------------

// The kernel writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); i++) {
    unsigned code = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '\\' && text.size() - i > 3 &&
        std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
// The fields between the options and "-" vary in number.
std::optional<MountInfo> parse_mount(const std::string& line) {
  std::istringstream fields(line);
  int id = 0, parent = 0;
  std::string device, root, path, options, separator, type, source;
  if (!(fields >> id >> parent >> device >> root >> path >> options)) return {};
  while (fields >> separator && separator != "-") {
  }
  if (!(fields >> type >> source)) return {};
  MountInfo info{unescape(path), unescape(type), unescape(source), 0, 0, id,
                 parent,         unescape(root)};
  const char* end = device.data() + device.size();
  const auto major = std::from_chars(device.data(), end, info.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != ':') return {};
  const auto minor = std::from_chars(major.ptr + 1, end, info.minor);
  if (minor.ec != std::errc{} || minor.ptr != end) return {};
  return info;
}

std::string read_all(const stdfs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<MountInfo> topmost_at(const stdfs::path& canonical) {
  const std::vector<MountInfo> mounts = read_mounts();
  const auto found = std::find_if(mounts.rbegin(), mounts.rend(),
                                  [&](const MountInfo& mount) { return mount.path == canonical; });
  if (found == mounts.rend()) return {};
  return *found;
}

// ---- Paths -------------------------------------------------------------------------------------

// Canonical, but asks the file system only about the parents of what is a mount point: any call on
// a dead mount fails.  A path that does not exist stays as it is below its parent.
stdfs::path canonical_mount_point(stdfs::path path) {
  for (int links = 0; links < kLinksMax; links++) {
    path = stdfs::absolute(path);
    if (!path.has_filename()) path = path.parent_path();  // "mnt/"
    std::error_code failed;
    if (path.filename() == "." || path.filename() == ".." || path == path.root_path()) {
      const stdfs::path all = stdfs::canonical(path, failed);
      return failed ? path.lexically_normal() : all;
    }
    const stdfs::path parent = stdfs::canonical(path.parent_path(), failed);
    if (failed) return path;
    path = parent / path.filename();
    if (topmost_at(path)) return path;
    const stdfs::path target = stdfs::read_symlink(path, failed);
    if (failed) return path;  // no symlink
    path = parent / target;
  }
  throw Error(ErrorCode::invalid, "too many levels of symlinks at " + path.string());
}

// ---- Users of a mount --------------------------------------------------------------------------

bool is_below(std::string_view path, const std::string& directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

bool links_below(const stdfs::path& link, const std::string& directory) {
  std::error_code failed;
  const stdfs::path target = stdfs::read_symlink(link, failed);  // never touches the target
  return !failed && is_below(target.native(), directory);
}

bool has_open(const stdfs::path& process, const std::string& directory) {
  std::error_code failed;
  stdfs::directory_iterator descriptor(process / "fd", failed);
  while (!failed && descriptor != stdfs::directory_iterator()) {
    if (links_below(descriptor->path(), directory)) return true;
    descriptor.increment(failed);
  }
  return false;
}

bool has_mapped(const stdfs::path& process, const std::string& directory) {
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path != std::string::npos && is_below(unescape(line).substr(path), directory)) return true;
  }
  return false;
}

std::string name_of(int pid) {
  std::string name = read_all(fmt::format("/proc/{}/comm", pid));
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::string describe_users(const std::vector<int>& pids) {
  constexpr std::size_t kNamed = 8;
  if (pids.empty()) return "a process that cannot be seen from here";
  std::string text;
  for (std::size_t i = 0; i < std::min(pids.size(), kNamed); i++) {
    text += fmt::format("{}pid {} ({})", i == 0 ? "" : ", ", pids[i], name_of(pids[i]));
  }
  if (pids.size() > kNamed) text += fmt::format(" and {} more", pids.size() - kNamed);
  return text;
}

// ---- fusermount3 -------------------------------------------------------------------------------

struct Exit {
  int code = -1;
  std::string said;  // on stderr
};

// Runs fusermount3, with `connection` inherited if it is >= 0.
Exit run_fusermount(std::vector<std::string> arguments, int connection) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
  const File read_end(ends[0]);
  File write_end(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.fd(), STDERR_FILENO);
  if (connection >= 0) posix_spawn_file_actions_adddup2(&actions, connection, connection);

  std::vector<char*> argv;
  arguments.insert(arguments.begin(), "fusermount3");
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::string channel = fmt::format("_FUSE_COMMFD={}", connection);
  std::vector<char*> environment;
  for (char** item = environ; *item != nullptr; item++) environment.push_back(*item);
  environment.push_back(channel.data());
  environment.push_back(nullptr);

  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, "fusermount3", &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) {
    throw Error(ErrorCode::unsupported,
                "cannot mount as a user: fusermount3 is not installed (apt install fuse3)");
  }
  if (error != 0) throw_errno(error, "run fusermount3");

  write_end = File();
  Exit result;
  char buffer[512];
  for (ssize_t got = 0; (got = read(read_end.fd(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) result.said.append(buffer, static_cast<std::size_t>(got));
  }
  while (!result.said.empty() && result.said.back() == '\n') result.said.pop_back();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  return result;
}

// fusermount3 sends the connection as a descriptor over the socket.
File receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return File(fd);
}

// In fusermount3's option list a comma ends an option.
std::string escape_option(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ',' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

File mount_as_user(const stdfs::path& path, const std::string& source, Access access) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_errno(errno, "make a socket pair");
  }
  const File ours(ends[0]), theirs(ends[1]);
  const std::string options =
      fmt::format("{},nosuid,nodev,default_permissions,subtype=weightfs,fsname={}",
                  access == Access::read_only ? "ro" : "rw", escape_option(source));
  const Exit result = run_fusermount({"-o", options, "--", path.string()}, theirs.fd());
  File connection = receive_descriptor(ours.fd());
  if (result.code != 0 || !connection) {
    throw Error(ErrorCode::permission, fmt::format("cannot mount on {}: fusermount3 says: {}",
                                                   path.string(), result.said));
  }
  return connection;
}

File open_fuse_device() {
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO)) {
    throw Error(ErrorCode::unsupported,
                "this system has no FUSE: /dev/fuse is missing (modprobe fuse; in a container: "
                "--device /dev/fuse)");
  }
  if (fd < 0) throw_errno(errno, "open /dev/fuse");
  return File(fd);
}

File mount_as_root(const stdfs::path& path, const std::string& source, Access access) {
  File connection = open_fuse_device();
  const std::string options =
      fmt::format("fd={},rootmode=40000,user_id={},group_id={},allow_other,default_permissions",
                  connection.fd(), getuid(), getgid());
  unsigned long flags = MS_NOSUID | MS_NODEV;
  if (access == Access::read_only) flags |= MS_RDONLY;
  if (mount(source.c_str(), path.c_str(), std::string(kMountType).c_str(), flags,
            options.c_str()) != 0) {
    if (errno == EPERM) {
      throw Error(ErrorCode::permission,
                  fmt::format("cannot mount on {}: mount(2) needs CAP_SYS_ADMIN (in a container: "
                              "--cap-add SYS_ADMIN, and no AppArmor or seccomp rule against it)",
                              path.string()));
    }
    throw_errno(errno, "mount on " + path.string());
  }
  return connection;
}

// ---- Where a mount may go ----------------------------------------------------------------------

[[noreturn]] void refuse_mounted(const stdfs::path& path, const MountInfo& mount) {
  const std::string name = path.string();
  if (mount.type == kMountType) {
    throw Error(ErrorCode::exists,
                fmt::format("{} is already a weightfs mount of {}; weightfs umount {} ends it",
                            name, mount.source, name));
  }
  throw Error(ErrorCode::busy,
              fmt::format("{} is a mount point of another file system ({} of type {}); choose an "
                          "empty directory",
                          name, mount.source, mount.type));
}

/// Unmounting lazily takes along whatever is mounted inside, so that must be ours.
void refuse_foreign_inside(const MountInfo& mount) {
  for (const MountInfo& inner : mounts_inside(read_mounts(), mount)) {
    if (bound_version(inner, mount)) continue;
    throw Error(ErrorCode::busy,
                fmt::format("a file system ({} of type {}) is mounted inside {}, at {}; unmount it "
                            "first",
                            inner.source, inner.type, mount.path.string(), inner.path.string()));
  }
}

[[noreturn]] void refuse_used(const stdfs::path& path) {
  throw Error(ErrorCode::busy, fmt::format("{} is used by {}; stop it, or umount --lazy",
                                           path.string(), describe_users(users_of(path))));
}

/// Returns: 0, or the errno.  A mount whose daemon is silent is not walked into: what is bound in
/// it goes with it, unless somebody uses it.
int unmount_all(const MountInfo& mount, Answering answering) {
  constexpr int kTries = 3;  // the daemon may have bound a version again
  int error = 0;
  for (int i = 0; i < kTries; i++) {
    const auto bound = find_bind_mounts(read_mounts(), mount);
    if (bound.empty() && i > 0) return error;
    if (!bound.empty() && (answering == Answering::no || is_dead(mount.path))) {
      return users_of(mount.path).empty() ? try_unmount(mount.path, true) : EBUSY;
    }
    for (const BindMount& one : bound) {
      if (unbind(one.path) == EBUSY) return EBUSY;
    }
    error = try_unmount(mount.path, false);
    if (error != EBUSY) return error;
  }
  return error;
}

void check_empty_directory(const stdfs::path& path) {
  const std::string name = path.string();
  std::error_code failed;
  const auto type = stdfs::symlink_status(path, failed).type();
  if (type == stdfs::file_type::not_found) {
    throw Error(ErrorCode::not_found,
                fmt::format("the mount point {} does not exist; mkdir -p {}", name, name));
  }
  if (failed) throw_errno(failed.value(), "stat the mount point " + name);
  if (type != stdfs::file_type::directory) {
    throw Error(ErrorCode::invalid, fmt::format("the mount point {} is not a directory", name));
  }
  const bool is_empty = stdfs::is_empty(path, failed);
  if (failed) throw_errno(failed.value(), "list the mount point " + name);
  if (!is_empty) {
    throw Error(ErrorCode::invalid,
                fmt::format("the mount point {} is not empty; choose an empty directory", name));
  }
}

}  // namespace

std::vector<MountInfo> parse_mounts(std::string_view mountinfo) {
  std::vector<MountInfo> mounts;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    if (auto mount = parse_mount(line)) mounts.push_back(std::move(*mount));
  }
  return mounts;
}

std::vector<MountInfo> read_mounts() { return parse_mounts(read_all("/proc/self/mountinfo")); }

std::vector<MountInfo> mounts_inside(const std::vector<MountInfo>& mounts, const MountInfo& outer) {
  std::vector<MountInfo> inside;
  std::set<int> ids{outer.id};
  // A mount may be listed before the one that it is in: one that was moved is.
  for (bool found = true; found;) {
    found = false;
    for (const MountInfo& mount : mounts) {
      if (!ids.contains(mount.parent) || !ids.insert(mount.id).second) continue;
      inside.push_back(mount);
      found = true;
    }
  }
  return inside;
}

dev_t proc_device(const stdfs::path& path) {
  struct statx found {};
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &found) != 0) return 0;
  for (const MountInfo& mount : read_mounts()) {
    const bool is_it = (found.stx_mask & STATX_MNT_ID) != 0 &&
                       static_cast<std::uint64_t>(mount.id) == found.stx_mnt_id;
    if (is_it) return makedev(mount.major, mount.minor);
  }
  return makedev(found.stx_dev_major, found.stx_dev_minor);
}

std::optional<MountInfo> find_mount(const stdfs::path& path) {
  return topmost_at(canonical_mount_point(path));
}

bool is_dead(const stdfs::path& path) {
  // stat(2) would be content with attributes that the kernel still keeps.
  struct statx attributes {};
  return statx(AT_FDCWD, path.c_str(), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &attributes) != 0 &&
         errno == ENOTCONN;
}

stdfs::path prepare_mount_point(const stdfs::path& path) {
  const stdfs::path canonical = canonical_mount_point(path);
  while (const auto mount = topmost_at(canonical)) {
    if (mount->type != kMountType || !is_dead(canonical)) refuse_mounted(canonical, *mount);
    refuse_foreign_inside(*mount);
    if (const int error = try_unmount(canonical, true); error != 0) {
      throw_errno(error, "unmount the dead weightfs at " + canonical.string());
    }
  }
  check_empty_directory(canonical);
  return canonical;
}

File mount_connection(const stdfs::path& path, const std::string& source, Access access) {
  return geteuid() == 0 ? mount_as_root(path, source, access) : mount_as_user(path, source, access);
}

int try_unmount(const stdfs::path& path, bool lazy) noexcept {
  if (geteuid() == 0) {
    const int flags = UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0);
    return umount2(path.c_str(), flags) == 0 ? 0 : errno;
  }
  try {
    const Exit result = run_fusermount({lazy ? "-uz" : "-u", "--", path.string()}, -1);
    if (result.code == 0) return 0;
    return result.said.find("busy") != std::string::npos ? EBUSY : EPERM;
  } catch (const std::exception&) {
    return EPERM;
  }
}

void unmount(const stdfs::path& path, bool lazy, Answering answering) {
  const stdfs::path canonical = canonical_mount_point(path);
  const auto mount = topmost_at(canonical);
  if (!mount || mount->type != kMountType) {
    throw Error(ErrorCode::not_found,
                fmt::format("no weightfs is mounted at {}", canonical.string()));
  }
  refuse_foreign_inside(*mount);
  const int error = lazy ? try_unmount(canonical, true) : unmount_all(*mount, answering);
  if (error == EBUSY) refuse_used(canonical);
  if (error != 0) throw_errno(error, "unmount " + canonical.string());
}

std::vector<int> users_of(const stdfs::path& path) {
  const std::string directory = canonical_mount_point(path).string();
  std::vector<int> pids;
  std::error_code failed;
  for (stdfs::directory_iterator item("/proc", failed), end; !failed && item != end;
       item.increment(failed)) {
    const std::string name = item->path().filename();
    int pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ptr != name.data() + name.size() || pid == getpid()) continue;
    const stdfs::path& process = item->path();
    if (links_below(process / "cwd", directory) || links_below(process / "root", directory) ||
        has_open(process, directory) || has_mapped(process, directory)) {
      pids.push_back(pid);
    }
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

}  // namespace weightfs::fs
