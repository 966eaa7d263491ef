// Memory room: how much memory this process may use, and how much of it the page cache may hold
// before something is evicted, at this moment.
//
// The room of the page cache is the smallest of the host's available memory and what the limits of
// this process's cgroup and its ancestors leave.  Existing page cache counts as room: the kernel
// gives it up first.  A tenth of each limit is left alone, as vLLM does.
//
// Threads: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weightfs {

struct MemoryRoom {
  std::uint64_t bytes = 0;        // that files may take
  std::uint64_t limit_bytes = 0;  // of what limits it
  std::string cgroup;             // whose limit that is; empty: the host's memory

  /// "the host's memory, 23.5 GiB", "the limit of cgroup /engine, 4.0 GiB".
  [[nodiscard]] std::string limit_text() const;

  friend bool operator==(const MemoryRoom&, const MemoryRoom&) = default;
};

/// Asks /proc and the cgroup file systems, of version 2 and 1.  A limit that cannot be read is
/// ignored.
///
/// `root`: another place for all of it, in tests.
/// Returns: nullopt if the host does not say how much memory it has.
std::optional<MemoryRoom> find_memory_room(const std::filesystem::path& root = "/");

/// The most memory that this process may ever use.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string text;  // whose limit that is: "the host's memory, 23.5 GiB"
};

/// The smallest of the host's memory, the limits of the cgroup and of those above it, and the
/// limits of the process (RLIMIT_AS, RLIMIT_DATA; not with another `root`).
/// Returns: nullopt if the host does not say how much memory it has.
std::optional<MemoryLimit> find_memory_limit(const std::filesystem::path& root = "/");

/// Why a version is not in the page cache as a whole, and what to do: for the log, `status`,
/// `doctor` and `.weightfs/advice`.  Requires: it is larger than the room.
std::string no_room_text(std::uint64_t version, std::uint64_t size_bytes, const MemoryRoom& room);

}  // namespace weightfs
