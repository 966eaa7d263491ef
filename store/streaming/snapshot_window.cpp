#include "store/streaming/snapshot_window.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/block/block.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/os/file.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {
namespace {

static_assert(kWindowBytes % kPieceBytes == 0);
/// A chunk lies in two windows at most.
static_assert(kernels::kChunkBytesMax <= kWindowBytes);

/// Memory before the window, and behind it.
constexpr std::uint64_t kBesideBytes = kernels::kChunkBytesMax;

}  // namespace

bool SnapshotWindow::suits(const Plan& plan) {
  return plan.snapshot && plan.steps.empty() && plan.snapshot->layout->id() == plan.layout->id();
}

SnapshotWindow::SnapshotWindow(const Plan& plan, Repository& repository, const Context& context,
                               BuildMeter* meter)
    : plan_(plan),
      pieces_(*plan.snapshot, repository.snapshot_reader(*plan.snapshot->version, context), context,
              meter),
      meter_(meter),
      memory_(std::make_unique_for_overwrite<std::byte[]>(kWindowBytes + 2 * kBesideBytes)) {}

bool SnapshotWindow::write(const LayoutFile& file, int fd, const std::filesystem::path& path,
                           std::uint64_t begin) {
  keep_tail(file, begin);
  file_ = nullptr;  // until all is fetched
  begin_ = begin;
  end_ = std::min(begin + kWindowBytes, file.size_bytes);
  const Clock::time_point asked = Clock::now();
  pieces_.read(plan_.layout->number_of(file), begin_ / kPieceBytes, bytes(begin_, end_));
  place_head(file);
  if (!check_inside(file)) return false;
  const Clock::time_point made = Clock::now();
  write_at(fd, begin_, bytes(begin_, end_), path);
  file_ = &file;
  if (meter_ != nullptr) {
    meter_->add_made(made - asked);
    meter_->add_written(Clock::now() - made, end_ - begin_);
  }
  return true;
}

bool SnapshotWindow::check_across(const LayoutFile& file, int fd, const std::filesystem::path& path,
                                  std::uint64_t end) {
  const auto chunk = find_across(*plan_.layout, file, end);
  if (!chunk) return true;
  if (end == end_) {
    const auto behind = bytes(end_, chunk->end);
    return read_at(fd, end_, behind, path) && is_right(*chunk);
  }
  const std::uint64_t missing = begin_ - chunk->begin;
  if (kept_ < missing) {
    if (!read_at(fd, chunk->begin, bytes(chunk->begin, begin_), path)) return false;
    kept_ = missing;
  }
  return is_right(*chunk);
}

bool SnapshotWindow::is_across(const Layout& layout, const LayoutFile& file,
                               std::uint64_t offset_bytes) {
  return find_across(layout, file, offset_bytes).has_value();
}

std::optional<SnapshotWindow::Place> SnapshotWindow::find_across(const Layout& layout,
                                                                 const LayoutFile& file,
                                                                 std::uint64_t offset_bytes) {
  const auto tensors = layout.tensors_of(file);
  const auto tensor = std::partition_point(
      tensors.begin(), tensors.end(),
      [&](const LayoutTensor& one) { return one.offset_bytes + one.size_bytes <= offset_bytes; });
  if (tensor == tensors.end() || tensor->offset_bytes >= offset_bytes) return std::nullopt;
  const std::uint64_t at = offset_bytes - tensor->offset_bytes;
  const auto index = static_cast<std::uint32_t>(at / kernels::chunk_bytes(tensor->kind));
  const std::uint64_t begin = tensor->offset_bytes + tensor->chunk_offset_bytes(index);
  if (begin == offset_bytes) return std::nullopt;
  return Place{tensor->first_chunk + index, begin, begin + tensor->chunk_size_bytes(index)};
}

/// If the window follows the one in memory: moves the beginning of the chunk across before it.
void SnapshotWindow::keep_tail(const LayoutFile& file, std::uint64_t begin) {
  kept_ = 0;
  if (file_ != &file || end_ != begin) return;
  const auto chunk = find_across(*plan_.layout, file, begin);
  if (!chunk || chunk->begin < begin_) return;
  kept_ = begin - chunk->begin;
  const auto tail = bytes(chunk->begin, begin);
  std::memmove(memory_.get() + kBesideBytes - kept_, tail.data(), tail.size());
}

/// The layout's, as in every image.
void SnapshotWindow::place_head(const LayoutFile& file) {
  const auto head = as_bytes(file.head);
  if (begin_ >= head.size()) return;
  const std::uint64_t end = std::min<std::uint64_t>(end_, head.size());
  const auto part =
      head.subspan(static_cast<std::size_t>(begin_), static_cast<std::size_t>(end - begin_));
  std::copy(part.begin(), part.end(), bytes(begin_, end).begin());
}

bool SnapshotWindow::check_inside(const LayoutFile& file) const {
  const auto tensors = plan_.layout->tensors_of(file);
  auto tensor = std::partition_point(tensors.begin(), tensors.end(), [&](const LayoutTensor& one) {
    return one.offset_bytes + one.size_bytes <= begin_;
  });
  for (; tensor != tensors.end() && tensor->offset_bytes < end_; ++tensor) {
    const std::uint64_t skipped = begin_ > tensor->offset_bytes ? begin_ - tensor->offset_bytes : 0;
    auto index = static_cast<std::uint32_t>(skipped / kernels::chunk_bytes(tensor->kind));
    for (; index < tensor->chunk_count; index++) {
      const std::uint64_t begin = tensor->offset_bytes + tensor->chunk_offset_bytes(index);
      const std::uint64_t end = begin + tensor->chunk_size_bytes(index);
      if (end > end_) break;
      if (begin >= begin_ && !is_right({tensor->first_chunk + index, begin, end})) return false;
    }
  }
  return true;
}

/// Requires: its bytes are in memory.
bool SnapshotWindow::is_right(const Place& chunk) const {
  return kernels::hash_chunk(bytes(chunk.begin, chunk.end)) ==
         plan_.hashes[static_cast<std::size_t>(chunk.number)];
}

/// The memory of a range of the file, which may begin before the window and end behind it.
std::span<std::byte> SnapshotWindow::bytes(std::uint64_t begin, std::uint64_t end) const {
  return {memory_.get() + static_cast<std::size_t>(begin + kBesideBytes - begin_),
          static_cast<std::size_t>(end - begin)};
}

}  // namespace weightfs
