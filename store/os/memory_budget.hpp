// MemoryBudget: how much of this host's memory the description of a version may take: layouts,
// chunk hashes, indexes of packs.
//
// Objects of a bucket are small and say how large they become: some thousand bytes of zstd make
// gigabytes.  So what an object will take here is reckoned from sizes alone, before it is inflated,
// and refused if it is more than this host gives to one version: a quarter of the memory that the
// process may use.  Honest versions are far below that.
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
  /// What this host gives: a quarter of find_memory_limit(), as it was when it was first asked.
  MemoryBudget();

  /// `whose`: what messages call the limit.
  MemoryBudget(std::uint64_t bytes, std::string whose);

  /// Throws Error: unsupported, naming `what`, if fewer than `bytes` are left.
  void check(std::uint64_t bytes, std::string_view what) const;

  /// The same, and takes them, as long as this lives.
  void take(std::uint64_t bytes, std::string_view what);

 private:
  [[noreturn]] void refuse(std::uint64_t bytes, std::string_view what) const;

  const std::uint64_t bytes_;
  const std::string whose_;
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace weightfs
