// A cgroup's directory is found in the usual way: /proc/self/cgroup has its path, and mountinfo has
// the mount point of the hierarchy and the cgroup mounted there.  In a container the path may be
// the host's, which does not exist; then the mount point itself is used.

#include "store/os/cgroups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace weightfs {
namespace {

constexpr int kCgroupsMax = 64;  // levels to go up

/// A hierarchy, according to mountinfo.
struct Hierarchy {
  bool is_version_1 = false;
  std::filesystem::path mount_point;
  std::string top;  // path of the cgroup at the mount point
};

bool has_word(std::string_view list, std::string_view word) {
  return fmt::format(",{},", list).find(fmt::format(",{},", word)) != std::string::npos;
}

std::vector<Hierarchy> find_hierarchies(std::string_view controller,
                                        const std::filesystem::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, top, mount_point, word, type, source, options;
    if (!(fields >> id >> parent >> device >> top >> mount_point)) continue;
    while (fields >> word && word != "-") {
    }
    if (!(fields >> type >> source >> options)) continue;
    const bool is_version_1 = type == "cgroup" && has_word(options, controller);
    if (!is_version_1 && type != "cgroup2") continue;
    found.push_back({is_version_1, root / std::filesystem::path(mount_point).relative_path(), top});
  }
  return found;
}

/// The path of this process's cgroup in a hierarchy; "" if it is in none.
std::string own_cgroup(std::string_view controller, bool is_version_1,
                       const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t controllers = line.find(':');
    const std::size_t path = line.find(':', controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string list = line.substr(controllers + 1, path - controllers - 1);
    if (is_version_1 ? has_word(list, controller) : list.empty()) return line.substr(path + 1);
  }
  return {};
}

/// `own`: as own_cgroup().
void add_cgroups(const Hierarchy& hierarchy, const std::string& own, std::vector<Cgroup>& cgroups) {
  if (own.empty()) return;
  std::string below = own;
  if (hierarchy.top != "/") {
    const bool is_below = own == hierarchy.top || own.starts_with(hierarchy.top + "/");
    below = is_below ? own.substr(hierarchy.top.size()) : "";
  }
  std::filesystem::path path = std::filesystem::path("/" + below).lexically_normal();
  for (int i = 0; i < kCgroupsMax; i++, path = path.parent_path()) {
    cgroups.push_back(
        {hierarchy.mount_point / path.relative_path(), path.string(), hierarchy.is_version_1});
    if (path == "/" || path.empty()) break;
  }
}

struct CpuTime {
  std::uint64_t quota = 0, period = 0;
};

/// nullopt: the cgroup sets no limit.
std::optional<CpuTime> cpu_time_of(const Cgroup& cgroup) {
  CpuTime time;
  if (cgroup.is_version_1) {  // the quota is -1 without a limit
    const auto quota = read_cgroup_number(cgroup.directory / "cpu.cfs_quota_us");
    const auto period = read_cgroup_number(cgroup.directory / "cpu.cfs_period_us");
    if (!quota || !period) return std::nullopt;
    time = {*quota, *period};
  } else {  // "QUOTA PERIOD"
    std::ifstream file(cgroup.directory / "cpu.max");
    if (!(file >> time.quota >> time.period)) return std::nullopt;
  }
  if (time.period == 0) return std::nullopt;
  return time;
}

}  // namespace

std::vector<Cgroup> find_own_cgroups(std::string_view controller,
                                     const std::filesystem::path& root) {
  std::vector<Cgroup> cgroups;
  for (const Hierarchy& hierarchy : find_hierarchies(controller, root)) {
    add_cgroups(hierarchy, own_cgroup(controller, hierarchy.is_version_1, root), cgroups);
  }
  return cgroups;
}

std::optional<std::uint64_t> read_cgroup_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

std::optional<unsigned> find_cpu_quota(const std::filesystem::path& root) {
  std::optional<unsigned> least;
  for (const Cgroup& cgroup : find_own_cgroups("cpu", root)) {
    const auto time = cpu_time_of(cgroup);
    if (!time) continue;
    const std::uint64_t whole = time->quota / time->period + (time->quota % time->period != 0);
    const auto count =
        static_cast<unsigned>(std::clamp<std::uint64_t>(whole, 1, std::numeric_limits<int>::max()));
    least = std::min(least.value_or(count), count);
  }
  return least;
}

}  // namespace weightfs
