#include "fs/mount/mount_users.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

#include "fs/base/process_files.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

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
    if (path != std::string::npos && is_below(unescape_octal(line).substr(path), directory))
      return true;
  }
  return false;
}

std::string name_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

std::vector<stdfs::path> paths_of(const std::vector<MountInfo>& mounts, const MountInfo& mount) {
  std::vector<stdfs::path> paths;
  for (const MountInfo& other : mounts) {
    if (other.major == mount.major && other.minor == mount.minor) paths.push_back(other.path);
  }
  return paths;
}

/// Such as "mnt:[4026531841]"; empty if the process has ended, or this user may not look.
std::string mount_namespace(const stdfs::path& process) {
  std::error_code failed;
  return stdfs::read_symlink(process / "ns/mnt", failed).string();
}

}  // namespace

std::string describe_users(const std::vector<int>& pids) {
  constexpr std::size_t kNamed = 8;
  if (pids.empty()) return "a process that is not visible here";
  std::string text;
  for (std::size_t i = 0; i < std::min(pids.size(), kNamed); i++) {
    text += fmt::format("{}pid {} ({})", i == 0 ? "" : ", ", pids[i], name_of(pids[i]));
  }
  if (pids.size() > kNamed) text += fmt::format(" and {} more", pids.size() - kNamed);
  return text;
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

std::vector<MountCopies> copies_of(const MountInfo& mount) {
  std::vector<MountCopies> copies;
  if (auto paths = paths_of(read_mounts(), mount); !paths.empty()) {
    copies.push_back({{}, std::move(paths)});
  }
  const stdfs::path proc = "/proc";
  const std::string own = mount_namespace(proc / "self");
  std::map<std::string, MountCopies> others;
  for_each_process(proc, [&](pid_t pid) {
    const std::string name = mount_namespace(proc / std::to_string(pid));
    if (name.empty() || name == own) return;
    MountCopies& other = others[name];
    other.pids.push_back(pid);
    // Of one that ends right now, or has another root, nothing is seen: the next is asked.
    if (other.paths.empty()) other.paths = paths_of(read_mounts_of(pid), mount);
  });
  for (auto& [name, other] : others) {
    if (!other.paths.empty()) copies.push_back(std::move(other));
  }
  return copies;
}

}  // namespace weightfs::fs
