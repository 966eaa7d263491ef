#include "store/inspect/patch_diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

/// Two versions that patches may lead between.
struct Ends {
  std::shared_ptr<const Version> from, to;
  std::shared_ptr<const Layout> layout;  // of `to`
};

Ends find_ends(History& history, VersionPair versions, const Context& context) {
  Ends ends;
  ends.from = history.get(versions.from, context);
  ends.to = history.get(versions.to, context);
  ends.layout = history.layout(*ends.to, context);
  return ends;
}

const LayoutTensor& tensor_at(const Layout& layout, ChunkPlace place) {
  const bool is_there = place.tensor < layout.tensors().size() &&
                        place.chunk < layout.tensors()[place.tensor].chunk_count;
  if (is_there) return layout.tensors()[place.tensor];
  throw Error(ErrorCode::corrupt, fmt::format("there is no {}", to_string(place)));
}

/// Calls each(place, tensor, summary) for the chunks of tensors [first, end) that change.
template <typename Each>
void walk(const PatchTable& table, const PatchPath& path, const Layout& layout, std::uint32_t first,
          std::uint32_t end, const Context& context, const Each& each) {
  kernels::Scratch scratch;
  PatchReader reader(table, path, {first, 0});
  while (const std::optional<ChunkPlace> place = reader.next_place()) {
    if (place->tensor >= end) return;
    context.check("reading patches");
    const LayoutTensor& tensor = tensor_at(layout, *place);
    const std::string what = fmt::format("the patches of {}", to_string(*place));
    const auto sum = merge_chunk_patches(reader.take(*place, scratch), scratch, what);
    if (!sum) continue;
    if (sum->kind != tensor.kind || sum->size_bytes != tensor.chunk_size_bytes(place->chunk)) {
      throw Error(ErrorCode::corrupt, what + " are of a chunk of another kind or size");
    }
    each(*place, tensor, summarize_chunk_patch(*sum, scratch, what));
  }
}

/// Calls body(path) until no span is removed meanwhile.  Returns: false if patches do not lead.
template <typename Body>
bool with_path(Store& store, const Ends& ends, const Body& body) {
  constexpr unsigned kTries = 8;
  for (unsigned tries = 0; tries < kTries; ++tries) {
    const auto path =
        find_path(store.patches().list(), {ends.from->number(), ends.from->manifest_sha256},
                  {ends.to->number(), ends.to->manifest_sha256});
    if (!path) return false;
    try {
      body(*path);
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;
      if (error.code() != ErrorCode::corrupt) throw;
      log_warning(fmt::format("patches from version {} to {} are not used: {}", ends.from->number(),
                              ends.to->number(), error.what()));
      return false;
    }
  }
  return false;
}

TensorDiff row_of(const Layout& layout, const LayoutTensor& tensor) {
  TensorDiff row;
  row.name = tensor.name;
  row.file = layout.files()[tensor.file].path;
  row.change = TensorDiff::Change::same;
  row.dtype = to_string(tensor.dtype);
  row.elements = tensor.size_bytes / kernels::width_bytes(tensor.kind);
  return row;
}

/// Rows of a page, without what changed.
PatchDiffPage begin_page(const Layout& layout, std::uint32_t first, std::size_t bytes_max) {
  const auto tensors = layout.tensors();
  if (first > 0 && first >= tensors.size()) {
    throw Error(ErrorCode::invalid, fmt::format("there is no tensor {}", first));
  }
  PatchDiffPage page;
  std::size_t bytes = 0;
  for (std::uint32_t i = first; i < tensors.size(); ++i) {
    TensorDiff row = row_of(layout, tensors[i]);
    bytes += row.name.size() + row.file.size() + kDiffRowBytes;
    if (!page.tensors.empty() && bytes > bytes_max) {
      page.next = i;
      break;
    }
    page.tensors.push_back(std::move(row));
  }
  return page;
}

}  // namespace

std::optional<ChangedCounts> count_by_patches(Store& store, History& history, VersionPair versions,
                                              const Context& context) {
  const Ends ends = find_ends(history, versions, context);
  const Layout& layout = *ends.layout;
  ChangedCounts counts;
  const bool found = with_path(store, ends, [&](const PatchPath& path) {
    counts.assign(layout.chunk_count(), 0);
    walk(store.patches(), path, layout, 0, static_cast<std::uint32_t>(layout.tensors().size()),
         context,
         [&](ChunkPlace place, const LayoutTensor& tensor, const kernels::DiffSummary& summary) {
           counts[tensor.first_chunk + place.chunk] = static_cast<std::uint32_t>(summary.changed);
         });
  });
  return found ? std::optional(std::move(counts)) : std::nullopt;
}

std::optional<PatchDiffPage> diff_by_patches(Store& store, History& history, VersionPair versions,
                                             std::uint32_t first, std::size_t bytes_max,
                                             const Context& context) {
  const Ends ends = find_ends(history, versions, context);
  const Layout& layout = *ends.layout;
  PatchDiffPage page;
  const bool found = with_path(store, ends, [&](const PatchPath& path) {
    page = begin_page(layout, first, bytes_max);
    const auto end = first + static_cast<std::uint32_t>(page.tensors.size());
    walk(store.patches(), path, layout, first, end, context,
         [&](ChunkPlace place, const LayoutTensor&, const kernels::DiffSummary& summary) {
           TensorDiff& row = page.tensors[place.tensor - first];
           row.change = TensorDiff::Change::changed;
           row.changed += summary.changed;
           row.largest_ulp = std::max(row.largest_ulp, summary.largest_ulp);
         });
  });
  return found ? std::optional(std::move(page)) : std::nullopt;
}

}  // namespace weightfs
