#include "store/sparse/sparse_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

static_assert(std::endian::native == std::endian::little, "indices are written as they lie");

/// Creates a file of this size.
File make_sparse_file(const std::filesystem::path& path, std::uint64_t size_bytes) {
  File file = File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  const auto size = static_cast<off_t>(size_bytes);
  int failed = 0;
  do {
    failed = ::fallocate(file.fd(), 0, 0, size) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == EOPNOTSUPP) failed = ::ftruncate(file.fd(), size) == 0 ? 0 : errno;
  if (failed != 0) throw_errno(failed, "make room for " + path.string());
  return file;
}

/// The index of each changed chunk's first entry within its tensor.
std::vector<std::uint64_t> first_entries(const Layout& layout, const SparseLayout& sparse,
                                         std::span<const std::uint32_t> changed) {
  std::vector<std::uint64_t> firsts(layout.chunk_count());
  for (const SparseLayout::Tensor& entry : sparse.tensors()) {
    const LayoutTensor& tensor = layout.tensors()[entry.number];
    std::uint64_t first = 0;
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      firsts[tensor.first_chunk + c] = first;
      first +=
          entries_of(entry.element, changed[tensor.first_chunk + c], tensor.chunk_size_bytes(c));
    }
  }
  return firsts;
}

template <typename Index>
void put_indices(std::uint64_t first_element, std::span<const std::uint32_t> positions,
                 std::vector<std::byte>& into) {
  into.resize(positions.size() * sizeof(Index));
  for (std::size_t i = 0; i < positions.size(); i++) {
    const auto index = static_cast<Index>(first_element + positions[i]);
    std::memcpy(into.data() + i * sizeof index, &index, sizeof index);
  }
}

}  // namespace

void put_values(std::size_t width_bytes, std::span<const std::byte> chunk,
                std::span<const std::uint32_t> positions, std::vector<std::byte>& into) {
  into.resize(positions.size() * width_bytes);
  for (std::size_t i = 0; i < positions.size(); i++) {
    std::memcpy(into.data() + i * width_bytes, chunk.data() + positions[i] * width_bytes,
                width_bytes);
  }
}

SparseFile::SparseFile(const Layout& layout, SparseLayout sparse,
                       std::span<const std::uint32_t> changed, std::filesystem::path path)
    : layout_(layout),
      sparse_(std::move(sparse)),
      path_(std::move(path)),
      firsts_(first_entries(layout, sparse_, changed)),
      file_(make_sparse_file(path_, sparse_.size_bytes())) {
  write_at(file_.fd(), 0, as_bytes(sparse_.head()), path_);
}

std::uint64_t SparseFile::write(ChunkPlace place, SparseEntries& entries) const {
  const SparseLayout::Tensor* const found = find(place.tensor);
  if (found == nullptr || entries.positions.empty()) return 0;
  const LayoutTensor& tensor = layout_.tensors()[place.tensor];
  const std::size_t width = found->element.width_bytes;
  const std::uint64_t first_element = tensor.chunk_offset_bytes(place.chunk) / width;
  if (found->wide) {
    put_indices<std::int64_t>(first_element, entries.positions, entries.indices);
  } else {
    put_indices<std::int32_t>(first_element, entries.positions, entries.indices);
  }
  const std::uint64_t first = firsts_[tensor.first_chunk + place.chunk];
  const std::uint64_t index_bytes = found->wide ? 8 : 4;
  write_at(file_.fd(), found->indices_offset_bytes + first * index_bytes, entries.indices, path_);
  write_at(file_.fd(), found->values_offset_bytes + first * width, entries.values, path_);
  const std::uint64_t written = entries.indices.size() + entries.values.size();
  if (found->old_offset_bytes == 0) return written;
  write_at(file_.fd(), found->old_offset_bytes + first * width, entries.old, path_);
  return written + entries.old.size();
}

void SparseFile::finish(std::int64_t time, bool sync) const {
  if (::fchmod(file_.fd(), 0444) != 0) throw_errno(errno, "set the mode of " + path_.string());
  const timespec times[2] = {{time, 0}, {time, 0}};
  if (::futimens(file_.fd(), times) != 0) throw_errno(errno, "set the time of " + path_.string());
  if (sync) fsync_file(file_.fd(), path_);
}

const SparseLayout::Tensor* SparseFile::find(std::uint32_t number) const {
  const auto tensors = sparse_.tensors();
  const auto found = std::partition_point(tensors.begin(), tensors.end(),
                                          [&](const auto& entry) { return entry.number < number; });
  return found != tensors.end() && found->number == number ? &*found : nullptr;
}

}  // namespace weightfs
