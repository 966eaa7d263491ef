#include "store/window_writer.hpp"

#include <algorithm>
#include <cstring>

#include "store/file.hpp"

namespace weightfs {

WindowWriter::WindowWriter() : window_(std::make_unique_for_overwrite<std::byte[]>(kWindowBytes)) {}

void WindowWriter::start(int fd, const std::filesystem::path& path, std::uint64_t offset_bytes) {
  fd_ = fd;
  path_ = &path;
  offset_ = offset_bytes;
  used_ = 0;
}

void WindowWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), kWindowBytes - used_);
    std::memcpy(window_.get() + used_, bytes.data(), count);
    used_ += count;
    bytes = bytes.subspan(count);
    if (used_ == kWindowBytes) flush();
  }
}

void WindowWriter::finish() {
  if (used_ > 0) flush();
}

void WindowWriter::flush() {
  write_at(fd_, offset_, {window_.get(), used_}, *path_);
  offset_ += used_;
  used_ = 0;
}

}  // namespace weightfs
