// MemoryBudget: how much of this host's memory the description of a version may take: layouts,
// chunk hashes, indexes of packs.
//
// Objects of a bucket are small and declare how large they become: a few thousand bytes of zstd can
// inflate to gigabytes.  So the memory that an object needs is computed from sizes alone, before it
// is inflated, and the object is refused if that is more than this host allows for one version: a
// quarter of the memory that the process may use.  Honest versions are far below that.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace weightfs {

class MemoryBudget {
 public:
  /// This host's budget: a quarter of find_memory_limit(), as first read.
  MemoryBudget();

  /// `whose`: what messages call the limit.
  MemoryBudget(std::uint64_t bytes, std::string whose);

  /// Throws Error: unsupported, naming `what`, if fewer than `bytes` are left.
  void check(std::uint64_t bytes, std::string_view what) const;

  /// The same, and takes them for the lifetime of this object.
  void take(std::uint64_t bytes, std::string_view what);

 private:
  [[noreturn]] void refuse(std::uint64_t bytes, std::string_view what) const;

  const std::uint64_t bytes_;
  const std::string whose_;
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace weightfs
