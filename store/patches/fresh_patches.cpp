#include "store/patches/fresh_patches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "kernels/block/scratch.hpp"
#include "store/base/log.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {

std::uint64_t fresh_bytes_max(std::uint64_t version_bytes) noexcept {
  return std::max<std::uint64_t>(64u << 20, version_bytes / 32);
}

// ---- what changed ----

void FreshChunks::add(FreshChunk chunk) {
  const std::size_t bytes = sizeof(FreshChunk) + chunk.log.bytes.size() +
                            chunk.log.lengths.size() * sizeof(std::uint32_t);
  {
    const std::lock_guard lock(mutex_);
    if (!is_wanted_) return;
    bytes_ += bytes;
    if (bytes_ <= bytes_max_) {
      chunks_.push_back(std::move(chunk));
      return;
    }
  }
  give_up(fmt::format("they need more than {} bytes of memory", bytes_max_));
}

void FreshChunks::give_up(std::string_view why) {
  std::vector<FreshChunk> dropped;  // goes after the lock
  {
    const std::lock_guard lock(mutex_);
    if (!is_wanted_.exchange(false)) return;
    dropped.swap(chunks_);
    bytes_ = 0;
  }
  log_debug(fmt::format("changes are not noted while a version is made: {}", why));
}

std::uint64_t FreshChunks::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void FreshChunks::take(std::uint32_t first_tensor, std::vector<FreshChunk>& to) {
  const std::size_t before = to.size();
  {
    const std::lock_guard lock(mutex_);
    std::move(chunks_.begin(), chunks_.end(), std::back_inserter(to));
    chunks_.clear();
    bytes_ = 0;
  }
  for (std::size_t i = before; i < to.size(); i++) to[i].place.tensor += first_tensor;
}

FreshSpan::FreshSpan(FreshEnd first, FreshEnd last, std::vector<FreshPart> parts)
    : first_(std::move(first)), last_(std::move(last)), parts_(std::move(parts)) {}

bool FreshSpan::is_wanted() const {
  return std::ranges::all_of(parts_, [](const FreshPart& it) { return it.chunks->is_wanted(); });
}

std::optional<SpanEnds> FreshSpan::find_ends() const {
  const TensorTableId table = tensor_table_id(*last_.layout);
  if (tensor_table_id(*first_.layout) != table) return std::nullopt;
  return SpanEnds{PatchLevel::one, first_.version, last_.version, table};
}

/// A chunk that straddles two segments was made by both writers.
std::vector<FreshChunk> FreshSpan::take_chunks() {
  std::vector<FreshChunk> chunks;
  for (const FreshPart& part : parts_) part.chunks->take(part.first_tensor, chunks);
  std::sort(chunks.begin(), chunks.end(),
            [](const FreshChunk& a, const FreshChunk& b) { return a.place < b.place; });
  const auto is_same = [](const FreshChunk& a, const FreshChunk& b) { return a.place == b.place; };
  chunks.erase(std::unique(chunks.begin(), chunks.end(), is_same), chunks.end());
  return chunks;
}

// ---- those that wait ----

void FreshPatches::add_taker() {
  const std::lock_guard lock(mutex_);
  takers_++;
}

void FreshPatches::remove_taker() {
  std::vector<std::unique_ptr<FreshSpan>> dropped;  // after the lock, as below
  const std::lock_guard lock(mutex_);
  if (--takers_ == 0) dropped.swap(spans_);
}

std::shared_ptr<FreshChunks> FreshPatches::begin(std::uint64_t bytes) const {
  {
    const std::lock_guard lock(mutex_);
    if (takers_ == 0) return nullptr;
  }
  return std::make_shared<FreshChunks>(fresh_bytes_max(bytes));
}

void FreshPatches::put(std::unique_ptr<FreshSpan> span) {
  if (!span) return;
  const std::lock_guard lock(mutex_);
  if (takers_ == 0) return;
  if (!span->is_wanted() || spans_.size() == kSpansMax) {
    counters_.given_up++;
    return;
  }
  const auto at = std::upper_bound(spans_.begin(), spans_.end(), span->first(),
                                   [](const PatchVersion& first, const auto& other) {
                                     return first.version < other->first().version;
                                   });
  spans_.insert(at, std::move(span));
}

std::unique_ptr<FreshSpan> FreshPatches::take(const PatchVersion& first) {
  std::vector<std::unique_ptr<FreshSpan>> dropped;
  const std::lock_guard lock(mutex_);
  drop_before(first.version, dropped);
  if (spans_.empty() || spans_.front()->first() != first) return nullptr;
  std::unique_ptr<FreshSpan> found = std::move(spans_.front());
  spans_.erase(spans_.begin());
  return found;
}

void FreshPatches::note_installed(const SpanEnds& ends, bool is_fresh) {
  std::vector<std::unique_ptr<FreshSpan>> dropped;
  const std::lock_guard lock(mutex_);
  (is_fresh ? counters_.fresh : counters_.from_images)++;
  drop_before(ends.last.version, dropped);
}

/// Requires: the lock is held.
void FreshPatches::drop_before(std::uint64_t version,
                               std::vector<std::unique_ptr<FreshSpan>>& dropped) {
  while (!spans_.empty() && spans_.front()->first().version < version) {
    dropped.push_back(std::move(spans_.front()));
    spans_.erase(spans_.begin());
    counters_.given_up++;
  }
}

FreshCounters FreshPatches::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// ---- their files ----

std::optional<PatchFiles> write_patches(const PatchTable& table, const SpanEnds& ends,
                                        FreshSpan& span, const Context& context) {
  PatchFileWriter writer = table.make_writer(ends.span());
  kernels::Scratch scratch;
  for (FreshChunk& chunk : span.take_chunks()) {
    context.check("writing patches");
    const auto patch = chunk_patch_of_log(chunk.kind, chunk.size_bytes, chunk.hash_before,
                                          chunk.hash_after, chunk.log, scratch);
    if (!patch) return std::nullopt;
    writer.add(chunk.place, *patch);
    chunk.log = {};
  }
  return writer.take();
}

}  // namespace weightfs
