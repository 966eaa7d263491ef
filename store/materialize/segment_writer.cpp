#include "store/materialize/segment_writer.hpp"

#include <algorithm>

#include "store/base/bytes.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/window_writer.hpp"

namespace weightfs {
namespace {

/// The most chunks made at a time; larger chunks fill a window before that.
constexpr std::size_t kChunksAtOnce = 4096;

}  // namespace

SegmentWriter::SegmentWriter(const Plan& plan, const PackSpool& spool, Repository& repository,
                             kernels::ChunkCoder& coder, const Context& context, BuildMeter* meter,
                             const NotedChanges& noted)
    : plan_(plan),
      context_(context),
      coder_(coder),
      meter_(meter),
      maker_(plan, spool, open_base_reader(plan, repository, context, meter), coder, noted) {}

void SegmentWriter::write(const LayoutFile& file, int fd, const std::filesystem::path& path,
                          std::uint64_t begin, std::uint64_t end) {
  wanted_.clear();
  writer_.start(fd, path, begin, end, part_bytes(end - begin));
  if (end - begin <= kWindowBytes) expect(file, end);
  place_head(file, begin, end);
  place_tensors(file, begin, end);
  make_placed();
  const Clock::time_point made = Clock::now();
  writer_.finish();
  if (meter_ != nullptr) meter_->add_written(Clock::now() - made, end - begin);
}

/// What is read from an image and decoded on the CPU is built in parts that stay in the cache.
/// Everything else is built in whole windows: fewer requests to the bucket, fewer trips to a GPU.
std::uint64_t SegmentWriter::part_bytes(std::uint64_t segment_bytes) const {
  const bool is_cached =
      plan_.base && segment_bytes > kWindowBytes && coder_.decode_batch_bytes() <= kHalfWindowBytes;
  return is_cached ? kHalfWindowBytes : kWindowBytes;
}

/// Hints how far the snapshot's bytes will be read, if it has the same layout: to the end of the
/// last chunk.
void SegmentWriter::expect(const LayoutFile& file, std::uint64_t end) {
  if (!plan_.snapshot || plan_.snapshot->layout->id() != plan_.layout->id()) return;
  const auto tensors = plan_.layout->tensors_of(file);
  const auto behind = std::partition_point(
      tensors.begin(), tensors.end(),
      [&](const LayoutTensor& tensor) { return tensor.offset_bytes + tensor.size_bytes < end; });
  if (behind == tensors.end() || behind->offset_bytes >= end) return;
  const auto chunk = static_cast<std::uint32_t>((end - 1 - behind->offset_bytes) /
                                                kernels::chunk_bytes(behind->kind));
  const std::uint64_t chunk_end =
      behind->offset_bytes + behind->chunk_offset_bytes(chunk) + behind->chunk_size_bytes(chunk);
  const auto number = static_cast<std::uint32_t>(&file - plan_.layout->files().data());
  maker_.expect(number, chunk_end);
}

void SegmentWriter::place_head(const LayoutFile& file, std::uint64_t begin, std::uint64_t end) {
  const auto head = as_bytes(file.head);
  end = std::min<std::uint64_t>(end, head.size());
  for (std::uint64_t at = begin; at < end; at += kWindowBytes) {
    const auto size = static_cast<std::size_t>(std::min(end - at, kWindowBytes));
    const auto part = head.subspan(static_cast<std::size_t>(at), size);
    std::copy(part.begin(), part.end(), writer_.place(at, size).begin());
    if (writer_.is_full()) writer_.flush();
  }
}

void SegmentWriter::place_tensors(const LayoutFile& file, std::uint64_t begin, std::uint64_t end) {
  const auto tensors = plan_.layout->tensors_of(file);
  const auto first = std::partition_point(
      tensors.begin(), tensors.end(),
      [&](const LayoutTensor& tensor) { return tensor.offset_bytes + tensor.size_bytes <= begin; });
  for (auto tensor = first; tensor != tensors.end() && tensor->offset_bytes < end; ++tensor) {
    const auto number = file.first_tensor + static_cast<std::uint32_t>(tensor - tensors.begin());
    place_tensor(*tensor, number, begin, end);
  }
}

/// Places the chunks of a tensor that overlap the segment.
void SegmentWriter::place_tensor(const LayoutTensor& tensor, std::uint32_t number,
                                 std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t skipped = begin > tensor.offset_bytes ? begin - tensor.offset_bytes : 0;
  auto chunk = static_cast<std::uint32_t>(skipped / kernels::chunk_bytes(tensor.kind));
  for (; chunk < tensor.chunk_count; chunk++) {
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
    if (offset >= end) return;
    context_.check("writing images");
    place(number, chunk, offset, tensor.chunk_size_bytes(chunk));
  }
}

void SegmentWriter::place(std::uint32_t tensor, std::uint32_t chunk, std::uint64_t offset_bytes,
                          std::size_t size_bytes) {
  wanted_.push_back({tensor, chunk, writer_.place(offset_bytes, size_bytes)});
  if (writer_.is_full() || wanted_.size() == kChunksAtOnce) make_placed();
}

/// Makes the placed chunks and writes full windows.
void SegmentWriter::make_placed() {
  const Clock::time_point begin = Clock::now();
  maker_.make(wanted_);
  wanted_.clear();
  const Clock::time_point made = Clock::now();
  if (writer_.is_full()) writer_.flush();
  if (meter_ == nullptr) return;
  meter_->add_made(made - begin);
  meter_->add_written(Clock::now() - made, 0);
}

}  // namespace weightfs
