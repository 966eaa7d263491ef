// Waves: the threads code as many batches as fit into memory, then the results are appended in
// order, then comes the next wave.
#include "store/delta_coder.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <thread>

#include "kernels/decode.hpp"
#include "kernels/encode.hpp"
#include "kernels/hash.hpp"
#include "store/bytes.hpp"
#include "store/chunk_batches.hpp"
#include "store/error.hpp"
#include "store/pack.hpp"
#include "store/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kBatchBytes = 8u << 20;
constexpr std::size_t kBatchesOfThread = 4;  // in one wave

/// A chunk that must be in a pack; the spans lie in its batch.
struct CodedChunk {
  ChunkPlace place;
  std::uint64_t hash = 0;
  std::uint32_t changed = 0;
  std::size_t first_length = 0, length_count = 0;
  std::size_t offset = 0, size = 0;
};

struct CodedBatch {
  std::vector<CodedChunk> chunks;
  std::vector<std::uint32_t> lengths;
  Bytes data;
};

using Counterparts = std::vector<std::optional<std::uint32_t>>;

/// What all threads share; nothing of it changes.
struct Work {
  const CheckpointReader& reader;
  const Base& base;
  Counterparts counterparts;
};

/// Codes one batch.
class BatchCoder {
 public:
  explicit BatchCoder(const Work& work)
      : work_(work),
        new_files_([&](std::uint32_t file) { return work_.reader.open(*weights()[file]); }),
        old_files_([&](std::uint32_t file) { return open_image(file); }) {}

  CodedBatch code(const ChunkBatch& batch, std::span<std::uint64_t> hashes);

 private:
  [[nodiscard]] std::span<const CheckpointFile* const> weights() const {
    return work_.reader.weights();
  }
  [[nodiscard]] std::filesystem::path image_path(std::uint32_t file) const {
    return work_.base.directory / work_.base.layout->files()[file].path;
  }

  void code_chunk(ChunkPlace place);
  void read_new(const LayoutTensor& tensor, std::uint32_t chunk);
  bool read_old(ChunkPlace place);
  void read_old_whole(const LayoutTensor& tensor, std::uint32_t chunk);
  void check(const LayoutTensor& tensor, const CodedChunk& coded);
  File open_image(std::uint32_t file) const;
  [[noreturn]] void refuse_image(std::uint32_t file, std::string_view why) const;

  const Work& work_;
  LastOpened new_files_, old_files_;
  Bytes new_, old_, decoded_;
  kernels::Scratch scratch_;
  std::uint64_t new_hash_ = 0;
  CodedBatch result_;
};

CodedBatch BatchCoder::code(const ChunkBatch& batch, std::span<std::uint64_t> hashes) {
  for (std::size_t i = 0; i < batch.places.size(); i++) {
    code_chunk(batch.places[i]);
    hashes[batch.first_chunk + i] = new_hash_;
  }
  return std::move(result_);
}

void BatchCoder::code_chunk(ChunkPlace place) {
  const LayoutTensor& tensor = work_.reader.layout().tensors()[place.tensor];
  read_new(tensor, place.chunk);
  const bool may_be_left_out = read_old(place);

  CodedChunk coded;
  coded.place = place;
  coded.first_length = result_.lengths.size();
  coded.offset = result_.data.size();
  coded.changed = static_cast<std::uint32_t>(
      kernels::encode_chunk(tensor.kind, old_, new_, scratch_, result_.lengths, result_.data));
  coded.length_count = result_.lengths.size() - coded.first_length;
  coded.size = result_.data.size() - coded.offset;
  check(tensor, coded);
  new_hash_ = coded.hash = kernels::hash_chunk(new_);

  if (coded.size == 0 && may_be_left_out) {
    result_.lengths.resize(coded.first_length);
  } else {
    result_.chunks.push_back(coded);
  }
}

void BatchCoder::read_new(const LayoutTensor& tensor, std::uint32_t chunk) {
  new_.resize(tensor.chunk_size_bytes(chunk));
  work_.reader.read(new_files_.get(tensor.file), *weights()[tensor.file],
                    tensor.offset_bytes + tensor.chunk_offset_bytes(chunk), new_);
}

/// Fills old_ to the size of new_.  Returns: whether the chunk need not be in a pack if it did not
/// change: the parent has a chunk of that number and size.
bool BatchCoder::read_old(ChunkPlace place) {
  old_.clear();
  bool same_size = false;
  if (const auto counterpart = work_.counterparts[place.tensor]) {
    const LayoutTensor& tensor = work_.base.layout->tensors()[*counterpart];
    if (place.chunk < tensor.chunk_count) {
      read_old_whole(tensor, place.chunk);
      same_size = old_.size() == new_.size();
    }
  }
  old_.resize(new_.size());
  return same_size;
}

void BatchCoder::read_old_whole(const LayoutTensor& tensor, std::uint32_t chunk) {
  old_.resize(tensor.chunk_size_bytes(chunk));
  bool complete = false;
  try {
    complete = read_at(old_files_.get(tensor.file).fd(),
                       tensor.offset_bytes + tensor.chunk_offset_bytes(chunk), old_,
                       image_path(tensor.file));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    refuse_image(tensor.file, error.what());
  }
  if (!complete) refuse_image(tensor.file, "it is too short");
  if (kernels::hash_chunk(old_) != work_.base.hashes[tensor.first_chunk + chunk]) {
    refuse_image(tensor.file, fmt::format("chunk {} of tensor '{}' does not have the hash it "
                                          "was written with",
                                          chunk, tensor.name));
  }
}

/// Decodes what was just coded.
void BatchCoder::check(const LayoutTensor& tensor, const CodedChunk& coded) {
  decoded_.resize(new_.size());
  const auto lengths = std::span(result_.lengths).subspan(coded.first_length, coded.length_count);
  const auto data = std::span(result_.data).subspan(coded.offset, coded.size);
  if (kernels::decode_chunk(tensor.kind, old_, lengths, data, decoded_, scratch_) && decoded_ == new_) return;
  throw Error(ErrorCode::io,
              fmt::format("chunk {} of tensor '{}' in {} does not come back from its code as it "
                          "went in; nothing was published.  Check this machine's memory, and "
                          "report it if it happens again",
                          coded.place.chunk, tensor.name, weights()[tensor.file]->path));
}

File BatchCoder::open_image(std::uint32_t file) const {
  try {
    return File::open(image_path(file), O_RDONLY);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    refuse_image(file, "it is gone");
  }
}

void BatchCoder::refuse_image(std::uint32_t file, std::string_view why) const {
  const std::uint64_t version = work_.base.version->number();
  throw BaseDamaged(version, fmt::format("{}, the image of version {} that the new version is "
                                         "coded against, is damaged: {}",
                                         image_path(file).string(), version, why));
}

/// Appends coded chunks to spool files, and begins a new one when a pack is large enough.
class PackSpool {
 public:
  PackSpool(const Layout& layout, const CodeOptions& options)
      : layout_(layout), options_(options) {}

  void add(const CodedBatch& batch) {
    for (const CodedChunk& chunk : batch.chunks) add(batch, chunk);
  }

  std::vector<SpooledPack> finish() {
    if (writer_) close_pack();
    return std::move(packs_);
  }

 private:
  void add(const CodedBatch& batch, const CodedChunk& chunk);
  void open_pack();
  void close_pack();

  const Layout& layout_;
  const CodeOptions& options_;
  std::optional<PackWriter> writer_;  // of packs_.back(), while it is open
  std::vector<SpooledPack> packs_;
};

void PackSpool::add(const CodedBatch& batch, const CodedChunk& chunk) {
  if (writer_ && packs_.back().data_size_bytes >= options_.pack_bytes) close_pack();
  if (!writer_) open_pack();
  SpooledPack& pack = packs_.back();
  const auto lengths = std::span(batch.lengths).subspan(chunk.first_length, chunk.length_count);
  const auto data = std::span(batch.data).subspan(chunk.offset, chunk.size);
  write_at(pack.data.fd(), pack.data_size_bytes, data, options_.spool / "spool");
  writer_->add(chunk.place.tensor, chunk.place.chunk, lengths, chunk.hash, chunk.changed, data);
  pack.data_size_bytes += data.size();
}

void PackSpool::open_pack() {
  packs_.push_back({{}, File::temporary(options_.spool), 0});
  writer_.emplace(layout_);
}

void PackSpool::close_pack() {
  packs_.back().head = writer_->finish();
  writer_.reset();
}

std::uint64_t changed_elements_of(const CodedBatch& batch) {
  std::uint64_t changed = 0;
  for (const CodedChunk& chunk : batch.chunks) changed += chunk.changed;
  return changed;
}

std::size_t batches_of_wave(unsigned threads) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  return threads * kBatchesOfThread;
}

}  // namespace

CodedDelta code_delta(const CheckpointReader& reader, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress) {
  const Layout& layout = reader.layout();
  const Work work{reader, base, counterparts(layout, *base.layout)};
  const auto batches = chunk_batches(layout, kBatchBytes);
  const std::size_t wave = batches_of_wave(options.threads);

  CodedDelta delta;
  delta.hashes.resize(layout.chunk_count());
  PackSpool spool(layout, options);
  std::atomic<std::uint64_t> done{0};
  for (std::size_t first = 0; first < batches.size(); first += wave) {
    std::vector<CodedBatch> coded(std::min(wave, batches.size() - first));
    parallel_for(coded.size(), options.threads, context, [&](std::size_t i) {
      const ChunkBatch& batch = batches[first + i];
      coded[i] = BatchCoder(work).code(batch, delta.hashes);
      const std::uint64_t now_done = done += batch.size_bytes;
      if (progress) progress("coding", now_done, layout.size_bytes());
    });
    for (const CodedBatch& batch : coded) {
      spool.add(batch);
      delta.changed_elements += changed_elements_of(batch);
    }
  }
  delta.packs = spool.finish();
  return delta;
}

}  // namespace weightfs
