// The threads code batches in parallel. The thread that has coded the next batch in order appends
// it to the spool, with any finished batches after it.
#include "store/coding/delta_coder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "kernels/block/free_list.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/reorder_buffer.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kBatchBytes = 8u << 20;
constexpr std::size_t kBatchesOfThread = 4;          // being coded, or waiting for an earlier one
constexpr std::size_t kNotesBytesKept = 256u << 10;  // of a log, for the next chunk

/// A chunk that must be in a pack.
struct CodedChunk {
  ChunkPlace place;
  std::uint64_t hash = 0;
  std::uint32_t changed = 0;
  std::vector<std::uint32_t> lengths;
  Bytes data;
};
struct CodedBatch {
  std::vector<CodedChunk> chunks;
  ChunkPlace last;  // of the batch
  std::uint64_t size_bytes = 0;
  std::uint64_t unread_chunks = 0;
};

using Counterparts = std::vector<std::optional<std::uint32_t>>;

/// Shared by all threads; immutable.
struct Work {
  const NewChunks& chunks;
  const Base& base;
  Counterparts counterparts;
  kernels::ChunkCoder& coder;
  FreshChunks* fresh;  // may be null
};

/// Codes batches, one after another.
class BatchCoder {
 public:
  explicit BatchCoder(const Work& work)
      : work_(work), new_chunks_(work.chunks.open()), old_(open_base_reader(work.base)) {}

  CodedBatch code(const ChunkBatch& batch, std::span<std::uint64_t> hashes);

 private:
  /// The old bytes against which a chunk is coded.
  struct Old {
    const LayoutTensor* tensor = nullptr;  // in the parent; nullptr: zeros
    bool is_whole = false;                 // the parent's chunk is neither cut nor extended
  };

  [[nodiscard]] const LayoutTensor& tensor_of(ChunkPlace place) const {
    return work_.chunks.layout().tensors()[place.tensor];
  }
  [[nodiscard]] Old old_of(ChunkPlace place) const;
  void choose(const ChunkBatch& batch);
  [[nodiscard]] bool is_known_to_be_equal(const ChunkBatch& batch, std::size_t index) const;
  void make_room(const ChunkBatch& batch);
  void read(const ChunkBatch& batch);
  void read_old(ChunkPlace place, const Old& old, std::span<std::byte> into);
  void read_base(const LayoutTensor& tensor, std::uint32_t chunk, std::span<std::byte> into);
  void note_changes();
  void note(ChunkPlace place, const kernels::EncodeJob& job) const;
  void check(const ChunkBatch& batch, std::size_t index, const kernels::EncodeJob& job) const;
  void check_base(const LayoutTensor& tensor, std::uint32_t chunk, std::uint64_t found) const;

  const Work& work_;
  std::unique_ptr<NewChunks::Reader> new_chunks_;
  std::unique_ptr<BaseReader> old_;
  std::unique_ptr<std::byte[]> memory_;  // old and new bytes of a batch
  std::size_t capacity_ = 0;
  std::vector<std::size_t> coded_;        // the chunks of the batch that are read and coded
  std::vector<kernels::EncodeJob> jobs_;  // of these
  std::vector<kernels::ChangeLog> logs_;  // of the jobs; kept for their memory
};

CodedBatch BatchCoder::code(const ChunkBatch& batch, std::span<std::uint64_t> hashes) {
  choose(batch);
  read(batch);
  note_changes();
  work_.coder.encode(jobs_);
  CodedBatch result;
  result.last = batch.places.back();
  result.size_bytes = batch.size_bytes;
  result.unread_chunks = batch.places.size() - coded_.size();
  if (result.unread_chunks > 0) {
    const auto known = work_.chunks.hashes().subspan(batch.first_chunk, batch.places.size());
    std::ranges::copy(known, hashes.begin() + static_cast<std::ptrdiff_t>(batch.first_chunk));
  }
  for (std::size_t i = 0; i < jobs_.size(); i++) {
    kernels::EncodeJob& job = jobs_[i];
    const std::size_t index = coded_[i];
    const ChunkPlace place = batch.places[index];
    check(batch, index, job);
    hashes[batch.first_chunk + index] = job.new_hash;
    if (old_of(place).is_whole && job.coded.empty()) continue;
    note(place, job);
    result.chunks.push_back({place, job.new_hash, static_cast<std::uint32_t>(job.changed),
                             std::move(job.lengths), std::move(job.coded)});
  }
  return result;
}

void BatchCoder::note_changes() {
  const bool is_noted = work_.fresh != nullptr && work_.fresh->is_wanted();
  if (is_noted && logs_.size() < jobs_.size()) logs_.resize(jobs_.size());
  for (std::size_t i = 0; i < jobs_.size(); i++) jobs_[i].log = is_noted ? &logs_[i] : nullptr;
}

/// Requires: the job was checked.
void BatchCoder::note(ChunkPlace place, const kernels::EncodeJob& job) const {
  if (job.log == nullptr) return;
  if (old_of(place).is_whole) {
    work_.fresh->add({place, job.kind, static_cast<std::uint32_t>(job.new_chunk.size()),
                      job.old_hash, job.new_hash, *job.log});
  } else {
    work_.fresh->give_up("tensors come and go");
  }
  if (job.log->bytes.capacity() > kNotesBytesKept) *job.log = {};
}

/// Chunks whose bytes are needed.
void BatchCoder::choose(const ChunkBatch& batch) {
  coded_.clear();
  for (std::size_t i = 0; i < batch.places.size(); i++) {
    if (!is_known_to_be_equal(batch, i)) coded_.push_back(i);
  }
}

bool BatchCoder::is_known_to_be_equal(const ChunkBatch& batch, std::size_t index) const {
  const auto known = work_.chunks.hashes();
  if (known.empty()) return false;
  const ChunkPlace place = batch.places[index];
  const Old old = old_of(place);
  return old.is_whole && work_.base.hashes[old.tensor->first_chunk + place.chunk] ==
                             known[batch.first_chunk + index];
}

BatchCoder::Old BatchCoder::old_of(ChunkPlace place) const {
  const auto counterpart = work_.counterparts[place.tensor];
  if (!counterpart) return {};
  const LayoutTensor& tensor = work_.base.layout->tensors()[*counterpart];
  if (place.chunk >= tensor.chunk_count) return {};
  const std::size_t size = tensor_of(place).chunk_size_bytes(place.chunk);
  return {&tensor, tensor.chunk_size_bytes(place.chunk) == size};
}

void BatchCoder::make_room(const ChunkBatch& batch) {
  const auto size = static_cast<std::size_t>(2 * batch.size_bytes);
  if (size <= capacity_) return;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(size);
  capacity_ = size;
}

/// Reads the old and the new bytes of the chosen chunks, and makes an EncodeJob for each.
void BatchCoder::read(const ChunkBatch& batch) {
  make_room(batch);
  jobs_.resize(coded_.size());
  std::byte* next = memory_.get();
  for (std::size_t i = 0; i < jobs_.size(); i++) {
    const ChunkPlace place = batch.places[coded_[i]];
    const LayoutTensor& tensor = tensor_of(place);
    const std::size_t size = tensor.chunk_size_bytes(place.chunk);
    const std::span<std::byte> old_bytes(next, size), new_bytes(next + size, size);
    next += 2 * size;
    const Old old = old_of(place);
    read_old(place, old, old_bytes);
    const std::span<const std::byte> whole = old_bytes;
    new_chunks_->read(place, old.is_whole ? whole : whole.first(0), new_bytes);
    jobs_[i].kind = tensor.kind;
    jobs_[i].old_chunk = old_bytes;
    jobs_[i].new_chunk = new_bytes;
  }
}

void BatchCoder::read_old(ChunkPlace place, const Old& old, std::span<std::byte> into) {
  if (old.is_whole) {
    read_base(*old.tensor, place.chunk, into);
    return;
  }
  std::fill(into.begin(), into.end(), std::byte{0});
  if (old.tensor == nullptr) return;
  Bytes image(old.tensor->chunk_size_bytes(place.chunk));
  read_base(*old.tensor, place.chunk, image);
  check_base(*old.tensor, place.chunk, kernels::hash_chunk(image));
  std::copy_n(image.begin(), std::min(image.size(), into.size()), into.begin());
}

void BatchCoder::read_base(const LayoutTensor& tensor, std::uint32_t chunk,
                           std::span<std::byte> into) {
  old_->read(tensor.file, tensor.offset_bytes + tensor.chunk_offset_bytes(chunk), into);
}

void BatchCoder::check(const ChunkBatch& batch, std::size_t index,
                       const kernels::EncodeJob& job) const {
  const ChunkPlace place = batch.places[index];
  const Old old = old_of(place);
  if (old.is_whole) check_base(*old.tensor, place.chunk, job.old_hash);
  const auto known = work_.chunks.hashes();
  const bool is_right = known.empty() || known[batch.first_chunk + index] == job.new_hash;
  if (job.is_verified && is_right) return;
  const LayoutTensor& tensor = tensor_of(place);
  throw Error(
      ErrorCode::io,
      fmt::format(
          "chunk {} of tensor '{}' in {} did not decode to the same bytes ({}); nothing was "
          "published.  Check this machine's memory, and "
          "report it if it happens again",
          place.chunk, tensor.name, work_.chunks.layout().files()[tensor.file].path,
          work_.coder.name()));
}

void BatchCoder::check_base(const LayoutTensor& tensor, std::uint32_t chunk,
                            std::uint64_t found) const {
  const Base& base = work_.base;
  const std::uint64_t number = tensor.first_chunk + chunk;
  if (found == base.hashes[number]) return;
  const std::string where = fmt::format("chunk {} of tensor '{}'", chunk, tensor.name);
  if (base.patched && base.patched->changed[number]) {
    throw PatchDamaged(std::nullopt, fmt::format("the patches of {} do not lead to version {}",
                                                 where, base.version->number()));
  }
  const std::uint64_t version = base.images().number();
  const std::filesystem::path path = base.directory / base.layout->files()[tensor.file].path;
  throw BaseDamaged(version, fmt::format("{}, the image of version {} that the new version is "
                                         "coded against, is damaged: {} does not have the hash it "
                                         "was written with",
                                         path.string(), version, where));
}

bool needs_xr(const CodedChunk& chunk) {
  const std::byte* block = chunk.data.data();
  for (const std::uint32_t length : chunk.lengths) {
    if (length == 0) continue;
    const auto mode = static_cast<kernels::Mode>(*block);
    if (mode == kernels::Mode::xr || mode == kernels::Mode::xs) return true;
    block += length;
  }
  return false;
}

/// Appends coded chunks to spool files, and begins a new pack when one is large enough.
class CodedPacks {
 public:
  CodedPacks(const Layout& layout, const CodeOptions& options)
      : layout_(layout), options_(options) {}

  void add(const CodedBatch& batch) {
    for (const CodedChunk& chunk : batch.chunks) add(chunk);
    so_far_.last = batch.last;
    piece_bytes_ += batch.size_bytes;
    if (open_ && is_piece()) close();
  }

  [[nodiscard]] const CodedSoFar& so_far() const noexcept { return so_far_; }

  std::vector<std::shared_ptr<const SpooledPack>> finish() {
    if (open_) end_pack();
    return std::move(packs_);
  }

 private:
  void add(const CodedChunk& chunk);
  [[nodiscard]] bool is_piece() const noexcept {
    return options_.piece_bytes > 0 && piece_bytes_ >= options_.piece_bytes;
  }
  SpooledPack& open_pack();
  void close();
  void end_pack();

  const Layout& layout_;
  const CodeOptions& options_;
  std::vector<std::shared_ptr<const SpooledPack>> packs_;  // that are closed
  std::shared_ptr<SpooledPack> open_;                      // null: there is none
  std::uint64_t piece_bytes_ = 0;  // coded since a pack was closed; whole batches
  CodedSoFar so_far_;
};

void CodedPacks::add(const CodedChunk& chunk) {
  SpooledPack& pack = open_pack();
  write_at(pack.data.fd(), pack.data_size_bytes, chunk.data, options_.spool / "spool");
  pack.writer.add(chunk.place.tensor, chunk.place.chunk, chunk.lengths, chunk.hash, chunk.changed,
                  chunk.data);
  pack.data_size_bytes += chunk.data.size();
  so_far_.last = chunk.place;
  so_far_.changed_elements += chunk.changed;
  so_far_.needs_xr = so_far_.needs_xr || needs_xr(chunk);
}

/// The pack for the next chunk.
SpooledPack& CodedPacks::open_pack() {
  if (open_ && open_->data_size_bytes >= options_.pack_bytes) close();
  if (!open_) {
    open_ = std::make_shared<SpooledPack>(
        SpooledPack{PackWriter(layout_), File::temporary(options_.spool), 0});
  }
  return *open_;
}

/// Before the end.
void CodedPacks::close() {
  end_pack();
  if (options_.closed) options_.closed(packs_.back(), so_far_);
}

void CodedPacks::end_pack() {
  open_->writer.finish();
  packs_.push_back(std::move(open_));
  piece_bytes_ = 0;
}

std::size_t batches_ahead(unsigned threads) {
  if (threads == 0) threads = work_threads();
  return threads * kBatchesOfThread;
}

[[noreturn]] void refuse_spool() {
  throw Error(ErrorCode::io,
              "coded data was read back from its spool file with other bytes; nothing was "
              "published.  Check the disk of the store and this machine's memory");
}

}  // namespace

PackSource::PackSource(std::string_view head, const SpooledPack& pack)
    : head_(head),
      data_(pack.data.fd(), pack.data_size_bytes, "(spool)"),
      pieces_(pack.writer.pieces()),
      checked_(data_, [this](std::size_t piece, std::span<const std::byte> bytes) {
        if (sha256(bytes) != pieces_[piece]) refuse_spool();
      }) {}

std::uint64_t PackSource::size_bytes() const { return head_.size_bytes() + data_.size_bytes(); }

void PackSource::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  const std::uint64_t head_size = head_.size_bytes();
  if (offset_bytes < head_size) {
    const auto part = into.first(std::min<std::uint64_t>(into.size(), head_size - offset_bytes));
    head_.read(offset_bytes, part);
    into = into.subspan(part.size());
    offset_bytes += part.size();
  }
  if (!into.empty()) checked_.read(offset_bytes - head_size, into);
}

PackRef pack_ref(const SpooledPack& pack, std::string_view head) {
  PackRef ref;
  ref.size_bytes = head.size() + pack.data_size_bytes;
  ref.head_bytes = head.size();
  ref.head_sha256 = sha256(as_bytes(head));
  return ref;
}

CodedDelta code_delta(const CheckpointReader& reader, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress) {
  return code_delta(CheckpointChunks(reader), base, options, context, progress);
}

CodedDelta code_delta(const NewChunks& chunks, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress) {
  const Layout& layout = chunks.layout();
  FreshChunks* const fresh = options.coder->writes_logs() ? options.fresh : nullptr;
  if (options.fresh != nullptr && fresh == nullptr) options.fresh->give_up("the coder has no logs");
  const Work work{chunks, base, counterparts(layout, *base.layout), *options.coder, fresh};
  const auto batches = chunk_batches(layout, kBatchBytes, options.without);

  CodedDelta delta;
  delta.hashes.resize(layout.chunk_count());
  CodedPacks spool(layout, options);
  ReorderBuffer<CodedBatch> in_order(batches_ahead(options.threads), [&](const CodedBatch& batch) {
    spool.add(batch);
    delta.rollback.equal += batch.unread_chunks;
  });
  kernels::FreeList<BatchCoder> coders;
  std::atomic<std::uint64_t> done{0};
  std::uint64_t total = 0;
  for (const ChunkBatch& batch : batches) total += batch.size_bytes;
  const auto code = [&](std::size_t i) {
    const auto coder = coders.borrow([&] { return std::make_unique<BatchCoder>(work); });
    in_order.put(i, coder->code(batches[i], delta.hashes));
    const std::uint64_t now_done = done += batches[i].size_bytes;
    if (progress) progress("coding", now_done, total);
  };
  // Cancellation is checked here, not by parallel_for: a thread that takes a number must put its
  // batch or fail.
  parallel_for(batches.size(), options.threads, {}, [&](std::size_t i) {
    try {
      if (!in_order.wait_turn(i)) return;
      context.check("coding");
      if (options.before_batch) options.before_batch(context);
      code(i);
    } catch (...) {
      in_order.fail();
      throw;
    }
  });
  delta.changed_elements = spool.so_far().changed_elements;
  delta.needs_xr = spool.so_far().needs_xr;
  delta.packs = spool.finish();
  return delta;
}

}  // namespace weightfs
