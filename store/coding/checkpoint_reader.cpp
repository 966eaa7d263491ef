#include "store/coding/checkpoint_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <mutex>
#include <utility>

#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/pack.hpp"
#include "store/os/lease.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kHashBatchBytes = 32u << 20;

/// Consecutive chunks of one file.
struct HashBatch {
  std::uint32_t file = 0;
  std::uint64_t begin = 0,
                end = 0;          // from its first chunk to that of the next batch; the first one
                                  // of a file has the header too, the last one goes to the end
  std::uint64_t first_chunk = 0;  // of the version
  std::vector<ChunkPlace> places = {};
};

/// Appends the batches of one file.
void add_batches(const Layout& layout, std::uint32_t number, std::vector<HashBatch>& batches) {
  const LayoutFile& file = layout.files()[number];
  HashBatch batch{.file = number};
  for (std::uint32_t i = 0; i < file.tensor_count; i++) {
    const LayoutTensor& tensor = layout.tensors()[file.first_tensor + i];
    for (std::uint32_t chunk = 0; chunk < tensor.chunk_count; chunk++) {
      const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
      if (!batch.places.empty() && offset - batch.begin >= kHashBatchBytes) {
        batch.end = offset;
        batches.push_back(std::exchange(batch, {.file = number, .begin = offset}));
      }
      if (batch.places.empty()) batch.first_chunk = tensor.first_chunk + chunk;
      batch.places.push_back({file.first_tensor + i, chunk});
    }
  }
  batch.end = file.size_bytes;
  batches.push_back(std::move(batch));
}

std::vector<HashBatch> hash_batches(const Layout& layout, const FileSet& without) {
  std::vector<HashBatch> batches;
  for (std::uint32_t file = 0; file < layout.files().size(); file++) {
    if (!contains(without, file)) add_batches(layout, file, batches);
  }
  return batches;
}

std::uint64_t size_bytes(const Layout& layout, const FileSet& without) {
  std::uint64_t size = 0;
  for (std::uint32_t file = 0; file < layout.files().size(); file++) {
    if (!contains(without, file)) size += layout.files()[file].size_bytes;
  }
  return size;
}

/// The hashes of all pieces.  A piece at the edge of two batches is hashed by both, and the hashes
/// must agree.
///
/// Threads: all calls may run in parallel.
class PieceTable {
 public:
  PieceTable(const Layout& layout, bool with_sha256) : with_sha256_(with_sha256) {
    for (const LayoutFile& file : layout.files()) {
      const auto count = static_cast<std::size_t>(piece_count(file.size_bytes));
      marks_.emplace_back(count);
      is_known_.emplace_back(count);
      if (with_sha256) pieces_.emplace_back(count);
    }
  }

  /// Returns: false if the piece already has another hash.
  [[nodiscard]] bool put(std::uint32_t file, std::uint64_t piece,
                         std::span<const std::byte> bytes) {
    const std::uint64_t mark = kernels::hash_chunk(bytes);
    const Sha256 hash = with_sha256_ ? sha256(bytes) : Sha256{};
    const std::lock_guard lock(mutex_);
    if (is_known_[file][piece]) return marks_[file][piece] == mark;
    is_known_[file][piece] = true;
    marks_[file][piece] = mark;
    if (with_sha256_) pieces_[file][piece] = hash;
    return true;
  }

  void finish(CheckpointHashes& hashes) {
    hashes.marks = std::move(marks_);
    hashes.pieces = std::move(pieces_);
  }

 private:
  const bool with_sha256_;
  RankedMutex mutex_{LockRank::leaf, "PieceTable::mutex_"};  // guards what follows
  std::vector<std::vector<std::uint64_t>> marks_;
  std::vector<std::vector<bool>> is_known_;
  std::vector<std::vector<Sha256>> pieces_;
};

/// Reads the pieces of a file in order, each once, and keeps those that overlap the current chunk.
class PieceWindow {
 public:
  PieceWindow(const CheckpointReader& reader, std::uint32_t file, std::uint64_t begin,
              PieceTable& pieces)
      : reader_(reader),
        number_(file),
        file_(*reader.weights()[file]),
        opened_(reader.open(file_)),
        pieces_(pieces),
        begin_(begin / kPieceBytes * kPieceBytes) {}

  /// Bytes [begin, end) of the file, valid until the next call.  Requires: neither bound decreases.
  std::span<const std::byte> get(std::uint64_t begin, std::uint64_t end) {
    drop_before(begin);
    while (begin_ + window_.size() < end) {
      read_piece();
      drop_before(begin);
    }
    return std::span(window_).subspan(static_cast<std::size_t>(begin - begin_),
                                      static_cast<std::size_t>(end - begin));
  }

 private:
  void drop_before(std::uint64_t begin) {
    const std::uint64_t keep = begin / kPieceBytes * kPieceBytes;
    if (keep <= begin_) return;
    const auto count = std::min<std::uint64_t>(keep - begin_, window_.size());
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(count));
    begin_ += count;
  }

  void read_piece() {
    const std::uint64_t offset = begin_ + window_.size();
    const std::uint64_t size = std::min(kPieceBytes, file_.stamp.size_bytes - offset);
    window_.resize(window_.size() + static_cast<std::size_t>(size));
    const auto piece = std::span(window_).last(static_cast<std::size_t>(size));
    reader_.read(opened_, file_, offset, piece);
    if (!is_as_scanned(offset, piece) || !pieces_.put(number_, offset / kPieceBytes, piece)) {
      reader_.refuse(file_);
    }
  }

  /// Whether the part of the header that lies in the piece equals the layout's header.
  [[nodiscard]] bool is_as_scanned(std::uint64_t offset, std::span<const std::byte> piece) const {
    const auto head = as_bytes(file_.head);
    if (offset >= head.size()) return true;
    const auto expected = head.subspan(static_cast<std::size_t>(offset));
    const std::size_t size = std::min(expected.size(), piece.size());
    return std::equal(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(size),
                      expected.begin());
  }

  const CheckpointReader& reader_;
  const std::uint32_t number_;
  const CheckpointFile& file_;
  const File opened_;
  PieceTable& pieces_;
  std::uint64_t begin_;  // offset of window_, a multiple of kPieceBytes
  Bytes window_;
};

void hash_batch(const HashBatch& batch, const CheckpointReader& reader, PieceTable& pieces,
                std::span<std::uint64_t> chunks) {
  PieceWindow window(reader, batch.file, batch.begin, pieces);
  for (std::size_t i = 0; i < batch.places.size(); i++) {
    const auto [number, chunk] = batch.places[i];
    const LayoutTensor& tensor = reader.layout().tensors()[number];
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
    chunks[batch.first_chunk + i] =
        kernels::hash_chunk(window.get(offset, offset + tensor.chunk_size_bytes(chunk)));
  }
  window.get(batch.end, batch.end);
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
  throw Error(
      ErrorCode::busy,
      fmt::format("{} was written to while it was published; publish again when the trainer "
                  "is done",
                  path_of(file).string()));
}

File CheckpointReader::open(const CheckpointFile& file) const {
  try {
    // O_NONBLOCK: a FIFO that replaced the file must not block.
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

void CheckpointReader::wait_unwritten(const Context& context) const {
  constexpr std::chrono::milliseconds kProbeInterval{10};  // there is no call that waits for a
                                                           // lease
  const Clock::time_point until = Clock::now() + kSourceWriterWait;
  for (const CheckpointFile& file : checkpoint_.files) {
    while (find_writers(open(file).fd()) == Writers::some) {
      if (Clock::now() >= until) {
        throw Error(ErrorCode::busy,
                    fmt::format("{} is still open for writing, or mapped by a writer; close it "
                                "first, then publish again",
                                path_of(file).string()));
      }
      context.pause(kProbeInterval, "waiting for the writers of " + path_of(file).string());
    }
  }
}

SnapshotSource::SnapshotSource(const CheckpointReader& reader, const CheckpointFile& file,
                               std::span<const std::uint64_t> marks)
    : reader_(reader),
      scanned_(file),
      marks_(marks),
      opened_(reader.open(file)),
      file_(opened_.fd(), file.stamp.size_bytes, reader.path_of(file)),
      pieces_(marks.size()),
      checked_(file_, [this](std::size_t piece, std::span<const std::byte> bytes) {
        check(piece, bytes);
      }) {
  assert(marks.size() == piece_count(file.stamp.size_bytes));
}

void SnapshotSource::check(std::size_t piece, std::span<const std::byte> bytes) const {
  if (kernels::hash_chunk(bytes) != marks_[piece]) reader_.refuse(scanned_);
  const Sha256 hash = sha256(bytes);
  const std::lock_guard lock(mutex_);
  if (pieces_[piece].value_or(hash) != hash) reader_.refuse(scanned_);
  pieces_[piece] = hash;
}

std::vector<Sha256> SnapshotSource::pieces() const {
  const auto known = [&](std::size_t piece) {
    const std::lock_guard lock(mutex_);
    return pieces_[piece];
  };
  std::vector<Sha256> pieces;
  Bytes buffer;
  for (std::size_t piece = 0; piece < marks_.size(); piece++) {
    const std::uint64_t offset = piece * kPieceBytes;
    if (!known(piece)) {
      buffer.resize(static_cast<std::size_t>(std::min(kPieceBytes, size_bytes() - offset)));
      read(offset, buffer);
    }
    pieces.push_back(*known(piece));
  }
  return pieces;
}

const File& LastOpened::get(std::uint32_t index) {
  if (index_ != index) {
    index_.reset();  // stays empty if the open fails
    file_ = open_(index);
    index_ = index;
  }
  return file_;
}

CheckpointHashes hash_checkpoint(const CheckpointReader& reader, const WhatToHash& what,
                                 unsigned threads, const Context& context,
                                 const Progress& progress) {
  const auto batches = hash_batches(reader.layout(), what.without);
  ProgressCounter counter(progress, "hashing", size_bytes(reader.layout(), what.without));
  CheckpointHashes hashes;
  hashes.chunks.resize(reader.layout().chunk_count());
  PieceTable pieces(reader.layout(), what.with_pieces);
  parallel_for(batches.size(), threads, context, [&](std::size_t i) {
    hash_batch(batches[i], reader, pieces, hashes.chunks);
    counter.add(batches[i].end - batches[i].begin);
  });
  pieces.finish(hashes);
  return hashes;
}

}  // namespace weightfs
