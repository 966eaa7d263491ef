#include "fs/mount/mount_info.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr int kLinksMax = 40;  // the kernel's limit

/// The number of "NAME=NUMBER" among the options of a file system; 0 if there is none.
unsigned find_number(std::string_view options, std::string_view name) {
  unsigned number = 0;
  for (std::size_t at = 0; at < options.size();) {
    const std::size_t end = std::min(options.find(',', at), options.size());
    const std::string_view option = options.substr(at, end - at);
    if (option.starts_with(name)) {
      std::from_chars(option.data() + name.size(), option.data() + option.size(), number);
    }
    at = end + 1;
  }
  return number;
}

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
// The number of fields between the options and "-" varies.
std::optional<MountInfo> parse_mount(const std::string& line) {
  std::istringstream fields(line);
  int id = 0, parent = 0;
  std::string device, root, path, options, separator, type, source;
  if (!(fields >> id >> parent >> device >> root >> path >> options)) return {};
  while (fields >> separator && separator != "-") {
  }
  if (!(fields >> type >> source)) return {};
  fields >> options;  // now those of the file system
  MountInfo info{
      unescape_octal(path), unescape_octal(type), unescape_octal(source), 0, 0, id, parent,
      unescape_octal(root)};
  const char* end = device.data() + device.size();
  const auto major = std::from_chars(device.data(), end, info.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != ':') return {};
  const auto minor = std::from_chars(major.ptr + 1, end, info.minor);
  if (minor.ec != std::errc{} || minor.ptr != end) return {};
  if (type.starts_with("fuse")) {
    info.user = find_number(options, "user_id=");
    info.group = find_number(options, "group_id=");
  }
  return info;
}

std::string read_whole(const stdfs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string unescape_octal(std::string_view text) {
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

std::vector<MountInfo> parse_mounts(std::string_view mountinfo) {
  std::vector<MountInfo> mounts;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    if (auto mount = parse_mount(line)) mounts.push_back(std::move(*mount));
  }
  return mounts;
}

std::vector<MountInfo> read_mounts() { return parse_mounts(read_whole("/proc/self/mountinfo")); }

std::vector<MountInfo> read_mounts_of(pid_t pid) {
  return parse_mounts(read_whole(stdfs::path("/proc") / std::to_string(pid) / "mountinfo"));
}

std::optional<MountInfo> topmost_mount(const std::vector<MountInfo>& mounts,
                                       const stdfs::path& canonical) {
  // The list is not in stacking order: a mount may have been put beneath another.
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
  // A mount may be listed before the one that contains it, for example after it was moved.
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

std::optional<MountInfo> topmost_at(const stdfs::path& canonical) {
  return topmost_mount(read_mounts(), canonical);
}

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
    if (failed) return path;  // not a symlink
    path = parent / target;
  }
  throw Error(ErrorCode::invalid, "too many levels of symlinks at " + path.string());
}

}  // namespace weightfs::fs
