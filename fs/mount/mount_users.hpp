// Mount users: the processes that keep a mount busy.
//
// Threads: pure functions of the system's state.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weightfs::fs {

/// Pids of processes that have a file below `path` open or mapped, or their working directory
/// there.
std::vector<int> users_of(const std::filesystem::path& path);

/// "pid 12 (python3), pid 13 (cat) and 4 more", for messages.
std::string describe_users(const std::vector<int>& pids);

}  // namespace weightfs::fs
