#include "store/patches/patch_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace weightfs {
namespace {

std::string name_of_step(const PathStep& step, ChunkPlace place) {
  return fmt::format("the patch of {} from versions {}", to_string(place),
                     to_string(step.span.span()));
}

ChunkPatch directed(ChunkPatch patch, const PathStep& step, ChunkPlace place,
                    kernels::Scratch& scratch) {
  if (!step.is_back) return patch;
  return invert_chunk_patch(patch, scratch, name_of_step(step, place));
}

/// The place after this one.
ChunkPlace following(ChunkPlace place) {
  if (++place.chunk == 0) ++place.tensor;
  return place;
}

}  // namespace

// ---- one span ----

PatchCursor::PatchCursor(const PatchTable& table, const SpanInfo& span, ChunkPlace from,
                         std::size_t page_bytes)
    : table_(&table), span_(span), from_(from), page_bytes_(page_bytes) {}

std::optional<ChunkPlace> PatchCursor::place() {
  if (at_ == page_.patches.size() && !page_.is_last) {
    page_ = table_->read_page(span_, from_, page_bytes_);
    at_ = 0;
    if (!page_.patches.empty()) from_ = following(page_.patches.back().first);
  }
  if (at_ == page_.patches.size()) return std::nullopt;
  return page_.patches[at_].first;
}

ChunkPatch PatchCursor::take() {
  assert(at_ < page_.patches.size());
  return std::move(page_.patches[at_++].second);
}

void PatchCursor::skip_to(ChunkPlace place) {
  while (at_ < page_.patches.size() && page_.patches[at_].first < place) ++at_;
  if (at_ == page_.patches.size()) from_ = std::max(from_, place);
}

// ---- a path ----

PatchReader::PatchReader(const PatchTable& table, const PatchPath& path, ChunkPlace from,
                         std::size_t page_bytes) {
  for (const PathStep& step : path) {
    steps_.push_back({PatchCursor(table, step.span, from, page_bytes), step});
  }
}

std::vector<ChunkPatch> PatchReader::take(ChunkPlace place, kernels::Scratch& scratch) {
  std::vector<ChunkPatch> patches;
  for (Step& step : steps_) {
    step.cursor.skip_to(place);
    if (step.cursor.place() != place) continue;
    patches.push_back(directed(step.cursor.take(), step.step, place, scratch));
  }
  return patches;
}

std::optional<ChunkPlace> PatchReader::next_place() {
  std::optional<ChunkPlace> next;
  for (Step& step : steps_) {
    const std::optional<ChunkPlace> place = step.cursor.place();
    if (place && (!next || *place < *next)) next = place;
  }
  return next;
}

std::vector<ChunkPatch> read_chunk_patches(const PatchTable& table, const PatchPath& path,
                                           ChunkPlace place, kernels::Scratch& scratch) {
  std::vector<ChunkPatch> patches;
  for (const PathStep& step : path) {
    std::optional<ChunkPatch> patch = table.find_patch(step.span, place);
    if (patch) patches.push_back(directed(std::move(*patch), step, place, scratch));
  }
  return patches;
}

}  // namespace weightfs
