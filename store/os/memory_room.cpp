// A cgroup's directory is found in the usual way: /proc/self/cgroup has its path, and mountinfo has
// the mount point of the hierarchy and the cgroup mounted there.  In a container the path may be
// the host's, which does not exist; then the mount point itself is used.

#include "store/os/memory_room.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "store/base/bytes.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSpareShare = 10;  // a tenth is left alone
constexpr std::uint64_t kKib = 1024;
constexpr int kCgroupsMax = 64;  // levels to go up

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;  // "max" means no limit
  return value;
}

/// The number that is a file's only content.
std::optional<std::uint64_t> read_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  return parse_bytes(text);
}

/// The value of a line "NAME VALUE" or "NAME: VALUE".
std::optional<std::uint64_t> find_number(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string key, value;
    if (!(fields >> key >> value)) continue;
    if (key.ends_with(':')) key.pop_back();
    if (key == name) return parse_bytes(value);
  }
  return std::nullopt;
}

std::uint64_t less_spare(std::uint64_t bytes, std::uint64_t limit) {
  return bytes - std::min(bytes, limit / kSpareShare);
}

/// The file and field names of one cgroup version.
struct CgroupNames {
  const char* limit;
  const char* softer_limit;  // limit above which the kernel begins to reclaim; "" if there is none
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};
constexpr CgroupNames kVersion2{"memory.max", "memory.high", "memory.current", "inactive_file",
                                "active_file"};
constexpr CgroupNames kVersion1{"memory.limit_in_bytes", "", "memory.usage_in_bytes",
                                "total_inactive_file", "total_active_file"};

std::optional<std::uint64_t> limit_of(const std::filesystem::path& directory,
                                      const CgroupNames& names) {
  auto limit = read_number(directory / names.limit);
  if (*names.softer_limit != '\0') {
    const auto softer = read_number(directory / names.softer_limit);
    if (softer && (!limit || *softer < *limit)) limit = softer;
  }
  return limit;
}

/// The room that one cgroup leaves; nullopt if it has no limit.
std::optional<MemoryRoom> room_of(const std::filesystem::path& directory,
                                  const CgroupNames& names) {
  const auto limit = limit_of(directory, names);
  const auto usage = read_number(directory / names.usage);
  if (!limit || !usage) return std::nullopt;
  const auto stat = directory / "memory.stat";
  const std::uint64_t files = find_number(stat, names.inactive_file).value_or(0) +
                              find_number(stat, names.active_file).value_or(0);
  const std::uint64_t used = *usage - std::min(*usage, files);
  return MemoryRoom{less_spare(*limit - std::min(*limit, used), *limit), *limit, {}};
}

/// A hierarchy that limits memory, according to mountinfo.
struct Hierarchy {
  const CgroupNames* names = nullptr;
  std::filesystem::path mount_point;
  std::string top;  // path of the cgroup at the mount point
};

bool has_word(std::string_view list, std::string_view word) {
  return fmt::format(",{},", list).find(fmt::format(",{},", word)) != std::string::npos;
}

std::vector<Hierarchy> find_hierarchies(const std::filesystem::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, top, mount_point, word, type, source, options;
    if (!(fields >> id >> parent >> device >> top >> mount_point)) continue;
    while (fields >> word && word != "-") {
    }
    if (!(fields >> type >> source >> options)) continue;
    const bool is_first = type == "cgroup" && has_word(options, "memory");
    if (!is_first && type != "cgroup2") continue;
    found.push_back({is_first ? &kVersion1 : &kVersion2,
                     root / std::filesystem::path(mount_point).relative_path(), top});
  }
  return found;
}

/// The path of this process's cgroup in a hierarchy; "" if it is in none.
std::string own_cgroup(const std::filesystem::path& root, const CgroupNames& names) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t controllers = line.find(':');
    const std::size_t path = line.find(':', controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string list = line.substr(controllers + 1, path - controllers - 1);
    if (&names == &kVersion1 ? has_word(list, "memory") : list.empty()) {
      return line.substr(path + 1);
    }
  }
  return {};
}

/// Calls `look` with the directory and the name of this process's cgroup and its ancestors.
template <typename Look>
void for_each_cgroup(const Hierarchy& hierarchy, const std::string& own, const Look& look) {
  if (own.empty()) return;
  std::string below = own;
  if (hierarchy.top != "/") {
    const bool is_below = own == hierarchy.top || own.starts_with(hierarchy.top + "/");
    below = is_below ? own.substr(hierarchy.top.size()) : "";
  }
  std::filesystem::path path = std::filesystem::path("/" + below).lexically_normal();
  for (int i = 0; i < kCgroupsMax; i++, path = path.parent_path()) {
    look(hierarchy.mount_point / path.relative_path(), path.string());
    if (path == "/" || path.empty()) break;
  }
}

}  // namespace

std::string MemoryRoom::limit_text() const {
  return cgroup.empty()
             ? fmt::format("the host's memory, {}", human_bytes(limit_bytes))
             : fmt::format("the limit of cgroup {}, {}", cgroup, human_bytes(limit_bytes));
}

std::optional<MemoryRoom> find_memory_room(const std::filesystem::path& root) {
  const auto meminfo = root / "proc/meminfo";
  const auto total = find_number(meminfo, "MemTotal");
  const auto available = find_number(meminfo, "MemAvailable");
  if (!total || !available) return std::nullopt;
  MemoryRoom least{less_spare(*available * kKib, *total * kKib), *total * kKib, {}};
  for (const Hierarchy& hierarchy : find_hierarchies(root)) {
    const auto look = [&](const std::filesystem::path& directory, const std::string& cgroup) {
      auto room = room_of(directory, *hierarchy.names);
      if (!room || room->bytes >= least.bytes) return;
      least = std::move(*room);
      least.cgroup = cgroup;
    };
    for_each_cgroup(hierarchy, own_cgroup(root, *hierarchy.names), look);
  }
  return least;
}

std::optional<MemoryLimit> find_memory_limit(const std::filesystem::path& root) {
  const auto total = find_number(root / "proc/meminfo", "MemTotal");
  if (!total) return std::nullopt;
  MemoryLimit least{*total * kKib, "the host's memory"};
  const auto lower = [&](std::uint64_t bytes, const std::string& whose) {
    if (bytes < least.bytes) least = {bytes, whose};
  };
  for (const Hierarchy& hierarchy : find_hierarchies(root)) {
    const auto look = [&](const std::filesystem::path& directory, const std::string& cgroup) {
      if (const auto limit = limit_of(directory, *hierarchy.names)) {
        lower(*limit, "the limit of cgroup " + cgroup);
      }
    };
    for_each_cgroup(hierarchy, own_cgroup(root, *hierarchy.names), look);
  }
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (root == "/" && ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0) {
      lower(limit.rlim_cur, "the limit of this process");
    }
  }
  least.text += ", " + human_bytes(least.bytes);
  return least;
}

std::string no_room_text(std::uint64_t version, std::uint64_t size_bytes, const MemoryRoom& room) {
  return fmt::format(
      "version {} ({}) does not fit into the page cache: {}, leaves room for {}, so every "
      "load reads from the disk; {}",
      version, human_bytes(size_bytes), room.limit_text(), human_bytes(room.bytes),
      room.cgroup.empty() ? "free memory on this host, or use a larger host"
                          : "raise that limit, or mount outside that cgroup");
}

}  // namespace weightfs
