#include "store/materialize/window_writer.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

#include "kernels/block/block.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kLeadBytes = kernels::kChunkBytesMax;  // for a chunk that begins before the
                                                             // segment

constexpr std::align_val_t kCacheLine{64};
static_assert(kLeadBytes % static_cast<std::size_t>(kCacheLine) == 0);

/// The lead, a window that is nearly full, and one more chunk.
constexpr std::size_t kMemoryBytes = kLeadBytes + kWindowBytes + kernels::kChunkBytesMax;

}  // namespace

void WindowWriter::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete[](memory, kCacheLine);
}

WindowWriter::WindowWriter() : memory_(new (kCacheLine) std::byte[kMemoryBytes]) {}

void WindowWriter::start(int fd, const std::filesystem::path& path, std::uint64_t begin,
                         std::uint64_t end, std::uint64_t part_bytes) {
  assert(part_bytes == kWindowBytes || part_bytes == kHalfWindowBytes);
  part_bytes_ = part_bytes;
  fd_ = fd;
  path_ = &path;
  window_ = used_ = begin;
  end_ = end;
}

std::span<std::byte> WindowWriter::place(std::uint64_t offset_bytes, std::size_t size_bytes) {
  assert(!is_full() && offset_bytes + kLeadBytes >= window_);
  assert(offset_bytes <= used_ && size_bytes <= kernels::kChunkBytesMax);
  used_ = std::max(used_, offset_bytes + size_bytes);
  const auto at = static_cast<std::size_t>(offset_bytes + kLeadBytes - window_);
  return {memory_.get() + at, size_bytes};
}

void WindowWriter::flush() {
  const std::uint64_t ready = std::min(used_, end_) - window_;
  write(ready - ready % part_bytes_);
}

void WindowWriter::finish() { write(std::min(used_, end_) - window_); }

void WindowWriter::write(std::uint64_t size_bytes) {
  if (size_bytes == 0) return;
  std::byte* const begin = memory_.get() + kLeadBytes;
  const auto size = static_cast<std::size_t>(size_bytes);
  write_at(fd_, window_, {begin, size}, *path_);
  std::memmove(begin, begin + size, static_cast<std::size_t>(used_ - window_) - size);
  window_ += size_bytes;
}

}  // namespace weightfs
