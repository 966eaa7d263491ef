// The layout of a lane's trips (kernels/cuda/trip.hpp) that encode and decode:
//
//     encode   up   [old chunks][new chunks][tasks: encode, decode, hash], then [tasks: seal]
//              down [results][good][hashes], then [seals] and the used part of [packed]
//              stay [slots: one for each coded block][scratch]
//     decode   up   [tasks: decode, hash][coded][chunks]
//              down                             [chunks][good][hashes]
//
// The device encodes each block into a slot of its own, packs the slots back to back, and decodes
// the packed blocks over the old chunks.  A chunk whose hash is then that of the new chunk is
// verified.  That is so of the device's memory: the host compares its own hashes of the chunks that
// went up, and of what comes down, be it coded (the seals are the device's hashes of it) or
// decoded.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/lane.hpp"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/trip.hpp"

namespace weightfs::kernels::cuda {

namespace {

constexpr const char* kChanged = "bytes changed on the way";

/// Copies block b from its slot to the end of the preceding blocks, and completes its decode task.
///
/// Launched with one thread block for each coded block.
__global__ void pack_blocks(const EncodeTask* tasks_dev, const CodedResult* results_dev,
                            std::uint8_t* packed_dev, DecodeTask* decode_tasks_dev) {
  std::uint8_t* const packed = pack_block(results_dev, tasks_dev[blockIdx.x].coded_dev, packed_dev);
  if (threadIdx.x == 0) {
    decode_tasks_dev[blockIdx.x].coded_dev = packed;
    decode_tasks_dev[blockIdx.x].coded_size = results_dev[blockIdx.x].size;
  }
}

// ---- encode -------------------------------------------------------------------------------------

constexpr std::size_t kSeals = 2;  // of the results, of the packed bytes

/// The part of a lane that jobs need; padding between arrays is added in bytes().
struct EncodeNeed {
  std::size_t jobs = 0, blocks = 0, chunk_bytes = 0, slot_bytes = 0, packed_bytes = 0;

  void add(Kind kind, std::size_t chunk_size) {
    const std::size_t count = blocks_of(kind, chunk_size);
    jobs += 1;
    blocks += count;
    chunk_bytes += aligned(chunk_size);
    slot_bytes += count * aligned(coded_block_bytes_max(kind));
    packed_bytes += count + chunk_size;
  }
  [[nodiscard]] std::size_t bytes() const {
    return 2 * chunk_bytes + slot_bytes + packed_bytes +
           blocks * (sizeof(EncodeTask) + sizeof(DecodeTask) + sizeof(CodedResult) + 1) +
           (jobs * 3 + kSeals) * (sizeof(HashTask) + sizeof(std::uint64_t)) +
           encode_scratch_bytes(static_cast<std::uint32_t>(blocks)) + kArraysMax * kAlignment;
  }
};

class EncodeTrip {
 public:
  EncodeTrip(LaneMemory& lane, HashChunk hash, std::span<EncodeJob> jobs, const EncodeNeed& need)
      : trip_(lane), host_hash_(hash), jobs_(jobs), need_(need) {
    old_ = trip_.take<std::uint8_t>(need.chunk_bytes);
    new_ = trip_.take<std::uint8_t>(need.chunk_bytes);
    encode_ = trip_.take<EncodeTask>(need.blocks);
    decode_ = trip_.take<DecodeTask>(need.blocks);
    hash_ = trip_.take<HashTask>(2 * need.jobs);  // old chunks, then new ones
    seal_ = trip_.take<HashTask>(kSeals);
    results_ = trip_.take<CodedResult>(need.blocks);
    good_ = trip_.take<std::uint8_t>(need.blocks);
    hashes_ = trip_.take<std::uint64_t>(3 * need.jobs);  // old, new, decoded
    seals_ = trip_.take<std::uint64_t>(kSeals);
    packed_ = trip_.take<std::uint8_t>(need.packed_bytes);
    slots_ = trip_.take<std::uint8_t>(need.slot_bytes);
    scratch_ = trip_.take<std::uint8_t>(encode_scratch_bytes(block_count()));
  }

  void run() {
    write_chunks_and_tasks();
    trip_.copy_up(0, hash_.end());
    launch();
    trip_.copy_down(results_.offset, hashes_.end());
    fetch_packed(packed_size());
    read_results();
  }

 private:
  [[nodiscard]] std::uint32_t block_count() const {
    return static_cast<std::uint32_t>(need_.blocks);
  }
  [[nodiscard]] std::uint32_t job_count() const { return static_cast<std::uint32_t>(need_.jobs); }

  void write_chunks_and_tasks() {
    std::size_t chunk = 0, slot = 0, block = 0, number = 0;
    for (const EncodeJob& job : jobs_) {
      const std::size_t size = job.new_chunk.size();
      if (size != 0) {
        std::memcpy(trip_.host(old_) + chunk, job.old_chunk.data(), size);
        std::memcpy(trip_.host(new_) + chunk, job.new_chunk.data(), size);
      }
      trip_.host(hash_)[number] = {trip_.dev(old_) + chunk, size};
      trip_.host(hash_)[need_.jobs + number++] = {trip_.dev(new_) + chunk, size};
      for (std::size_t i = 0; i < blocks_of(job.kind, size); ++i, ++block) {
        const std::size_t at = chunk + i * block_bytes(job.kind);
        const std::uint32_t elements = elements_of(job.kind, size, i);
        trip_.host(encode_)[block] = {trip_.dev(old_) + at, trip_.dev(new_) + at,
                                      trip_.dev(slots_) + slot, elements, job.kind};
        trip_.host(decode_)[block] = {nullptr, trip_.dev(old_) + at, 0, elements, job.kind};
        slot += aligned(coded_block_bytes_max(job.kind));
      }
      chunk += aligned(size);
    }
  }

  void launch() {
    check(hash_chunks(trip_.dev(hash_), 2 * job_count(), trip_.dev(hashes_), trip_.stream()),
          "hashing chunks");
    check(encode_blocks(trip_.dev(encode_), block_count(), trip_.dev(results_), trip_.dev(scratch_),
                        trip_.stream()),
          "coding blocks");
    if (block_count() != 0) {
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(block_count());
      config.blockDim = dim3(kPackThreads);
      config.stream = trip_.stream();
      check(cudaLaunchKernelEx(&config, pack_blocks, trip_.dev(encode_), trip_.dev(results_),
                               trip_.dev(packed_), trip_.dev(decode_)),
            "packing coded blocks");
    }
    check(decode_blocks(trip_.dev(decode_), block_count(), trip_.dev(good_), trip_.stream()),
          "decoding blocks");
    check(hash_chunks(trip_.dev(hash_), job_count(), trip_.dev(hashes_) + 2 * need_.jobs,
                      trip_.stream()),
          "hashing chunks");
  }

  /// The size of all coded bytes.  An impossible size would make us read past the buffer.
  [[nodiscard]] std::size_t packed_size() const {
    std::size_t size = 0;
    for (std::size_t i = 0; i < need_.blocks; ++i) {
      const EncodeTask& task = trip_.host(encode_)[i];
      const CodedResult& result = trip_.host(results_)[i];
      if (result.is_good == 0 || result.size > 1 + task.elements * width_bytes(task.kind))
        throw CudaFailure{"coding blocks", "the device gave a result that cannot be"};
      size += result.size;
    }
    return size;
  }

  /// Copies the packed bytes down; these and the results must be what the device verified.
  void fetch_packed(std::size_t packed) {
    const ByteSpan results = trip_.host_bytes(results_);
    trip_.host(seal_)[0] = {reinterpret_cast<std::uint8_t*>(trip_.dev(results_)), results.size()};
    trip_.host(seal_)[1] = {trip_.dev(packed_), packed};
    trip_.copy_up(seal_.offset, seal_.end());
    check(hash_chunks(trip_.dev(seal_), kSeals, trip_.dev(seals_), trip_.stream()),
          "hashing coded blocks");
    trip_.copy_down(seals_.offset, packed_.offset + packed);
    if (host_hash_(results) != trip_.host(seals_)[0] ||
        host_hash_(trip_.host_bytes(packed_).first(packed)) != trip_.host(seals_)[1])
      throw CudaFailure{"copying from the device", kChanged};
  }

  /// The device may have verified other chunks than the caller's.
  void check_chunks_read(const EncodeJob& job) const {
    if (host_hash_(job.old_chunk) != job.old_hash || host_hash_(job.new_chunk) != job.new_hash)
      throw CudaFailure{"copying to the device", kChanged};
  }

  void read_results() const {
    const auto* const packed = reinterpret_cast<const std::byte*>(trip_.host(packed_));
    const std::uint64_t* const hashes = trip_.host(hashes_);
    std::size_t begin = 0, block = 0, number = 0;
    for (EncodeJob& job : jobs_) {
      job.lengths.clear();
      job.changed = 0;
      std::size_t size = 0;
      bool is_good = true;
      for (std::size_t i = 0; i < blocks_of(job.kind, job.new_chunk.size()); ++i, ++block) {
        const CodedResult& result = trip_.host(results_)[block];
        job.lengths.push_back(result.size);
        job.changed += result.changed;
        size += result.size;
        is_good = is_good && trip_.host(good_)[block] != 0;
      }
      job.coded.assign(packed + begin, packed + begin + size);
      begin += size;
      job.old_hash = hashes[number];
      job.new_hash = hashes[need_.jobs + number];
      job.is_verified = is_good && hashes[2 * need_.jobs + number] == job.new_hash;
      if (!job.is_verified)
        throw CudaFailure{"coding blocks", "a coded chunk does not decode to the chunk again"};
      check_chunks_read(job);
      ++number;
    }
  }

  Trip trip_;
  HashChunk host_hash_;
  std::span<EncodeJob> jobs_;
  EncodeNeed need_;
  Array<std::uint8_t> old_, new_, good_, packed_, slots_, scratch_;
  Array<EncodeTask> encode_;
  Array<DecodeTask> decode_;
  Array<HashTask> hash_, seal_;
  Array<CodedResult> results_;
  Array<std::uint64_t> hashes_, seals_;
};

// ---- decode -------------------------------------------------------------------------------------

/// The rest of a job: steps that did not fit into one trip continue from its result.
struct DecodePiece {
  DecodeJob* job;
  ByteSpan old_chunk;
  std::span<const CodedChunk> steps;
};

struct DecodeNeed {
  std::size_t pieces = 0, tasks = 0, coded_bytes = 0, chunk_bytes = 0;

  void add_piece(std::size_t chunk_size) {
    pieces += 1;
    chunk_bytes += aligned(chunk_size);
  }
  void add_step(const CodedChunk& step) {
    tasks += step.lengths.size();
    coded_bytes += step.coded.size();
  }
  [[nodiscard]] std::size_t bytes() const {
    return chunk_bytes + coded_bytes + tasks * (sizeof(DecodeTask) + 1) +
           pieces * (sizeof(HashTask) + sizeof(std::uint64_t)) + kArraysMax * kAlignment;
  }
};

/// True if each length is possible for its block, and they add up to `coded`.
bool is_plausible(const DecodeJob& job, const CodedChunk& step) {
  if (step.lengths.size() != blocks_of(job.kind, job.old_chunk.size())) return false;
  std::size_t size = 0;
  for (std::size_t i = 0; i < step.lengths.size(); ++i) {
    if (step.lengths[i] >
        1 + elements_of(job.kind, job.old_chunk.size(), i) * width_bytes(job.kind))
      return false;
    size += step.lengths[i];
  }
  return size == step.coded.size();
}

class DecodeTrip {
 public:
  DecodeTrip(LaneMemory& lane, HashChunk hash, std::span<const DecodePiece> pieces,
             const DecodeNeed& need)
      : trip_(lane), host_hash_(hash), pieces_(pieces) {
    tasks_ = trip_.take<DecodeTask>(need.tasks);
    hash_ = trip_.take<HashTask>(need.pieces);
    coded_ = trip_.take<std::uint8_t>(need.coded_bytes);
    chunks_ = trip_.take<std::uint8_t>(need.chunk_bytes);
    good_ = trip_.take<std::uint8_t>(need.tasks);
    hashes_ = trip_.take<std::uint64_t>(need.pieces);
  }

  void run() {
    write_chunks();
    write_tasks();
    trip_.copy_up(0, chunks_.end());
    for (std::size_t step = 0; step + 1 < step_begin_.size(); ++step) {
      const auto begin = step_begin_[step];
      check(decode_blocks(trip_.dev(tasks_) + begin,
                          static_cast<std::uint32_t>(step_begin_[step + 1] - begin),
                          trip_.dev(good_) + begin, trip_.stream()),
            "decoding blocks");
    }
    check(hash_chunks(trip_.dev(hash_), static_cast<std::uint32_t>(pieces_.size()),
                      trip_.dev(hashes_), trip_.stream()),
          "hashing chunks");
    trip_.copy_down(chunks_.offset, hashes_.end());
    read_results();
  }

 private:
  void write_chunks() {
    std::size_t at = 0, number = 0;
    for (const DecodePiece& piece : pieces_) {
      const std::size_t size = piece.old_chunk.size();
      if (size != 0) std::memcpy(trip_.host(chunks_) + at, piece.old_chunk.data(), size);
      trip_.host(hash_)[number++] = {trip_.dev(chunks_) + at, size};
      at += aligned(size);
    }
  }

  /// The first steps of all pieces, then the second ones, ...: each is one launch.
  void write_tasks() {
    std::size_t steps = 0, coded = 0;
    for (const DecodePiece& piece : pieces_) steps = std::max(steps, piece.steps.size());
    for (std::size_t step = 0; step < steps; ++step) {
      step_begin_.push_back(owners_.size());
      std::size_t chunk = 0;
      for (const DecodePiece& piece : pieces_) {
        if (step < piece.steps.size()) coded += write_step(piece, piece.steps[step], chunk, coded);
        chunk += aligned(piece.old_chunk.size());
      }
    }
    step_begin_.push_back(owners_.size());
  }

  /// Returns: the number of coded bytes added.
  std::size_t write_step(const DecodePiece& piece, const CodedChunk& step, std::size_t chunk,
                         std::size_t coded) {
    if (step.coded.empty()) return 0;
    std::memcpy(trip_.host(coded_) + coded, step.coded.data(), step.coded.size());
    std::size_t begin = coded;
    const Kind kind = piece.job->kind;
    for (std::size_t i = 0; i < step.lengths.size(); ++i) {
      if (step.lengths[i] == 0) continue;
      trip_.host(tasks_)[owners_.size()] = {
          trip_.dev(coded_) + begin, trip_.dev(chunks_) + chunk + i * block_bytes(kind),
          step.lengths[i], elements_of(kind, piece.old_chunk.size(), i), kind};
      owners_.push_back(piece.job);
      begin += step.lengths[i];
    }
    return step.coded.size();
  }

  void read_results() const {
    std::size_t at = 0, number = 0;
    for (std::size_t i = 0; i < owners_.size(); ++i)
      if (trip_.host(good_)[i] == 0) owners_[i]->is_decoded = false;
    for (const DecodePiece& piece : pieces_) {
      const std::size_t size = piece.old_chunk.size();
      piece.job->hash = 0;
      if (piece.job->is_decoded) {
        take_off(piece, trip_.host_bytes(chunks_).subspan(at, size), trip_.host(hashes_)[number]);
      }
      ++number;
      at += aligned(size);
    }
  }

  /// What came down is hashed before it replaces the old chunk: a job in place has no other copy of
  /// that, and whoever repeats the call needs it.
  void take_off(const DecodePiece& piece, ByteSpan chunk, std::uint64_t hash) const {
    if (host_hash_(chunk) != hash) throw CudaFailure{"copying from the device", kChanged};
    DecodeJob& job = *piece.job;
    std::ranges::copy(chunk, job.new_chunk.begin());
    job.old_chunk = job.new_chunk;
    job.steps = job.steps.subspan(piece.steps.size());
    job.hash = hash;
  }

  Trip trip_;
  HashChunk host_hash_;
  std::span<const DecodePiece> pieces_;
  std::vector<DecodeJob*> owners_;       // of each task
  std::vector<std::size_t> step_begin_;  // first task of each step, and their number
  Array<DecodeTask> tasks_;
  Array<HashTask> hash_;
  Array<std::uint8_t> coded_, chunks_, good_;
  Array<std::uint64_t> hashes_;
};

/// Takes from the front of `rest` what fits into one trip; the others stay in `rest`.
std::vector<DecodePiece> next_pieces(std::span<DecodePiece>& rest, std::size_t lane_bytes,
                                     DecodeNeed& need) {
  std::vector<DecodePiece> pieces;
  while (!rest.empty()) {
    DecodePiece& piece = rest.front();
    DecodeNeed with = need;
    with.add_piece(piece.old_chunk.size());
    std::size_t fitting = 0;
    for (DecodeNeed next = with; fitting < piece.steps.size(); ++fitting, with = next) {
      next.add_step(piece.steps[fitting]);
      if (next.bytes() > lane_bytes) break;
    }
    const bool is_whole = fitting == piece.steps.size();
    if (with.bytes() > lane_bytes || (!is_whole && !pieces.empty())) break;
    need = with;
    pieces.push_back({piece.job, piece.old_chunk, piece.steps.first(fitting)});
    if (!is_whole) {
      piece = {piece.job, piece.job->new_chunk, piece.steps.subspan(fitting)};
      break;
    }
    rest = rest.subspan(1);
  }
  return pieces;
}

/// What the largest job needs: encoding a chunk of f32, decoding one step of raw blocks, or adding
/// two dense patches.
std::size_t lane_bytes_min() {
  EncodeNeed encode;
  encode.add(Kind::f32, kChunkBytesMax);
  DecodeNeed decode;
  decode.add_piece(kChunkBytesMax);
  decode.tasks = kChunkBlocks;
  decode.coded_bytes = kChunkBlocks * coded_block_bytes_max(Kind::f32);
  return std::max({encode.bytes(), decode.bytes(), fold_lane_bytes_min()});
}

}  // namespace

void check_kernels() {
  cudaFuncAttributes attributes;  // any kernel's: all are compiled for the same devices
  check(cudaFuncGetAttributes(&attributes, pack_blocks), "looking for the kernels");
}

Lane::Lane(std::size_t bytes, HashChunk hash)
    : memory_(aligned(std::max(bytes, lane_bytes_min()))), hash_(hash) {}

void Lane::encode(std::span<EncodeJob> jobs) {
  while (!jobs.empty()) {
    EncodeNeed need;
    std::size_t count = 0;
    for (; count < jobs.size(); ++count) {
      const EncodeJob& job = jobs[count];
      assert(job.old_chunk.size() == job.new_chunk.size());
      EncodeNeed with = need;
      with.add(job.kind, job.new_chunk.size());
      if (with.bytes() > memory_.size) break;
      need = with;
    }
    EncodeTrip(memory_, hash_, jobs.first(count), need).run();
    jobs = jobs.subspan(count);
  }
}

void Lane::decode(std::span<DecodeJob> jobs) {
  std::vector<DecodePiece> pieces;
  for (DecodeJob& job : jobs) {
    assert(job.old_chunk.size() == job.new_chunk.size());
    job.hash = 0;
    job.is_decoded = std::ranges::all_of(
        job.steps, [&](const CodedChunk& step) { return is_plausible(job, step); });
    if (job.is_decoded) pieces.push_back({&job, job.old_chunk, job.steps});
  }
  for (std::span<DecodePiece> rest(pieces); !rest.empty();) {
    DecodeNeed need;
    const std::vector<DecodePiece> trip = next_pieces(rest, memory_.size, need);
    DecodeTrip(memory_, hash_, trip, need).run();
  }
}

}  // namespace weightfs::kernels::cuda
