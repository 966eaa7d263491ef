#include "fs/mount_point.hpp"

#include <dirent.h>
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
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "fs/bind_mounts.hpp"
#include "fs/child_call.hpp"
#include "store/error.hpp"
#include "store/path_rules.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr int kLinksMax = 40;  // as many as the kernel follows
constexpr std::chrono::seconds kLivenessTimeout{5};
constexpr std::size_t kNamesShown = 3;
constexpr unsigned kMoveMountBeneath = 0x200;  // MOVE_MOUNT_BENEATH of Linux 6.5

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
  return topmost_mount(read_mounts(), canonical);
}

// ---- Paths -------------------------------------------------------------------------------------

// Canonical, but asks the file system only about the parents of what is a mount point: any call on
// a dead mount fails.  A path that does not exist stays as it is below its parent.
stdfs::path canonical_mount_point(stdfs::path path) {
  for (int links = 0; links < kLinksMax; links++) {
    path = stdfs::absolute(path);
    while (path.has_relative_path() && (!path.has_filename() || path.filename() == ".")) {
      path = path.parent_path();  // "mnt/", "mnt/."
    }
    std::error_code failed;
    if (path.filename() == ".." || path == path.root_path()) {
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

/// What else there is, at the end of a message.
std::string without_fuse(const std::string& source) {
  return fmt::format(
      "; weightfs doctor tells what is missing here, and weightfs sync {} DIR needs "
      "neither FUSE nor root",
      source);
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
  Exit result;
  try {
    result = run_fusermount({"-o", options, "--", path.string()}, theirs.fd());
  } catch (const Error& error) {
    throw Error(error.code(), error.what() + without_fuse(source));
  }
  File connection = receive_descriptor(ours.fd());
  if (result.code != 0 || !connection) {
    throw Error(ErrorCode::permission,
                fmt::format("cannot mount on {}: fusermount3 says: {}{}", path.string(),
                            result.said, without_fuse(source)));
  }
  return connection;
}

File open_fuse_device(const std::string& source) {
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO)) {
    throw Error(ErrorCode::unsupported,
                "this system has no FUSE: /dev/fuse is missing (modprobe fuse; in a container: "
                "--device /dev/fuse)" +
                    without_fuse(source));
  }
  if (fd < 0) {
    const int error = errno;
    throw Error(code_of_errno(error),
                describe_errno(error, "open /dev/fuse") + without_fuse(source));
  }
  return File(fd);
}

struct FuseOptions {
  int connection;
  const std::string& source;
  Access access;
};

/// A mount that is nowhere yet.  Empty where the kernel has no such calls (before 5.2), or does not
/// like something: mount(2) then says what.
File make_detached_mount(const FuseOptions& options) {
  const File context(fsopen("fuse", FSOPEN_CLOEXEC));
  if (!context) return {};
  const auto set = [&](const char* key, const std::string& value) {
    return fsconfig(context.fd(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const auto flag = [&](const char* key) {
    return fsconfig(context.fd(), FSCONFIG_SET_FLAG, key, nullptr, 0) == 0;
  };
  const bool is_read_only = options.access == Access::read_only;
  const bool is_made = set("source", options.source) && set("subtype", "weightfs") &&
                       set("fd", std::to_string(options.connection)) && set("rootmode", "40000") &&
                       set("user_id", std::to_string(getuid())) &&
                       set("group_id", std::to_string(getgid())) && flag("allow_other") &&
                       flag("default_permissions") && (!is_read_only || flag("ro")) &&
                       fsconfig(context.fd(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  if (!is_made) return {};
  unsigned attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  if (is_read_only) attributes |= MOUNT_ATTR_RDONLY;
  return File(fsmount(context.fd(), FSMOUNT_CLOEXEC, attributes));
}

[[noreturn]] void throw_mount_error(int error, const stdfs::path& path,
                                    const std::string& hint = "") {
  if (error == EPERM) {
    throw Error(ErrorCode::permission,
                fmt::format("cannot mount on {}: mount(2) needs CAP_SYS_ADMIN (in a container: "
                            "--cap-add SYS_ADMIN, and no AppArmor or seccomp rule against it){}",
                            path.string(), hint));
  }
  throw_errno(error, "mount on " + path.string());
}

/// On top of whatever is there.
void mount_at_once(const FuseOptions& options, const stdfs::path& path) {
  const std::string text =
      fmt::format("fd={},rootmode=40000,user_id={},group_id={},allow_other,default_permissions",
                  options.connection, getuid(), getgid());
  unsigned long flags = MS_NOSUID | MS_NODEV;
  if (options.access == Access::read_only) flags |= MS_RDONLY;
  if (mount(options.source.c_str(), path.c_str(), std::string(kMountType).c_str(), flags,
            text.c_str()) != 0) {
    throw_mount_error(errno, path, without_fuse(options.source));
  }
}

NewMount mount_as_root(const stdfs::path& path, const std::string& source, Access access) {
  NewMount made{open_fuse_device(source), {}};
  const FuseOptions options{made.connection.fd(), source, access};
  made.tree = make_detached_mount(options);
  if (made.tree) return made;
  made.connection = open_fuse_device(source);  // the attempt may have used the other one
  mount_at_once({made.connection.fd(), source, access}, path);
  return made;
}

/// Under the mount `above`, which then goes: so its place is never empty.
/// Returns: false if the kernel does not do that here, and nothing has changed.
bool replace_mount(const File& tree, const File& above) {
  constexpr unsigned kFlags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH | kMoveMountBeneath;
  if (move_mount(tree.fd(), "", above.fd(), "", kFlags) != 0) return false;
  // By its descriptor: another mount may have come to lie on top meanwhile.
  const std::string link = fmt::format("/proc/self/fd/{}", above.fd());
  if (umount2(link.c_str(), MNT_DETACH) != 0 && errno != EINVAL) {
    throw_errno(errno, "unmount the dead weightfs above the new one");
  }
  return true;
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

/// Whether there is another weightfs right below.
bool covers_weightfs(const MountInfo& mount) {
  const std::vector<MountInfo> mounts = read_mounts();
  return std::any_of(mounts.begin(), mounts.end(), [&](const MountInfo& other) {
    return other.id == mount.parent && other.path == mount.path && other.type == kMountType;
  });
}

[[noreturn]] void refuse_used(const stdfs::path& path) {
  throw Error(ErrorCode::busy, fmt::format("{} is used by {}; stop it, or umount --lazy",
                                           path.string(), describe_users(users_of(path))));
}

[[noreturn]] void refuse_not_allowed(const stdfs::path& path) {
  if (geteuid() == 0) {
    throw Error(ErrorCode::permission,
                fmt::format("cannot unmount {}: root may not here; it takes CAP_SYS_ADMIN in the "
                            "user namespace that the mount was made in",
                            path.string()));
  }
  throw Error(ErrorCode::permission,
              fmt::format("uid {} may not unmount {}: whoever mounted it may, by fusermount3, and "
                          "root: sudo weightfs umount {}",
                          geteuid(), path.string(), path.string()));
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

[[noreturn]] void refuse_silent(const stdfs::path& path, const MountInfo& mount) {
  throw Error(ErrorCode::timed_out,
              fmt::format("{0} is already a weightfs mount of {1}, and its daemon does not answer "
                          "(stopped, or starved?); let it go on, or kill it, or take the mount "
                          "away: weightfs umount {0}",
                          path.string(), mount.source));
}

/// Throws unless it is a dead mount of ours, with nothing in it but what is ours.
void require_dead(const stdfs::path& path, const MountInfo& mount) {
  if (mount.type != kMountType) refuse_mounted(path, mount);
  switch (liveness_of(path)) {
    case Liveness::dead:
      return refuse_foreign_inside(mount);
    case Liveness::silent:
      refuse_silent(path, mount);
    case Liveness::alive:
      refuse_mounted(path, mount);
  }
}

std::vector<std::string> list_names(File directory) {
  std::vector<std::string> names;
  const int fd = fcntl(directory.fd(), F_DUPFD_CLOEXEC, 3);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fd < 0 ? nullptr : fdopendir(fd), closedir);
  while (const dirent* entry = stream ? readdir(stream.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The names in a directory that a mount hides: seen in a copy of the mount around it, without what
/// is mounted there.  None if that cannot be made.
std::vector<std::string> names_below_mount(const stdfs::path& path) {
  const File around(
      open_tree(AT_FDCWD, path.parent_path().c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  File directory(around ? openat(around.fd(), path.filename().c_str(),
                                 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                        : -1);
  return directory ? list_names(std::move(directory)) : std::vector<std::string>();
}

std::vector<std::string> list_mount_point(const stdfs::path& path) {
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
  return list_names(File::open(path, O_RDONLY | O_DIRECTORY));
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

std::optional<MountInfo> topmost_mount(const std::vector<MountInfo>& mounts,
                                       const stdfs::path& canonical) {
  // Their order is not that in which they lie: one may have been put beneath another.
  std::set<int> covered;
  for (const MountInfo& mount : mounts) {
    if (mount.path == canonical) covered.insert(mount.parent);
  }
  const auto found = std::find_if(mounts.rbegin(), mounts.rend(), [&](const MountInfo& mount) {
    return mount.path == canonical && !covered.contains(mount.id);
  });
  if (found == mounts.rend()) return {};
  return *found;
}

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

Liveness liveness_of(const stdfs::path& path) {
  // stat(2) would be content with attributes that the kernel still keeps.
  const auto stat_now = [](const char* name, int) {
    struct statx attributes {};
    const int failed = statx(AT_FDCWD, name, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &attributes);
    return failed != 0 ? errno : 0;
  };
  const auto answer = call_in_child(stat_now, path, kLivenessTimeout);
  if (!answer) return Liveness::silent;
  const bool is_gone = answer->error == ENOTCONN || answer->error == ECONNABORTED;
  return is_gone ? Liveness::dead : Liveness::alive;
}

bool is_dead(const stdfs::path& path) { return liveness_of(path) == Liveness::dead; }

void unmount_dead(const stdfs::path& canonical) {
  for (auto mount = topmost_at(canonical); mount && mount->type == kMountType && is_dead(canonical);
       mount = topmost_at(canonical)) {
    refuse_foreign_inside(*mount);
    if (const int error = try_unmount(canonical, true); error != 0) {
      throw_errno(error, "unmount the dead weightfs at " + canonical.string());
    }
  }
}

MountPlace prepare_mount_point(const stdfs::path& path, NonEmpty non_empty) {
  MountPlace place{canonical_mount_point(path), {}};
  const bool replaces = geteuid() == 0;
  std::optional<MountInfo> mount;
  while ((mount = topmost_at(place.path))) {
    require_dead(place.path, *mount);
    const bool is_last = !covers_weightfs(*mount);
    if (replaces && is_last) break;
    if (const int error = try_unmount(place.path, true); error != 0) {
      throw_errno(error, "unmount the dead weightfs at " + place.path.string());
    }
  }
  place.hidden = mount ? names_below_mount(place.path) : list_mount_point(place.path);
  if (place.hidden.empty() || non_empty == NonEmpty::allowed) return place;
  throw Error(ErrorCode::invalid,
              fmt::format("the mount point {} is not empty: it has {}; what was saved there while "
                          "nothing was mounted is in no repository: move it away, or mount with "
                          "--nonempty, which hides it until umount",
                          place.path.string(), shown_names(place.hidden)));
}

std::string shown_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); i++) {
    text += (i == 0 ? "" : ", ") + escape_name(names[i]);
  }
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
}

void require_fuse(const std::string& source) {
  if (geteuid() == 0 || access("/dev/fuse", F_OK) != 0) open_fuse_device(source);
}

NewMount make_mount(const stdfs::path& path, const std::string& source, Access access) {
  if (geteuid() == 0) return mount_as_root(path, source, access);
  return {mount_as_user(path, source, access), {}};
}

void attach_mount(const File& tree, const stdfs::path& path, Replacing how) {
  if (how == Replacing::beneath && topmost_at(path)) {
    const File above = File::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW);  // asks no daemon
    if (replace_mount(tree, above)) return;
  }
  if (move_mount(tree.fd(), "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    throw_mount_error(errno, path);
  }
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
  if (error == EPERM) refuse_not_allowed(canonical);
  if (error != 0) throw_errno(error, "unmount " + canonical.string());
  unmount_dead(canonical);  // those that it lay on
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
