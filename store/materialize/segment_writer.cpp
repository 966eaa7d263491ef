#include "store/materialize/segment_writer.hpp"

#include <algorithm>

#include "store/base/bytes.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/window_writer.hpp"

namespace weightfs {
namespace {

/// Chunks that are made at a time, at most; larger ones fill a window before.
constexpr std::size_t kChunksAtOnce = 4096;

}  // namespace

SegmentWriter::SegmentWriter(const Plan& plan, const PackSpool& spool, Repository& repository,
                             kernels::ChunkCoder& coder, const Context& context)
    : plan_(plan),
      context_(context),
      maker_(plan, spool, open_old_bytes(plan, repository, context), coder) {}

void SegmentWriter::write(const LayoutFile& file, int fd, const std::filesystem::path& path,
                          std::uint64_t begin, std::uint64_t end) {
  wanted_.clear();
  writer_.start(fd, path, begin, end);
  if (end - begin <= kWindowBytes) expect(file, end);
  place_head(file, begin, end);
  place_tensors(file, begin, end);
  make_placed();
  writer_.finish();
}

/// Where the snapshot has the same layout, its bytes are read up to the end of the last chunk.
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

/// Places the chunks of a tensor that lie in the segment, or reach into it.
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

/// Makes the chunks that were placed, and writes what fills a window.
void SegmentWriter::make_placed() {
  maker_.make(wanted_);
  wanted_.clear();
  if (writer_.is_full()) writer_.flush();
}

}  // namespace weightfs
