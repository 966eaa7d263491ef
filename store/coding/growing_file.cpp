// Somebody who writes through a mount's passthrough tells nobody, so the size is asked for.
#include "store/coding/growing_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/os/holes.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

/// A file system shows that a page, or as many as it writes at a time, is there before all its
/// bytes are.
constexpr std::uint64_t kBeingCopied = 4u << 20;

constexpr std::uint64_t kCheckBatchBytes = 8u << 20;

}  // namespace

class GrowingFile::GrowingReader final : public Reader {
 public:
  explicit GrowingReader(const GrowingFile& growing) : growing_(growing) {}

  void read(ChunkPlace place, std::span<const std::byte> /*old_chunk*/,
            std::span<std::byte> into) override {
    const LayoutTensor& tensor = growing_.layout_->tensors()[place.tensor];
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk);
    const std::uint64_t end = offset + into.size();
    if (end > written_) written_ = growing_.wait_for(end);
    const std::filesystem::path& source = growing_.file().source;
    if (read_at(growing_.opened_.fd(), offset, into, source)) return;
    throw Error(ErrorCode::busy, escape_name(source.string()) + " was cut");
  }

 private:
  const GrowingFile& growing_;
  std::uint64_t written_ = 0;  // so many bytes are there
};

GrowingFile::GrowingFile(const std::filesystem::path& source, const std::string& path,
                         IsWritten is_written, Pauses pauses)
    : is_written_(std::move(is_written)),
      pauses_(pauses),
      opened_(File::open(source, O_RDONLY | O_NONBLOCK)),
      tells_of_holes_(tells_of_holes(opened_.fd())) {
  checkpoint_.directory = source.parent_path();
  checkpoint_.is_linked_meanwhile = true;
  CheckpointFile& file = checkpoint_.files.emplace_back();
  file.path = path;
  file.source = source;
  file.kind = CheckpointFile::Kind::safetensors;
  read_header();
  file.stamp.size_bytes = file.head.size() + file.header.data_size_bytes;
  if (written_bytes() >= file.stamp.size_bytes) {
    throw Error(ErrorCode::busy, "it is full, whatever of it is there");
  }
  layout_ = Layout::from_checkpoint(checkpoint_);
}

/// Until look(is_written) is true.  When the file is closed, it looks at once, and not again.
template <typename Look>
void GrowingFile::look_until(Look&& look) const {
  milliseconds pause = pauses_.first;
  for (bool is_written = is_written_(milliseconds(0)); !look(is_written);) {
    is_written = is_written_(pause);
    pause = std::min(2 * pause, pauses_.last);
  }
}

void GrowingFile::read_header() {
  CheckpointFile& file = checkpoint_.files.front();
  look_until([&](bool is_written) {
    auto head =
        read_growing_header(opened_.fd(), written_bytes(), escape_name(file.path), file.header);
    if (!head && !is_written) throw Error(ErrorCode::busy, "it ends within its header");
    if (head) file.head = std::move(*head);
    return head.has_value();
  });
}

/// How many bytes from its beginning are there, as far as the file system shows it.  SEEK_HOLE
/// waits for a write(2) that goes on, so this takes as long as that does.
std::uint64_t GrowingFile::written_bytes() const {
  const std::uint64_t size = stamp_of(opened_.fd()).size_bytes;
  if (!tells_of_holes_) return size;
  const off_t found = ::lseek(opened_.fd(), 0, SEEK_HOLE);
  if (found < 0) return 0;                              // it is empty
  const auto hole = static_cast<std::uint64_t>(found);  // a file without one has it at its end
  if (hole < size) has_size_first_ = true;
  return has_size_first_ ? hole - std::min(hole, kBeingCopied) : size;
}

/// Returns: how many bytes are there, which is at least `end_bytes`.
std::uint64_t GrowingFile::wait_for(std::uint64_t end_bytes) const {
  std::uint64_t there = 0;
  look_until([&](bool is_written) {
    there = is_written ? written_bytes() : stamp_of(opened_.fd()).size_bytes;
    if (there < end_bytes && !is_written) {
      throw Error(ErrorCode::busy, "it ends before its tensors do");
    }
    return there >= end_bytes;
  });
  return there;
}

std::unique_ptr<NewChunks::Reader> GrowingFile::open() const {
  return std::make_unique<GrowingReader>(*this);
}

bool has_hashes(const CheckpointReader& reader, std::span<const std::uint64_t> hashes,
                unsigned threads, const Context& context) {
  struct Hasher {
    explicit Hasher(const NewChunks& chunks) : reader(chunks.open()) {}
    const std::unique_ptr<NewChunks::Reader> reader;
    std::vector<std::byte> chunk;
  };
  const Layout& layout = reader.layout();
  const CheckpointChunks chunks(reader);
  const std::vector<ChunkBatch> batches = chunk_batches(layout, kCheckBatchBytes);
  kernels::FreeList<Hasher> hashers;
  std::atomic<bool> is_equal{true};
  parallel_for(batches.size(), threads, context, [&](std::size_t i) {
    const auto hasher = hashers.borrow([&] { return std::make_unique<Hasher>(chunks); });
    const ChunkBatch& batch = batches[i];
    for (std::size_t k = 0; k < batch.places.size() && is_equal; k++) {
      const ChunkPlace place = batch.places[k];
      hasher->chunk.resize(layout.tensors()[place.tensor].chunk_size_bytes(place.chunk));
      hasher->reader->read(place, {}, hasher->chunk);
      if (kernels::hash_chunk(hasher->chunk) != hashes[batch.first_chunk + k]) is_equal = false;
    }
  });
  return is_equal;
}

}  // namespace weightfs
