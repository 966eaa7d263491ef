#include "store/patches/fold_spans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

bool is_planned(const FoldPlan& plan, const SpanEnds& ends) {
  return std::any_of(plan.folds.begin(), plan.folds.end(),
                     [&](const Fold& fold) { return fold.into == ends; });
}

/// Chunks whose patches are to be added up together.
struct Batch {
  std::vector<ChunkPlace> places;
  std::vector<std::vector<ChunkPatch>> patches;
  std::size_t size_bytes = 0;  // of the patches

  void add(ChunkPlace place, std::vector<ChunkPatch> of_chunk) {
    for (const ChunkPatch& patch : of_chunk) size_bytes += patch.patches.size();
    places.push_back(place);
    patches.push_back(std::move(of_chunk));
  }
};

}  // namespace

SpanInfo fold_spans(PatchTable& table, const Fold& fold, const Context& context,
                    std::uint64_t file_bytes_max, const kernels::SharedCoder& coder) {
  assert(!fold.from.empty() && fold.from.front().from() == fold.into.first);
  assert(fold.from.back().to() == fold.into.last);
  const PatchSpan span = fold.into.span();
  const std::string what = fmt::format("folding patches from versions {}", to_string(span));
  const std::optional<SpanPart> part = table.find_part(fold.into);
  PatchReader reader(table, fold.from, part ? part->next : ChunkPlace{});
  PatchFileWriter writer = table.make_writer(span, file_bytes_max);
  kernels::Scratch scratch;
  const auto write = [&](const Batch& batch) {
    const auto sums = merge_chunk_patches(batch.patches, *coder, scratch, [&](std::size_t i) {
      return fmt::format("{}: {}", what, to_string(batch.places[i]));
    });
    for (std::size_t i = 0; i < sums.size(); ++i) {
      context.check(what);
      if (!sums[i]) continue;
      if (writer.would_begin_file(*sums[i]))
        table.install_part(fold.into, writer.take(), batch.places[i]);
      writer.add(batch.places[i], *sums[i]);
    }
  };
  const std::size_t batch_bytes = std::min(coder->decode_batch_bytes(), kFoldBatchBytes);
  Batch batch;
  while (const std::optional<ChunkPlace> place = reader.next_place()) {
    context.check(what);
    batch.add(*place, reader.take(*place, scratch));
    if (batch.size_bytes >= batch_bytes) write(std::exchange(batch, {}));
  }
  write(batch);
  table.install(fold.into, writer.take());
  const std::optional<SpanInfo> made = table.find(span);
  if (made) return *made;
  throw Error(ErrorCode::not_found, fmt::format("{}: the result was removed at once", what));
}

FoldedAll fold_all(PatchTable& table, const FoldLimits& limits, const Context& context,
                   const kernels::SharedCoder& coder) {
  FoldedAll done;
  std::set<PatchSpan> made;
  while (true) {
    const FoldPlan plan = plan_folds(table.list(), limits);
    done.is_base_outgrown = plan.is_base_outgrown;
    table.remove_if(
        [&](const SpanEnds& ends, bool is_part) { return is_part && !is_planned(plan, ends); });
    if (plan.is_empty()) return done;
    std::size_t drops = 0;
    for (const PatchSpan& span : plan.drops) drops += table.remove_if_unheld(span);
    done.drops += drops;
    if (plan.folds.empty() && drops == 0) return done;  // what is left is being read
    for (const Fold& fold : plan.folds) {
      // It went at once for want of room, and what it was made of is held.
      if (!made.insert(fold.into.span()).second) return done;
      fold_spans(table, fold, context, kSortedFileBytesMax, coder);
      ++done.folds;
    }
  }
}

}  // namespace weightfs
