// Somebody who writes through a mount's passthrough tells nobody, so the size is asked for.
#include "store/coding/growing_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::milliseconds kGrowthInterval{5};
constexpr std::uint64_t kCheckBatchBytes = 8u << 20;

}  // namespace

class GrowingFile::GrowingReader final : public Reader {
 public:
  explicit GrowingReader(const GrowingFile& growing) : growing_(growing) {}

  void read(ChunkPlace place, std::span<const std::byte> /*old_chunk*/,
            std::span<std::byte> into) override {
    const LayoutTensor& tensor = growing_.layout_->tensors()[place.tensor];
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk);
    const CheckpointFile& file = growing_.file();
    if (offset + into.size() > seen_) {
      growing_.wait_for(offset + into.size());
      seen_ = growing_.size_now();
    }
    if (read_at(growing_.opened_.fd(), offset, into, file.source)) return;
    throw Error(ErrorCode::busy, escape_name(file.source.string()) + " was cut");
  }

 private:
  const GrowingFile& growing_;
  std::uint64_t seen_ = 0;  // the size, when it was asked for
};

GrowingFile::GrowingFile(const std::filesystem::path& source, const std::string& path,
                         IsWritten is_written, const Context& context)
    : is_written_(std::move(is_written)),
      context_(context),
      opened_(File::open(source, O_RDONLY | O_NONBLOCK)) {
  checkpoint_.directory = source.parent_path();
  checkpoint_.is_linked_meanwhile = true;
  CheckpointFile& file = checkpoint_.files.emplace_back();
  file.path = path;
  file.source = source;
  file.kind = CheckpointFile::Kind::safetensors;
  read_header();
  file.stamp.size_bytes = file.head.size() + file.header.data_size_bytes;
  if (size_now() >= file.stamp.size_bytes) {
    throw Error(ErrorCode::busy, "it has its full size, whatever of it is written");
  }
  layout_ = Layout::from_checkpoint(checkpoint_);
}

void GrowingFile::read_header() {
  CheckpointFile& file = checkpoint_.files.front();
  while (true) {
    const bool may_come = is_written_();
    auto head = read_growing_header(opened_.fd(), escape_name(file.path), file.header);
    if (head) {
      file.head = std::move(*head);
      return;
    }
    if (!may_come) throw Error(ErrorCode::busy, "it ends within its header");
    context_.pause(kGrowthInterval, "waiting for a header");
  }
}

std::uint64_t GrowingFile::size_now() const { return stamp_of(opened_.fd()).size_bytes; }

void GrowingFile::wait_for(std::uint64_t size_bytes) const {
  while (true) {
    const bool may_come = is_written_();
    if (size_now() >= size_bytes) return;
    if (!may_come) throw Error(ErrorCode::busy, "it ends before its tensors do");
    context_.pause(kGrowthInterval, "waiting for a file to grow");
  }
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
