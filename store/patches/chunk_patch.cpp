// The blocks of a chunk are handled one after the other by the kernels, which give one canonical
// patch for each change; so merged patches are byte for byte those that a comparison of the two
// versions would give, and a sum of nothing is empty.
#include "store/patches/chunk_patch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/dispatch/hash.hpp"
#include "kernels/dispatch/patch.hpp"
#include "store/base/byte_reader.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

using kernels::ByteSpan;
using kernels::Kind;

[[noreturn]] void fail_patch(std::string_view what, std::string_view reason) {
  throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what, reason));
}

std::size_t block_count_of(Kind kind, std::uint32_t size_bytes) {
  return static_cast<std::size_t>(kernels::block_count(kind, size_bytes));
}

/// Bytes of block `index` of a chunk.
std::size_t block_size(Kind kind, std::uint32_t size_bytes, std::size_t index) {
  const std::size_t full = kernels::block_bytes(kind);
  return std::min(full, size_bytes - index * full);
}

/// A block's patches, one after the other: knows where the next one begins.
class BlockPatches {
 public:
  explicit BlockPatches(const ChunkPatch& patch) : patch_(patch) {}

  /// Of block 0, 1, ...
  ByteSpan next(std::string_view what) {
    const std::size_t length = patch_.lengths.at(index_++);
    if (length > patch_.patches.size() - at_) fail_patch(what, "a block's patch is cut off");
    const ByteSpan found(patch_.patches.data() + at_, length);
    at_ += length;
    return found;
  }

 private:
  const ChunkPatch& patch_;
  std::size_t index_ = 0, at_ = 0;
};

/// Gives the next block its patch: what `append` appends.
template <typename Append>
void add_block(ChunkPatch& patch, std::size_t index, const Append& append) {
  const std::size_t before = patch.patches.size();
  append(patch.patches);
  patch.lengths.at(index) = static_cast<std::uint32_t>(patch.patches.size() - before);
}

void check_chain(std::span<const ChunkPatch> patches, std::string_view what) {
  for (std::size_t i = 1; i < patches.size(); ++i) {
    const ChunkPatch &before = patches[i - 1], &after = patches[i];
    if (before.kind != after.kind || before.size_bytes != after.size_bytes) {
      fail_patch(what, "its patches are of chunks of different kinds or sizes");
    }
    if (before.hash_after != after.hash_before) {
      fail_patch(what, fmt::format("its patches do not join: one leads to hash {:016x}, the next "
                                   "begins at {:016x}",
                                   before.hash_after, after.hash_before));
    }
  }
}

bool is_kind(std::uint8_t kind) { return kind <= static_cast<std::uint8_t>(Kind::f8_e5m2); }

}  // namespace

// ---- making ----

std::optional<ChunkPatch> make_chunk_patch(Kind kind, ByteSpan old_chunk, ByteSpan new_chunk,
                                           kernels::Scratch& scratch) {
  return make_chunk_patch(kind, old_chunk, new_chunk, kernels::hash_chunk(old_chunk),
                          kernels::hash_chunk(new_chunk), scratch);
}

std::optional<ChunkPatch> make_chunk_patch(Kind kind, ByteSpan old_chunk, ByteSpan new_chunk,
                                           std::uint64_t hash_before, std::uint64_t hash_after,
                                           kernels::Scratch& scratch) {
  assert(old_chunk.size() == new_chunk.size() && !new_chunk.empty());
  assert(new_chunk.size() <= kernels::chunk_bytes(kind));
  assert(new_chunk.size() % kernels::width_bytes(kind) == 0);
  const auto size_bytes = static_cast<std::uint32_t>(new_chunk.size());
  ChunkPatch patch{kind, size_bytes, hash_before, hash_after, {}, {}};
  for (std::size_t i = 0; i < block_count_of(kind, size_bytes); ++i) {
    const std::size_t at = i * kernels::block_bytes(kind), size = block_size(kind, size_bytes, i);
    add_block(patch, i, [&](Bytes& to) {
      kernels::make_patch(kind, old_chunk.subspan(at, size), new_chunk.subspan(at, size), scratch,
                          to);
    });
  }
  if (patch.patches.empty()) return std::nullopt;
  return patch;
}

std::optional<ChunkPatch> chunk_patch_of_log(Kind kind, std::uint32_t size_bytes,
                                             std::uint64_t hash_before, std::uint64_t hash_after,
                                             const kernels::ChangeLog& log,
                                             kernels::Scratch& scratch) {
  if (log.lengths.size() != block_count_of(kind, size_bytes)) return std::nullopt;
  ChunkPatch patch{kind, size_bytes, hash_before, hash_after, {}, {}};
  ByteSpan left(log.bytes);
  bool is_good = true;
  for (std::size_t i = 0; i < log.lengths.size(); ++i) {
    const std::size_t length = log.lengths[i];
    if (length > left.size()) return std::nullopt;
    const std::size_t elements = block_size(kind, size_bytes, i) / kernels::width_bytes(kind);
    add_block(patch, i, [&](Bytes& to) {
      if (length == 0) return;
      is_good &= kernels::patch_of_log(kind, elements, left.first(length), scratch, to);
    });
    left = left.subspan(length);
  }
  if (!is_good || !left.empty() || patch.patches.empty()) return std::nullopt;
  return patch;
}

std::optional<ChunkPatch> merge_chunk_patches(std::span<const ChunkPatch> patches,
                                              kernels::Scratch& scratch, std::string_view what) {
  assert(!patches.empty());
  check_chain(patches, what);
  const ChunkPatch& first = patches.front();
  ChunkPatch sum{first.kind, first.size_bytes, first.hash_before, patches.back().hash_after, {},
                 {}};
  std::vector<BlockPatches> walks(patches.begin(), patches.end());
  std::vector<ByteSpan> of_block;
  for (std::size_t i = 0; i < block_count_of(sum.kind, sum.size_bytes); ++i) {
    of_block.clear();
    for (BlockPatches& walk : walks) {
      const ByteSpan found = walk.next(what);
      if (!found.empty()) of_block.push_back(found);
    }
    const std::size_t elements =
        block_size(sum.kind, sum.size_bytes, i) / kernels::width_bytes(sum.kind);
    add_block(sum, i, [&](Bytes& to) {
      if (of_block.empty()) return;
      if (kernels::fold_patches(sum.kind, elements, of_block, scratch, to)) return;
      fail_patch(what, fmt::format("a patch of block {} is malformed", i));
    });
  }
  if (sum.patches.empty() != (sum.hash_before == sum.hash_after)) {
    fail_patch(what, "its patches and its hashes disagree");
  }
  if (sum.patches.empty()) return std::nullopt;
  return sum;
}

std::vector<std::optional<ChunkPatch>> merge_chunk_patches(
    std::span<const std::vector<ChunkPatch>> chunks, kernels::ChunkCoder& coder,
    kernels::Scratch& scratch, const std::function<std::string(std::size_t)>& what) {
  std::vector<std::vector<kernels::CodedChunk>> views(chunks.size());
  std::vector<kernels::FoldJob> jobs(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    check_chain(chunks[i], what(i));
    const ChunkPatch& first = chunks[i].front();
    const std::size_t blocks = block_count_of(first.kind, first.size_bytes);
    for (const ChunkPatch& patch : chunks[i]) {
      views[i].push_back({std::span(patch.lengths).first(blocks), patch.patches});
    }
    jobs[i].kind = first.kind;
    jobs[i].chunk_bytes = first.size_bytes;
    jobs[i].patches = views[i];
  }
  coder.fold(jobs);
  std::vector<std::optional<ChunkPatch>> sums;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    kernels::FoldJob& job = jobs[i];
    const ChunkPatch &first = chunks[i].front(), &last = chunks[i].back();
    if (!job.is_folded || job.folded.empty() != (first.hash_before == last.hash_after)) {
      sums.push_back(merge_chunk_patches(chunks[i], scratch, what(i)));  // says what is wrong
      continue;
    }
    if (job.folded.empty()) {
      sums.emplace_back();
      continue;
    }
    ChunkPatch sum{first.kind, first.size_bytes, first.hash_before, last.hash_after, {}, {}};
    std::copy(job.lengths.begin(), job.lengths.end(), sum.lengths.begin());
    sum.patches = std::move(job.folded);
    sums.emplace_back(std::move(sum));
  }
  return sums;
}

ChunkPatch invert_chunk_patch(const ChunkPatch& patch, kernels::Scratch& scratch,
                              std::string_view what) {
  ChunkPatch inverse{patch.kind, patch.size_bytes, patch.hash_after, patch.hash_before, {}, {}};
  BlockPatches walk(patch);
  for (std::size_t i = 0; i < block_count_of(patch.kind, patch.size_bytes); ++i) {
    const ByteSpan found = walk.next(what);
    const std::size_t elements =
        block_size(patch.kind, patch.size_bytes, i) / kernels::width_bytes(patch.kind);
    add_block(inverse, i, [&](Bytes& to) {
      if (found.empty()) return;
      if (kernels::invert_patch(patch.kind, elements, found, scratch, to)) return;
      fail_patch(what, fmt::format("the patch of block {} is malformed", i));
    });
  }
  return inverse;
}

void apply_chunk_patches(std::span<const ChunkPatch> patches, Kind kind, std::span<std::byte> chunk,
                         kernels::Scratch& scratch, std::string_view what) {
  if (patches.empty()) return;
  check_chain(patches, what);
  if (patches.front().kind != kind || patches.front().size_bytes != chunk.size()) {
    fail_patch(what,
               fmt::format("its patches are of a chunk of {} bytes or another kind, it has {}",
                           patches.front().size_bytes, chunk.size()));
  }
  std::vector<BlockPatches> walks(patches.begin(), patches.end());
  const auto size_bytes = static_cast<std::uint32_t>(chunk.size());
  for (std::size_t i = 0; i < block_count_of(kind, size_bytes);
       ++i) {  // a block stays in the cache
    const auto block =
        chunk.subspan(i * kernels::block_bytes(kind), block_size(kind, size_bytes, i));
    for (BlockPatches& walk : walks) {
      if (kernels::apply_patch(kind, walk.next(what), block, scratch)) continue;
      fail_patch(what, fmt::format("a patch of block {} is malformed", i));
    }
  }
  const std::uint64_t expected = patches.back().hash_after, found = kernels::hash_chunk(chunk);
  if (found == expected) return;
  fail_patch(what, fmt::format("the patches lead to hash {:016x}, expected {:016x}: they, or the "
                               "bytes that they were applied to, are damaged",
                               found, expected));
}

kernels::DiffSummary summarize_chunk_patch(const ChunkPatch& patch, kernels::Scratch& scratch,
                                           std::string_view what) {
  kernels::DiffSummary sum;
  BlockPatches walk(patch);
  for (std::size_t i = 0; i < block_count_of(patch.kind, patch.size_bytes); ++i) {
    const ByteSpan found = walk.next(what);
    if (found.empty()) continue;
    const std::size_t elements =
        block_size(patch.kind, patch.size_bytes, i) / kernels::width_bytes(patch.kind);
    kernels::DiffSummary block;
    if (!kernels::summarize_patch(patch.kind, elements, found, scratch, block)) {
      fail_patch(what, fmt::format("the patch of block {} is malformed", i));
    }
    sum.changed += block.changed;
    sum.largest_ulp = std::max(sum.largest_ulp, block.largest_ulp);
  }
  return sum;
}

// ---- the stored form ----

std::string encode_chunk_patch(const ChunkPatch& patch, std::uint64_t first_version,
                               std::string_view key) {
  const std::size_t blocks = block_count_of(patch.kind, patch.size_bytes);
  std::string value;
  value.reserve(8 + 8 * 3 + 4 + 2 + 4 * blocks + patch.patches.size());
  append_le(value, std::uint64_t{0});  // the checksum
  append_le(value, first_version);
  append_le(value, patch.hash_before);
  append_le(value, patch.hash_after);
  append_le(value, patch.size_bytes);
  append_le(value, static_cast<std::uint8_t>(patch.kind));
  append_le(value, static_cast<std::uint8_t>(blocks));
  for (std::size_t i = 0; i < blocks; ++i) append_le(value, patch.lengths.at(i));
  value += as_text(patch.patches);
  std::string checksum;
  append_le(checksum, kernels::hash_chunk(as_bytes(std::string_view(value).substr(8))) ^
                          kernels::hash_chunk(as_bytes(key)));
  value.replace(0, checksum.size(), checksum);
  return value;
}

ChunkPatch decode_chunk_patch(std::string_view value, std::uint64_t first_version,
                              std::string_view key, std::string_view what) {
  ByteReader reader(value, what);
  const auto checksum = reader.take_le<std::uint64_t>();
  if (checksum !=
      (kernels::hash_chunk(as_bytes(value.substr(8))) ^ kernels::hash_chunk(as_bytes(key)))) {
    reader.fail("its checksum is wrong");
  }
  if (reader.take_le<std::uint64_t>() != first_version) reader.fail("it begins at another version");
  ChunkPatch patch;
  patch.hash_before = reader.take_le<std::uint64_t>();
  patch.hash_after = reader.take_le<std::uint64_t>();
  patch.size_bytes = reader.take_le<std::uint32_t>();
  const auto kind = reader.take_le<std::uint8_t>();
  if (!is_kind(kind)) reader.fail("its kind is unknown");
  patch.kind = static_cast<Kind>(kind);
  if (patch.size_bytes == 0 || patch.size_bytes > kernels::chunk_bytes(patch.kind) ||
      patch.size_bytes % kernels::width_bytes(patch.kind) != 0) {
    reader.fail("its size is not that of a chunk");
  }
  const std::size_t blocks = block_count_of(patch.kind, patch.size_bytes);
  if (reader.take_le<std::uint8_t>() != blocks) reader.fail("it has another number of blocks");
  for (std::size_t i = 0; i < blocks; ++i) patch.lengths.at(i) = reader.take_le<std::uint32_t>();
  const auto length = std::accumulate(patch.lengths.begin(), patch.lengths.end(), std::uint64_t{0});
  if (length == 0) reader.fail("it has no changes");
  const auto bytes = as_bytes(reader.take(length));
  reader.expect_end();
  patch.patches.assign(bytes.begin(), bytes.end());
  return patch;
}

}  // namespace weightfs
