// The plans contain the expected hashes of both versions, so only chunks whose hashes differ are
// read and compared.

#include "store/inspect/diff_versions.hpp"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/dispatch/diff.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

using Change = TensorDiff::Change;

/// A version whose files were written to scratch.
struct Written {
  ScratchDirectory directory;
  Base base;
};

Written write(History& history, std::uint64_t number, std::span<const Base> bases,
              const std::filesystem::path& scratch, const Context& context,
              const Progress& progress, const kernels::SharedCoder& coder) {
  return planning_again(history.skips(), [&] {
    const auto version = history.get(number, context);
    Plan plan = make_plan(history, version, bases, context);
    Written written{ScratchDirectory(scratch, "diff-"), {}};
    WriteOptions options;
    options.directory = written.directory.path();
    options.spool = scratch;
    options.sync = false;
    options.coder = coder;
    write_version(plan, history.repository(), options, context, progress);
    written.base = {version, plan.layout, written.directory.path(), std::move(plan.hashes)};
    return written;
  });
}

/// Finds tensors by name, whatever their dtype: first in the file of the same path, then in its
/// directory.
class NameIndex {
 public:
  explicit NameIndex(const Layout& layout) {
    for (std::uint32_t i = 0; i < layout.tensors().size(); i++) {
      const LayoutTensor& tensor = layout.tensors()[i];
      const std::string_view path = layout.files()[tensor.file].path;
      by_file_.try_emplace({path, tensor.name}, i);
      by_directory_.try_emplace({directory_of(path), tensor.name}, i);
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view path,
                                                  std::string_view name) const {
    if (const auto place = by_file_.find({path, name}); place != by_file_.end()) {
      return place->second;
    }
    const auto place = by_directory_.find({directory_of(path), name});
    return place == by_directory_.end() ? std::nullopt : std::optional(place->second);
  }

 private:
  using Key = std::pair<std::string_view, std::string_view>;
  std::map<Key, std::uint32_t> by_file_, by_directory_;
};

std::uint64_t element_count(const LayoutTensor& tensor) {
  return tensor.size_bytes / kernels::width_bytes(tensor.kind);
}

TensorDiff describe(const Layout& layout, const LayoutTensor& tensor, Change change) {
  TensorDiff diff;
  diff.name = tensor.name;
  diff.file = layout.files()[tensor.file].path;
  diff.change = change;
  diff.dtype = to_string(tensor.dtype);
  diff.elements = element_count(tensor);
  return diff;
}

/// Two tensors of the same size, compared element by element.
struct Pair {
  const LayoutTensor* older = nullptr;
  const LayoutTensor* newer = nullptr;
  std::size_t diff = 0;  // index into the results
};

class Comparison {
 public:
  Comparison(const Base& older, const Base& newer) : older_(older), newer_(newer) {}

  std::vector<TensorDiff> run(const Context& context) {
    match();
    compare(context);
    return std::move(diffs_);
  }

 private:
  void match() {
    const Layout& before = *older_.layout;
    const Layout& after = *newer_.layout;
    const auto same_dtype = counterparts(after, before);
    const NameIndex names(before);
    std::vector<bool> matched(before.tensors().size());
    for (std::uint32_t i = 0; i < after.tensors().size(); i++) {
      const LayoutTensor& tensor = after.tensors()[i];
      const auto other =
          same_dtype[i] ? same_dtype[i] : names.find(after.files()[tensor.file].path, tensor.name);
      if (other) matched[*other] = true;
      add(tensor, other ? &before.tensors()[*other] : nullptr);
    }
    for (std::uint32_t i = 0; i < before.tensors().size(); i++) {
      if (!matched[i]) add_whole(before, before.tensors()[i], Change::removed);
    }
  }

  void add(const LayoutTensor& newer, const LayoutTensor* older) {
    const Layout& layout = *newer_.layout;
    if (older == nullptr) return add_whole(layout, newer, Change::added);
    if (older->dtype != newer.dtype) return add_whole(layout, newer, Change::retyped);
    const bool reshaped = older->shape != newer.shape;
    if (older->size_bytes != newer.size_bytes) return add_whole(layout, newer, Change::reshaped);
    diffs_.push_back(describe(layout, newer, reshaped ? Change::reshaped : Change::same));
    pairs_.push_back({older, &newer, diffs_.size() - 1});
  }

  /// A tensor that cannot be compared element by element.
  void add_whole(const Layout& layout, const LayoutTensor& tensor, Change change) {
    diffs_.push_back(describe(layout, tensor, change));
    diffs_.back().changed = diffs_.back().elements;
  }

  void compare(const Context& context) {
    struct Part {
      const Pair* pair;
      std::uint32_t chunk;
    };
    std::vector<Part> parts;
    for (const Pair& pair : pairs_) {
      for (std::uint32_t c = 0; c < pair.newer->chunk_count; c++) {
        if (older_.hashes[pair.older->first_chunk + c] !=
            newer_.hashes[pair.newer->first_chunk + c]) {
          parts.push_back({&pair, c});
        }
      }
    }
    parallel_for(parts.size(), 0, context,
                 [&](std::size_t i) { compare_chunk(*parts[i].pair, parts[i].chunk); });
  }

  void compare_chunk(const Pair& pair, std::uint32_t chunk) {
    const std::size_t size = pair.newer->chunk_size_bytes(chunk);
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(2 * size);
    const std::span<std::byte> old_bytes(buffer.get(), size);
    const std::span<std::byte> new_bytes(buffer.get() + size, size);
    read(older_, *pair.older, chunk, old_bytes);
    read(newer_, *pair.newer, chunk, new_bytes);
    const auto summary = kernels::summarize_diff(pair.newer->kind, old_bytes, new_bytes);

    const std::lock_guard lock(mutex_);
    TensorDiff& diff = diffs_[pair.diff];
    if (summary.changed > 0 && diff.change == Change::same) diff.change = Change::changed;
    diff.changed += summary.changed;
    diff.largest_ulp = std::max(diff.largest_ulp, summary.largest_ulp);
  }

  static void read(const Base& version, const LayoutTensor& tensor, std::uint32_t chunk,
                   std::span<std::byte> into) {
    const auto path = version.directory / version.layout->files()[tensor.file].path;
    const File file = File::open(path, O_RDONLY);
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
    if (!read_at(file.fd(), offset, into, path)) {
      throw Error(ErrorCode::io, path.string() + " was truncated while it was read");
    }
  }

  const Base& older_;
  const Base& newer_;
  std::vector<Pair> pairs_;
  // Guards diffs_ while chunks are compared.
  RankedMutex mutex_{LockRank::leaf, "Comparison::mutex_"};
  std::vector<TensorDiff> diffs_;
};

}  // namespace

std::vector<TensorDiff> diff_versions(History& history, std::uint64_t from, std::uint64_t to,
                                      const std::filesystem::path& scratch, const Context& context,
                                      const Progress& progress, const kernels::SharedCoder& coder) {
  // The later version is built from the earlier one, whichever of them is `from`.
  const Written earlier = write(history, std::min(from, to), {}, scratch, context, progress, coder);
  const Written later =
      write(history, std::max(from, to), {&earlier.base, 1}, scratch, context, progress, coder);
  const bool forwards = from <= to;
  return Comparison(forwards ? earlier.base : later.base, forwards ? later.base : earlier.base)
      .run(context);
}

}  // namespace weightfs
