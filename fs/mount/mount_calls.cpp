#include "fs/mount/mount_calls.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/mount/mount_info.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr unsigned kMoveMountBeneath = 0x200;  // MOVE_MOUNT_BENEATH, Linux 6.5

struct Exit {
  int code = -1;
  std::string said;  // on stderr
};

// Runs fusermount3; it inherits `connection` if that is >= 0.
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

// fusermount3 sends the connection over the socket, as a descriptor.
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

// A comma ends an option in fusermount3's option list.
std::string escape_option(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ',' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// The alternatives, for the end of a message.
std::string without_fuse(const std::string& source) {
  return fmt::format(
      "; run weightfs doctor to see what is missing; weightfs sync {} DIR needs neither "
      "FUSE nor root",
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

/// A detached mount.  Empty if the kernel lacks these calls (before 5.2) or refuses something;
/// mount(2) then says why.
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

/// Mounts on top of whatever is there.
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
  made.connection = open_fuse_device(source);  // the attempt may have used up the first one
  mount_at_once({made.connection.fd(), source, access}, path);
  return made;
}

/// Puts the mount beneath `above` and unmounts `above`, so the place is never empty.
/// Returns: false if the kernel cannot do that here; nothing has changed then.
bool replace_mount(const File& tree, const File& above) {
  constexpr unsigned kFlags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH | kMoveMountBeneath;
  if (move_mount(tree.fd(), "", above.fd(), "", kFlags) != 0) return false;
  // By descriptor: another mount may have been put on top meanwhile.
  const std::string link = fmt::format("/proc/self/fd/{}", above.fd());
  if (umount2(link.c_str(), MNT_DETACH) != 0 && errno != EINVAL) {
    throw_errno(errno, "unmount the dead weightfs above the new one");
  }
  return true;
}

}  // namespace

void require_fuse(const std::string& source) {
  if (geteuid() == 0 || access("/dev/fuse", F_OK) != 0) open_fuse_device(source);
}

NewMount make_mount(const stdfs::path& path, const std::string& source, Access access) {
  if (geteuid() == 0) return mount_as_root(path, source, access);
  return {mount_as_user(path, source, access), {}};
}

void attach_mount(const File& tree, const stdfs::path& path, Replacing how) {
  if (how == Replacing::beneath && topmost_at(path)) {
    const File above = File::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW);  // does not reach a
                                                                             // daemon
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

}  // namespace weightfs::fs
