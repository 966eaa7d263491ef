#include "fs/cache/page_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>

#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

// Debian 12's headers do not have it yet.
constexpr long kSysCachestat = 451;
struct CachestatRange {
  std::uint64_t offset = 0, size = 0;
};
struct Cachestat {
  std::uint64_t cached = 0, dirty = 0, writeback = 0, evicted = 0, recently_evicted = 0;
};
constexpr int kMadvPopulateRead = 22;

constexpr std::uint64_t kSampledAbove = 128u << 20;
constexpr std::uint64_t kSampleBytes = 2u << 20;
constexpr std::uint64_t kSamples = 64;  // per file

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

/// A read-only mapping, for advice.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t offset, std::uint64_t size)
      : size_(size),
        memory_(::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset))) {}
  ~Mapping() {
    if (*this) ::munmap(memory_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  explicit operator bool() const noexcept { return memory_ != MAP_FAILED; }
  [[nodiscard]] void* memory() const noexcept { return memory_; }

 private:
  std::uint64_t size_;
  void* memory_;
};

}  // namespace

unsigned Residency::percent() const noexcept {
  if (is_whole()) return 100;
  // Multiply first: sizes are far below 2^64 / 100.
  return static_cast<unsigned>(cached_bytes * 100 / size_bytes);
}

std::optional<std::uint64_t> cachestat_bytes(int fd, std::uint64_t offset, std::uint64_t size) {
  const CachestatRange range{offset, size};
  Cachestat found;
  if (size == 0) return 0;
  if (::syscall(kSysCachestat, fd, &range, &found, 0u) != 0) return std::nullopt;
  return std::min(found.cached * page_bytes(), size);
}

std::uint64_t mincore_bytes(int fd, std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t page = page_bytes();
  std::vector<unsigned char> pages(std::min(size, kSampledAbove) / page + 1);
  std::uint64_t cached = 0;
  for (std::uint64_t at = 0; at < size; at += kSampledAbove) {
    const std::uint64_t part = std::min(size - at, kSampledAbove);
    const Mapping mapping(fd, offset + at, part);
    if (!mapping || ::mincore(mapping.memory(), part, pages.data()) != 0) return cached;
    const auto last = pages.begin() + static_cast<std::ptrdiff_t>((part + page - 1) / page);
    const auto there = std::count_if(pages.begin(), last, [](auto one) { return (one & 1) != 0; });
    cached += std::min(static_cast<std::uint64_t>(there) * page, part);
  }
  return cached;
}

std::uint64_t sampled_bytes(int fd, std::uint64_t size, bool& is_exact) {
  if (size <= kSampledAbove) return mincore_bytes(fd, 0, size);
  is_exact = false;
  const std::uint64_t step = size / kSamples / kSampleBytes * kSampleBytes;
  std::uint64_t cached = 0;
  for (std::uint64_t i = 0; i < kSamples; i++) {
    cached += mincore_bytes(fd, i * step, kSampleBytes);
  }
  const double share = static_cast<double>(cached) / static_cast<double>(kSamples * kSampleBytes);
  return static_cast<std::uint64_t>(share * static_cast<double>(size));
}

Residency residency_of(const std::vector<CachedFile>& files) {
  Residency all;
  for (const CachedFile& one : files) {
    all.size_bytes += one.size_bytes;
    const File file(::open(one.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) continue;
    // overlayfs reports 0 for what the file below it has in the cache; a mapping maps that file.
    const std::uint64_t told = cachestat_bytes(file.fd(), 0, one.size_bytes).value_or(0);
    all.cached_bytes += told > 0 ? told : sampled_bytes(file.fd(), one.size_bytes, all.is_exact);
  }
  return all;
}

void read_ahead(int fd, const std::filesystem::path& path, std::uint64_t offset,
                std::uint64_t size) {
  if (size == 0) return;
  {
    const Mapping mapping(fd, offset, size);
    if (mapping) {
      ::madvise(mapping.memory(), size, MADV_HUGEPAGE);  // else folios have readahead's size
      if (::madvise(mapping.memory(), size, kMadvPopulateRead) == 0) return;
    }
  }
  // Linux before 5.14, or a file that cannot be mapped.  A real error shows up here too.
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  if (!read_at(fd, offset, {buffer.get(), size}, path)) {
    throw Error(ErrorCode::io, fmt::format("{} is shorter than it was: expected {} bytes at {}",
                                           path.string(), size, offset));
  }
}

}  // namespace weightfs::fs
