// Cgroups: which control groups this process is in, of version 2 and 1, and what processors they
// leave it.
//
// Threads: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

struct Cgroup {
  std::filesystem::path directory;
  std::string name;         // its path in its hierarchy, for messages
  bool is_version_1 = false;
};

/// The cgroup of this process and its ancestors, from it upwards, in each hierarchy that has
/// `controller` ("memory", "cpu"), and in that of version 2.
/// `root`: another place for /proc and all file systems, in tests.
std::vector<Cgroup> find_own_cgroups(std::string_view controller,
                                     const std::filesystem::path& root = "/");

/// The number that is a file's only content, or its first; nullopt: it has none ("max").
std::optional<std::uint64_t> read_cgroup_number(const std::filesystem::path& path);

/// How many processors the cgroups of this process let it keep busy, rounded up; at least 1.
/// nullopt: they set no limit.
std::optional<unsigned> find_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace weightfs
