#include "store/threads/work_threads.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "store/os/cgroups.hpp"
#include "store/os/memory_room.hpp"

namespace weightfs {
namespace {

/// What a thread holds at most, of those that code, fetch or write a version.
constexpr std::uint64_t kThreadBytes = 24u << 20;
constexpr std::uint64_t kMemoryShare = 8;

/// That this process may run on: a container may have some of them.
unsigned count_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) == 0)
    return static_cast<unsigned>(CPU_COUNT(&cores));
  return std::thread::hardware_concurrency();  // more than a cpu_set_t has room for
}

}  // namespace

unsigned find_work_threads(unsigned cores, const std::filesystem::path& root) {
  unsigned threads = std::min(cores, find_cpu_quota(root).value_or(cores));
  if (const auto memory = find_memory_limit(root)) {
    const std::uint64_t fitting = memory->bytes / (kMemoryShare * kThreadBytes);
    threads = static_cast<unsigned>(std::min<std::uint64_t>(threads, fitting));
  }
  return std::max(1u, threads);
}

unsigned work_threads() {
  static const unsigned threads = find_work_threads(count_cores());
  return threads;
}

}  // namespace weightfs
