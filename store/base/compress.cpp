#include "store/base/compress.hpp"

#include <zstd.h>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

// Small objects are stored once and fetched by every host, so slow compression pays off.
constexpr std::size_t kSmallBytes = 1u << 20;
constexpr int kSmallLevel = 19;
constexpr int kLargeLevel = 3;

}  // namespace

std::uint64_t compressed_bytes_max(std::uint64_t size_bytes) noexcept {
  return size_bytes + size_bytes / 128 + 4096;
}

std::string compress(std::string_view bytes) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(),
                                         bytes.size() <= kSmallBytes ? kSmallLevel : kLargeLevel);
  if (ZSTD_isError(size)) {
    throw Error(ErrorCode::io, std::string("zstd: ") + ZSTD_getErrorName(size));
  }
  frame.resize(size);
  return frame;
}

std::string decompress(std::string_view frame, std::uint64_t size_bytes, std::string_view what) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::corrupt, std::string(what) + ": " + why);
  };
  const unsigned long long said = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (said == ZSTD_CONTENTSIZE_ERROR) throw refuse("not a zstd frame");
  if (said == ZSTD_CONTENTSIZE_UNKNOWN) throw refuse("the zstd frame has no content size");
  if (said != size_bytes) {
    throw refuse("holds " + std::to_string(said) + " bytes, expected " +
                 std::to_string(size_bytes));
  }
  const std::size_t frame_size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_size) || frame_size != frame.size()) {
    throw refuse("the zstd frame is truncated, or followed by more bytes");
  }
  std::string bytes(size_bytes, '\0');
  const std::size_t got = ZSTD_decompress(bytes.data(), bytes.size(), frame.data(), frame.size());
  if (ZSTD_isError(got)) throw refuse(std::string("zstd: ") + ZSTD_getErrorName(got));
  if (got != size_bytes) throw refuse("the zstd frame has less content than its header says");
  return bytes;
}

}  // namespace weightfs
