#include "store/os/memory_room.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/os/cgroups.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSpareShare = 10;  // a tenth is left alone
constexpr std::uint64_t kKib = 1024;

/// The value of a line "NAME VALUE" or "NAME: VALUE".
std::optional<std::uint64_t> find_number(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string key;
    std::uint64_t value = 0;
    if (!(fields >> key >> value)) continue;
    if (key.ends_with(':')) key.pop_back();
    if (key == name) return value;
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

const CgroupNames& names_of(const Cgroup& cgroup) {
  return cgroup.is_version_1 ? kVersion1 : kVersion2;
}

std::optional<std::uint64_t> limit_of(const Cgroup& cgroup) {
  const CgroupNames& names = names_of(cgroup);
  auto limit = read_cgroup_number(cgroup.directory / names.limit);
  if (*names.softer_limit != '\0') {
    const auto softer = read_cgroup_number(cgroup.directory / names.softer_limit);
    if (softer && (!limit || *softer < *limit)) limit = softer;
  }
  return limit;
}

/// The room that one cgroup leaves; nullopt if it has no limit.
std::optional<MemoryRoom> room_of(const Cgroup& cgroup) {
  const CgroupNames& names = names_of(cgroup);
  const auto limit = limit_of(cgroup);
  const auto usage = read_cgroup_number(cgroup.directory / names.usage);
  if (!limit || !usage) return std::nullopt;
  const auto stat = cgroup.directory / "memory.stat";
  const std::uint64_t files = find_number(stat, names.inactive_file).value_or(0) +
                              find_number(stat, names.active_file).value_or(0);
  const std::uint64_t used = *usage - std::min(*usage, files);
  return MemoryRoom{less_spare(*limit - std::min(*limit, used), *limit), *limit, cgroup.name};
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
  for (const Cgroup& cgroup : find_own_cgroups("memory", root)) {
    auto room = room_of(cgroup);
    if (room && room->bytes < least.bytes) least = std::move(*room);
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
  for (const Cgroup& cgroup : find_own_cgroups("memory", root)) {
    if (const auto limit = limit_of(cgroup)) lower(*limit, "the limit of cgroup " + cgroup.name);
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
