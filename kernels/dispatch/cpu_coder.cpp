// Works block by block, so that each step's data stays in the cache:
//
//     encode   old, new --> coded --> decoded, compared with new at once
//     decode   old --first step--> new, the other steps in place
//
// A step that does not change a block costs nothing.  Only the hashes pass over the whole chunk,
// from the next cache level.

#include "kernels/dispatch/cpu_coder.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>

#include "kernels/block/copy_block.hpp"
#include "kernels/block/free_list.hpp"
#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {
namespace {

constexpr std::size_t kBlockBytesMax = block_bytes(Kind::f32);

/// A batch for decode() that stays in the second level of the cache.
constexpr std::size_t kDecodeBatchBytes = std::size_t{1} << 20;

/// The working memory of one thread.
struct Workspace {
  Scratch scratch;
  std::unique_ptr<std::byte[]> decoded =
      std::make_unique_for_overwrite<std::byte[]>(kBlockBytesMax);  // while coding
};

/// A block's range within its chunk.
struct Range {
  std::size_t at = 0, size = 0;

  template <typename Byte>
  std::span<Byte> of(std::span<Byte> chunk) const noexcept {
    return chunk.subspan(at, size);
  }
};

template <typename Visit>
void visit_blocks(Kind kind, std::size_t chunk_size, Visit&& visit) {
  std::size_t number = 0;
  for (std::size_t at = 0; at < chunk_size; at += block_bytes(kind)) {
    visit(number++, Range{at, std::min(block_bytes(kind), chunk_size - at)});
  }
}

bool are_equal(ByteSpan a, ByteSpan b) noexcept {
  return std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// ---- encode ----

/// Decodes a block, and notes what changes; `log` may be null.
bool decode_noted(const Variant& variant, Kind kind, ByteSpan old_block, ByteSpan coded,
                  std::span<std::byte> new_block, Scratch& scratch, ChangeLog* log) {
  return log != nullptr
             ? variant.decode_logged(kind, old_block, coded, new_block, scratch, log->bytes)
             : variant.decode_block(kind, old_block, coded, new_block, scratch);
}

/// True if the coded block decodes to `new_block`.  `log`: may be null.
bool comes_back(const Variant& variant, Kind kind, ByteSpan old_block, ByteSpan coded,
                ByteSpan new_block, Workspace& workspace, ChangeLog* log) {
  const std::size_t logged_before = log != nullptr ? log->bytes.size() : 0;
  bool is_same = false;
  if (coded.empty()) {
    is_same = are_equal(old_block, new_block);
  } else {
    const std::span<std::byte> decoded(workspace.decoded.get(), new_block.size());
    is_same = decode_noted(variant, kind, old_block, coded, decoded, workspace.scratch, log) &&
              are_equal(decoded, new_block);
  }
  if (log != nullptr) {
    log->lengths.push_back(static_cast<std::uint32_t>(log->bytes.size() - logged_before));
  }
  return is_same;
}

void encode_one(const Variant& variant, EncodeJob& job, Workspace& workspace) {
  assert(job.old_chunk.size() == job.new_chunk.size());
  assert(job.new_chunk.size() % width_bytes(job.kind) == 0);
  assert(job.new_chunk.size() <= chunk_bytes(job.kind));
  job.lengths.clear();
  job.coded.clear();
  job.changed = 0;
  job.is_verified = true;
  if (job.log != nullptr) job.log->clear();
  visit_blocks(job.kind, job.new_chunk.size(), [&](std::size_t, Range range) {
    const ByteSpan old_block = range.of(job.old_chunk), new_block = range.of(job.new_chunk);
    const std::size_t before = job.coded.size();
    job.changed +=
        variant.encode_block(job.kind, old_block, new_block, workspace.scratch, job.coded);
    const ByteSpan coded = ByteSpan(job.coded).subspan(before);
    job.lengths.push_back(static_cast<std::uint32_t>(coded.size()));
    job.is_verified &=
        comes_back(variant, job.kind, old_block, coded, new_block, workspace, job.log);
  });
  job.old_hash = variant.hash_chunk(job.old_chunk);
  const bool is_same = job.is_verified && job.coded.empty();
  job.new_hash = is_same ? job.old_hash : variant.hash_chunk(job.new_chunk);
}

// ---- decode ----

/// Iterates over the coded blocks of all steps in parallel.
class Steps {
 public:
  explicit Steps(std::span<const CodedChunk> steps) : steps_(steps), at_(steps.size(), 0) {}

  /// Whether each step has one length per block, and the lengths add up to its size.
  [[nodiscard]] bool fit(std::uint64_t blocks) const noexcept {
    return std::all_of(steps_.begin(), steps_.end(), [&](const CodedChunk& step) {
      std::uint64_t total = 0;
      for (const std::uint32_t length : step.lengths) total += length;
      return step.lengths.size() == blocks && total == step.coded.size();
    });
  }

  /// The coded bytes of the next block of step `i`.
  ByteSpan next(std::size_t i, std::size_t block) noexcept {
    const std::size_t at = at_[i];
    at_[i] += steps_[i].lengths[block];
    return steps_[i].coded.subspan(at, steps_[i].lengths[block]);
  }

 private:
  std::span<const CodedChunk> steps_;
  std::vector<std::size_t> at_;
};

/// `log`: may be null.
bool decode_steps(const Variant& variant, Kind kind, std::size_t block, std::size_t step_count,
                  ByteSpan old_block, Steps& steps, std::span<std::byte> new_block,
                  Scratch& scratch, ChangeLog* log) {
  const std::size_t logged_before = log != nullptr ? log->bytes.size() : 0;
  for (std::size_t i = 0; i < step_count; i++) {
    const ByteSpan coded = steps.next(i, block);
    if (coded.empty()) continue;
    if (!decode_noted(variant, kind, old_block, coded, new_block, scratch, log)) return false;
    old_block = new_block;
  }
  copy_block(old_block, new_block);
  if (log != nullptr) {
    log->lengths.push_back(static_cast<std::uint32_t>(log->bytes.size() - logged_before));
  }
  return true;
}

/// Whether a step replaces a block.  Requires: the steps fit.
bool replaces_blocks(const DecodeJob& job) {
  Steps steps(job.steps);
  for (std::size_t block = 0; block < block_count(job.kind, job.new_chunk.size()); block++) {
    for (std::size_t i = 0; i < job.steps.size(); i++) {
      const ByteSpan coded = steps.next(i, block);
      if (!coded.empty() && static_cast<Mode>(coded.front()) == Mode::raw) return true;
    }
  }
  return false;
}

void begin_log(const Variant& variant, DecodeJob& job) {
  job.old_hash.reset();
  if (job.log == nullptr) return;
  job.log->clear();
  if (replaces_blocks(job)) job.old_hash = variant.hash_chunk(job.old_chunk);
}

void decode_one(const Variant& variant, DecodeJob& job, Workspace& workspace) {
  assert(job.old_chunk.size() == job.new_chunk.size());
  assert(job.new_chunk.size() % width_bytes(job.kind) == 0);
  assert(job.new_chunk.size() <= chunk_bytes(job.kind));
  Steps steps(job.steps);
  job.hash = 0;
  job.is_decoded = steps.fit(block_count(job.kind, job.new_chunk.size()));
  if (!job.is_decoded) return;
  begin_log(variant, job);
  visit_blocks(job.kind, job.new_chunk.size(), [&](std::size_t block, Range range) {
    job.is_decoded =
        job.is_decoded &&
        decode_steps(variant, job.kind, block, job.steps.size(), range.of(job.old_chunk), steps,
                     range.of(job.new_chunk), workspace.scratch, job.log);
  });
  if (job.is_decoded) job.hash = variant.hash_chunk(job.new_chunk);
}

// ---- fold ----

void fold_one(const Variant& variant, FoldJob& job, Workspace& workspace) {
  assert(job.chunk_bytes % width_bytes(job.kind) == 0);
  assert(job.chunk_bytes <= chunk_bytes(job.kind));
  Steps patches(job.patches);
  job.lengths.clear();
  job.folded.clear();
  job.is_folded = patches.fit(block_count(job.kind, job.chunk_bytes));
  if (!job.is_folded) return;
  std::vector<ByteSpan> of_block;
  visit_blocks(job.kind, job.chunk_bytes, [&](std::size_t block, Range range) {
    of_block.clear();
    for (std::size_t i = 0; i < job.patches.size(); i++) {
      const ByteSpan patch = patches.next(i, block);
      if (!patch.empty()) of_block.push_back(patch);
    }
    const std::size_t before = job.folded.size(), elements = range.size / width_bytes(job.kind);
    job.is_folded =
        job.is_folded && (of_block.empty() || variant.fold_patches(job.kind, elements, of_block,
                                                                   workspace.scratch, job.folded));
    job.lengths.push_back(static_cast<std::uint32_t>(job.folded.size() - before));
  });
}

// ---- the coder ----

class CpuCoder final : public ChunkCoder {
 public:
  explicit CpuCoder(const Variant* variant) : variant_(variant) {}

  void encode(std::span<EncodeJob> jobs) override {
    const auto workspace = idle_.borrow([] { return std::make_unique<Workspace>(); });
    for (EncodeJob& job : jobs) encode_one(variant(), job, *workspace);
  }

  void decode(std::span<DecodeJob> jobs) override {
    const auto workspace = idle_.borrow([] { return std::make_unique<Workspace>(); });
    for (DecodeJob& job : jobs) decode_one(variant(), job, *workspace);
  }

  [[nodiscard]] bool writes_logs() const noexcept override { return true; }

  void fold(std::span<FoldJob> jobs) override {
    const auto workspace = idle_.borrow([] { return std::make_unique<Workspace>(); });
    for (FoldJob& job : jobs) fold_one(variant(), job, *workspace);
  }

  [[nodiscard]] std::size_t decode_batch_bytes() const noexcept override {
    return kDecodeBatchBytes;
  }

  [[nodiscard]] std::string name() const override { return std::string(variant().name); }

 private:
  [[nodiscard]] const Variant& variant() const noexcept {
    return variant_ != nullptr ? *variant_ : chosen_variant();
  }

  const Variant* const variant_;  // nullptr: the chosen variant
  FreeList<Workspace> idle_;
};

}  // namespace

std::unique_ptr<ChunkCoder> make_cpu_coder() { return std::make_unique<CpuCoder>(nullptr); }

std::unique_ptr<ChunkCoder> make_cpu_coder(const Variant& variant) {
  return std::make_unique<CpuCoder>(&variant);
}

}  // namespace weightfs::kernels
