#include "store/materialize/base_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "kernels/block/block.hpp"
#include "store/materialize/patch_applier.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/os/file.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {
namespace {

constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();

// Chunks of a snapshot straddle pieces and are read in order. Fetching a few pieces at a time saves
// requests; fetching more would hash pieces that the next segment's worker hashes too.
constexpr std::uint64_t kReadAheadPieces = 4;

// Pieces that the chunks of a window touch. The first and last chunk reach beyond the window, so
// this spans at most 8 MiB, not aligned to pieces.
constexpr std::uint64_t kWindowPieces = 2 * kernels::kChunkBytesMax / kPieceBytes + 1;
static_assert(kWindowBytes <= kernels::kChunkBytesMax);

class ImageBytes final : public BaseReader {
 public:
  explicit ImageBytes(const Base& base) : base_(base) {}

  void read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) override {
    const std::filesystem::path path = base_.directory / base_.layout->files()[file].path;
    open(file, path);
    bool whole = false;
    try {
      whole = read_at(open_.fd(), offset_bytes, into, path);
    } catch (const Error& error) {
      throw_damaged(error.what());
    }
    if (!whole) throw_damaged(path.string() + " is too short");
  }

 private:
  void open(std::uint32_t file, const std::filesystem::path& path) {
    if (number_ == file) return;
    number_ = kNoFile;
    try {
      open_ = File::open(path, O_RDONLY);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      throw_damaged(error.what());
    }
    number_ = file;
  }

  [[noreturn]] void throw_damaged(const std::string& reason) const {
    const std::uint64_t number = base_.images().number();
    throw BaseDamaged(number,
                      fmt::format("the images of version {} are damaged: {}", number, reason));
  }

  const Base& base_;
  std::uint32_t number_ = kNoFile;  // of open_
  File open_;
};

/// Chunks of images, and what the store's patches make of them.
class PatchedBytes final : public BaseReader {
 public:
  PatchedBytes(const Base& base, BuildMeter* meter)
      : base_(base), images_(base), applier_(base, meter) {}

  void read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) override {
    const Layout& layout = *base_.layout;
    const auto tensors = layout.tensors_of(layout.files()[file]);
    const auto tensor = std::partition_point(
        tensors.begin(), tensors.end(),
        [&](const LayoutTensor& one) { return one.offset_bytes + one.size_bytes <= offset_bytes; });
    const std::uint64_t inside = offset_bytes - tensor->offset_bytes;
    const ChunkPlace place{
        layout.files()[file].first_tensor + static_cast<std::uint32_t>(tensor - tensors.begin()),
        static_cast<std::uint32_t>(inside / kernels::chunk_bytes(tensor->kind))};
    assert(into.size() == tensor->chunk_size_bytes(place.chunk));
    // Headers may differ, and so the places of tensors in their file.
    const LayoutTensor& then = base_.images_layout().tensors()[place.tensor];
    images_.read(file, then.offset_bytes + inside, into);
    applier_.apply(place, into);
  }

 private:
  const Base& base_;
  ImageBytes images_;
  PatchApplier applier_;
};

class SnapshotBytes final : public BaseReader {
 public:
  SnapshotBytes(const StoredSnapshot& snapshot, Repository& repository, const Context& context,
                BuildMeter* meter)
      : snapshot_(snapshot),
        pieces_(snapshot, repository.snapshot_reader(*snapshot.version, context), context, meter) {}

  void read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) override {
    while (!into.empty()) {
      if (file != number_ || offset_bytes < begin_ || offset_bytes >= begin_ + size_) {
        fill(file, offset_bytes / kPieceBytes);
      }
      const auto at = static_cast<std::size_t>(offset_bytes - begin_);
      const std::size_t count = std::min(into.size(), size_ - at);
      std::memcpy(into.data(), buffer_.get() + at, count);
      into = into.subspan(count);
      offset_bytes += count;
    }
  }

  void expect(std::uint32_t file, std::uint64_t end_bytes) override {
    expected_file_ = file;
    expected_end_ = end_bytes;
  }

 private:
  /// How many pieces to fetch, beginning with `piece`.
  [[nodiscard]] std::uint64_t count_ahead(std::uint32_t file, std::uint64_t piece) const {
    if (file != expected_file_ || expected_end_ <= piece * kPieceBytes) return kReadAheadPieces;
    const std::uint64_t expected = (expected_end_ - 1) / kPieceBytes + 1 - piece;
    return expected <= kWindowPieces ? expected : kReadAheadPieces;
  }

  void fill(std::uint32_t file, std::uint64_t piece) {
    number_ = kNoFile;
    if (!buffer_) {
      buffer_ = std::make_unique_for_overwrite<std::byte[]>(kWindowPieces * kPieceBytes);
    }
    const std::uint64_t begin = piece * kPieceBytes;
    const std::uint64_t end = std::min((piece + count_ahead(file, piece)) * kPieceBytes,
                                       snapshot_.layout->files()[file].size_bytes);
    const auto size = static_cast<std::size_t>(end - begin);
    pieces_.read(file, piece, {buffer_.get(), size});
    begin_ = begin;
    size_ = size;
    number_ = file;
  }

  const StoredSnapshot& snapshot_;
  SnapshotPieces pieces_;
  std::unique_ptr<std::byte[]> buffer_;
  std::uint32_t number_ = kNoFile;  // the file that buffer_ holds a part of
  std::uint64_t begin_ = 0;         // offset of that part
  std::size_t size_ = 0;
  std::uint32_t expected_file_ = kNoFile;
  std::uint64_t expected_end_ = 0;
};

}  // namespace

std::unique_ptr<BaseReader> open_image_reader(const Base& base) {
  return std::make_unique<ImageBytes>(base);
}

std::unique_ptr<BaseReader> open_base_reader(const Base& base, BuildMeter* meter) {
  if (base.patched) return std::make_unique<PatchedBytes>(base, meter);
  return open_image_reader(base);
}

std::unique_ptr<BaseReader> open_base_reader(const Plan& plan, Repository& repository,
                                             const Context& context, BuildMeter* meter) {
  if (plan.base) return open_base_reader(*plan.base, meter);
  return std::make_unique<SnapshotBytes>(*plan.snapshot, repository, context, meter);
}

}  // namespace weightfs
