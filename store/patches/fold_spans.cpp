#include "store/patches/fold_spans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

bool is_planned(const FoldPlan& plan, const SpanEnds& ends) {
  return std::any_of(plan.folds.begin(), plan.folds.end(),
                     [&](const Fold& fold) { return fold.into == ends; });
}

}  // namespace

SpanInfo fold_spans(PatchTable& table, const Fold& fold, const Context& context,
                    std::uint64_t file_bytes_max) {
  assert(!fold.from.empty() && fold.from.front().from() == fold.into.first);
  assert(fold.from.back().to() == fold.into.last);
  const PatchSpan span = fold.into.span();
  const std::string what = fmt::format("folding patches from versions {}", to_string(span));
  const std::optional<SpanPart> part = table.find_part(fold.into);
  PatchReader reader(table, fold.from, part ? part->next : ChunkPlace{});
  PatchFileWriter writer = table.make_writer(span, file_bytes_max);
  kernels::Scratch scratch;
  while (const std::optional<ChunkPlace> place = reader.next_place()) {
    context.check(what);
    const std::optional<ChunkPatch> sum = merge_chunk_patches(
        reader.take(*place, scratch), scratch, fmt::format("{}: {}", what, to_string(*place)));
    if (!sum) continue;
    if (writer.would_begin_file(*sum)) table.install_part(fold.into, writer.take(), *place);
    writer.add(*place, *sum);
  }
  table.install(fold.into, writer.take());
  const std::optional<SpanInfo> made = table.find(span);
  if (made) return *made;
  throw Error(ErrorCode::not_found, fmt::format("{}: the result was removed at once", what));
}

FoldedAll fold_all(PatchTable& table, const FoldLimits& limits, const Context& context) {
  FoldedAll done;
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
      fold_spans(table, fold, context);
      ++done.folds;
    }
  }
}

}  // namespace weightfs
