#include "store/base/source.hpp"

#include <cstring>

#include "store/base/error.hpp"

namespace weightfs {

void TextSource::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (offset_bytes > text_.size() || into.size() > text_.size() - offset_bytes) {
    throw Error(ErrorCode::io, "a source was read beyond its end");
  }
  if (!into.empty()) std::memcpy(into.data(), text_.data() + offset_bytes, into.size());
}

}  // namespace weightfs
