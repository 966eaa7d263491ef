#include "store/checkpoint_reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cassert>

#include "kernels/hash.hpp"
#include "store/bytes.hpp"
#include "store/chunk_batches.hpp"
#include "store/error.hpp"
#include "store/pack.hpp"
#include "store/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kHashBatchBytes = 32u << 20;

/// Pieces [first, first + count) of one file.
struct PieceBatch {
  std::uint32_t file = 0;
  std::uint64_t first = 0, count = 0;
};

std::vector<PieceBatch> piece_runs(const Layout& layout, const FileSet& without) {
  constexpr std::uint64_t kPieces = kHashBatchBytes / kPieceBytes;
  std::vector<PieceBatch> runs;
  for (std::uint32_t file = 0; file < layout.files().size(); file++) {
    if (contains(without, file)) continue;
    const std::uint64_t count = piece_count(layout.files()[file].size_bytes);
    for (std::uint64_t first = 0; first < count; first += kPieces) {
      runs.push_back({file, first, std::min(kPieces, count - first)});
    }
  }
  return runs;
}

std::uint64_t size_bytes(const Layout& layout, const FileSet& without) {
  std::uint64_t size = 0;
  for (std::uint32_t file = 0; file < layout.files().size(); file++) {
    if (!contains(without, file)) size += layout.files()[file].size_bytes;
  }
  return size;
}

/// Adds up what all threads did and tells it.
class Done {
 public:
  Done(const Progress& progress, std::uint64_t total_bytes)
      : progress_(progress), total_(total_bytes) {}

  void add(std::uint64_t bytes) {
    const std::uint64_t done = done_ += bytes;
    if (progress_) progress_("hashing", std::min(done, total_), total_);
  }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
};

void hash_chunks_of(const ChunkBatch& batch, const CheckpointReader& reader,
                    std::span<std::uint64_t> hashes) {
  LastOpened files([&](std::uint32_t index) { return reader.open(*reader.weights()[index]); });
  Bytes bytes;
  for (std::size_t i = 0; i < batch.places.size(); i++) {
    const auto [number, chunk] = batch.places[i];
    const LayoutTensor& tensor = reader.layout().tensors()[number];
    bytes.resize(tensor.chunk_size_bytes(chunk));
    reader.read(files.get(tensor.file), *reader.weights()[tensor.file],
                tensor.offset_bytes + tensor.chunk_offset_bytes(chunk), bytes);
    hashes[batch.first_chunk + i] = kernels::hash_chunk(bytes);
  }
}

void hash_pieces_of(const PieceBatch& run, const CheckpointReader& reader,
                    std::span<Sha256> pieces) {
  const CheckpointFile& file = *reader.weights()[run.file];
  const std::uint64_t size = reader.layout().files()[run.file].size_bytes;
  const File opened = reader.open(file);
  Bytes bytes;
  for (std::uint64_t piece = run.first; piece < run.first + run.count; piece++) {
    bytes.resize(std::min(kPieceBytes, size - piece * kPieceBytes));
    reader.read(opened, file, piece * kPieceBytes, bytes);
    pieces[piece] = sha256(bytes);
  }
}

std::vector<std::uint64_t> hash_chunks(const CheckpointReader& reader, unsigned threads,
                                       const FileSet& without, const Context& context, Done& done) {
  std::vector<std::uint64_t> hashes(reader.layout().chunk_count());
  const auto batches = chunk_batches(reader.layout(), kHashBatchBytes, without);
  parallel_for(batches.size(), threads, context, [&](std::size_t i) {
    hash_chunks_of(batches[i], reader, hashes);
    done.add(batches[i].size_bytes);
  });
  return hashes;
}

std::vector<std::vector<Sha256>> hash_pieces(const CheckpointReader& reader, unsigned threads,
                                             const FileSet& without, const Context& context,
                                             Done& done) {
  std::vector<std::vector<Sha256>> pieces;
  for (const LayoutFile& file : reader.layout().files()) {
    pieces.emplace_back(piece_count(file.size_bytes));
  }
  const auto runs = piece_runs(reader.layout(), without);
  parallel_for(runs.size(), threads, context, [&](std::size_t i) {
    hash_pieces_of(runs[i], reader, pieces[runs[i].file]);
    done.add(runs[i].count * kPieceBytes);
  });
  return pieces;
}

}  // namespace

CheckpointReader::CheckpointReader(const Checkpoint& checkpoint, const Layout& layout)
    : checkpoint_(checkpoint), layout_(layout) {
  for (const CheckpointFile& file : checkpoint.files) {
    (file.kind == CheckpointFile::Kind::blob ? blobs_ : weights_).push_back(&file);
  }
  assert(std::equal(weights_.begin(), weights_.end(), layout.files().begin(), layout.files().end(),
                    [](const CheckpointFile* scanned, const LayoutFile& described) {
                      return scanned->path == described.path;
                    }));
}

const std::filesystem::path& CheckpointReader::path_of(const CheckpointFile& file) const {
  return file.source;
}

void CheckpointReader::refuse(const CheckpointFile& file) const {
  throw Error(ErrorCode::busy, path_of(file).string() +
                                   " was written to while it was published; publish again when "
                                   "the trainer is done");
}

File CheckpointReader::open(const CheckpointFile& file) const {
  try {
    // O_NONBLOCK: a FIFO that took the file's place must not stop us.
    File opened = File::open(path_of(file), O_RDONLY | O_NONBLOCK);
    const FileStamp stamp = stamp_of(opened.fd());
    if (stamp == file.stamp) return opened;
    if (checkpoint_.is_linked_meanwhile && stamp.is_same_but_ctime(file.stamp)) return opened;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
  }
  refuse(file);
}

void CheckpointReader::read(const File& opened, const CheckpointFile& file,
                            std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (!read_at(opened.fd(), offset_bytes, into, path_of(file))) refuse(file);
}

std::string CheckpointReader::read_all(const CheckpointFile& file) const {
  const File opened = open(file);
  std::string bytes(file.stamp.size_bytes, '\0');
  read(opened, file, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void CheckpointReader::check_untouched() const {
  for (const CheckpointFile& file : checkpoint_.files) static_cast<void>(open(file));
}

const File& LastOpened::get(std::uint32_t index) {
  if (index_ != index) {
    index_.reset();  // stays so if the next one cannot be opened
    file_ = open_(index);
    index_ = index;
  }
  return file_;
}

SnapshotHashes hash_checkpoint(const CheckpointReader& reader, unsigned threads,
                               const FileSet& without, const Context& context,
                               const Progress& progress) {
  Done done(progress, 2 * size_bytes(reader.layout(), without));
  SnapshotHashes hashes;
  hashes.chunks = hash_chunks(reader, threads, without, context, done);
  hashes.pieces = hash_pieces(reader, threads, without, context, done);
  return hashes;
}

SnapshotHashes hash_checkpoint(const CheckpointReader& reader, unsigned threads,
                               const Context& context, const Progress& progress) {
  return hash_checkpoint(reader, threads, {}, context, progress);
}

std::vector<std::vector<Sha256>> hash_pieces(const CheckpointReader& reader, unsigned threads,
                                             const Context& context, const Progress& progress) {
  Done done(progress, reader.layout().size_bytes());
  return hash_pieces(reader, threads, {}, context, done);
}

}  // namespace weightfs
