#include "store/format/checked_source.hpp"

#include <algorithm>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/format/pack.hpp"

namespace weightfs {

CheckedSource::CheckedSource(const Source& source, Check check)
    : source_(source), check_(std::move(check)) {}

void CheckedSource::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  while (!into.empty()) {
    const std::uint64_t piece = offset_bytes / kPieceBytes;
    const std::uint64_t begin = piece * kPieceBytes;
    const std::uint64_t end = std::min(begin + kPieceBytes, source_.size_bytes());
    const auto part = into.first(std::min<std::uint64_t>(into.size(), end - offset_bytes));
    if (part.size() == end - begin) {
      read_piece(piece, part);
    } else {
      Bytes whole(static_cast<std::size_t>(end - begin));
      read_piece(piece, whole);
      const auto skipped = static_cast<std::ptrdiff_t>(offset_bytes - begin);
      std::copy_n(whole.begin() + skipped, part.size(), part.begin());
    }
    into = into.subspan(part.size());
    offset_bytes += part.size();
  }
}

void CheckedSource::read_piece(std::uint64_t piece, std::span<std::byte> into) const {
  source_.read(piece * kPieceBytes, into);
  check_(static_cast<std::size_t>(piece), into);
}

}  // namespace weightfs
