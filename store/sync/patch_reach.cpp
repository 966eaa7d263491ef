#include "store/sync/patch_reach.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "store/patches/patch_path.hpp"
#include "store/patches/patch_table.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {
namespace {

class ReachFinder {
 public:
  ReachFinder(Store& store, History& history, const Context& context, const DamagedImages& damaged)
      : store_(store), history_(history), context_(context), spans_(store.patches().list()) {
    for (const std::uint64_t number : store.images().complete_versions()) {
      const auto found = damaged.find(number);
      const bool is_damaged =
          found != damaged.end() && found->second == store.images().generation(number);
      if (!is_damaged) here_.push_back(number);
    }
  }

  PatchReach from_base() {
    PatchReach reach;
    reach.base = store_.images().base_version();
    if (here_.empty() || reach.base == 0) return reach;
    reach.newest = here_.back();
    reach.reached = reach.start = reach.base;
    const PathsFrom paths(spans_, of(reach.base), Direction::forwards);
    for (const PatchVersion& end : paths.versions()) {
      if (end.version <= reach.base || end.version > reach.newest) continue;
      reach.reached = end.version;
      reach.path_bytes = size_bytes_of(paths.path_to(end));
      if (is_here(end.version)) reach.start = end.version;
    }
    count(reach, PathsFrom(spans_, of(reach.base)));
    return reach;
  }

  /// Of images that lack files no patches are taken.
  PatchReach from_newest() {
    std::erase_if(here_, [&](std::uint64_t it) { return !store_.images().has_all_files(it); });
    PatchReach reach;
    const std::vector<std::uint64_t> complete = store_.images().complete_versions();
    // Another one may be damaged, or lack files: the next version is waited for.
    if (here_.empty() || here_.back() != complete.back()) return reach;
    reach.newest = reach.reached = reach.start = here_.back();
    const PathsFrom paths(spans_, of(reach.newest));
    count(reach, paths);
    if (reach.versions > 1) {
      reach.reached = std::max(reach.newest, paths.versions().back().version);
      return reach;
    }
    const std::uint64_t start = find_start(reach.newest);
    if (start == 0) return reach;  // it begins here
    reach.reached = reach.start = start;
    count(reach, PathsFrom(spans_, of(start)));
    return reach;
  }

 private:
  [[nodiscard]] PatchVersion of(std::uint64_t number) {
    return {number, history_.get(number, context_)->manifest_sha256};
  }
  [[nodiscard]] bool is_here(std::uint64_t number) const {
    return std::binary_search(here_.begin(), here_.end(), number);
  }

  static void count(PatchReach& reach, const PathsFrom& paths) {
    const std::vector<PatchVersion> versions = paths.versions();
    reach.first = versions.front().version;
    reach.versions = versions.size();
  }

  /// The newest version here, before `newest`, that has its tensor table; rather one to which
  /// patches lead.  0: there is none.
  std::uint64_t find_start(std::uint64_t newest) {
    std::set<PatchVersion> ends;
    for (const SpanInfo& span : spans_) ends.insert({span.ends.first, span.ends.last});
    const TensorTableId table = table_of(newest);
    std::uint64_t found = 0;
    for (auto at = here_.rbegin(); at != here_.rend(); ++at) {
      if (*at == newest || table_of(*at) != table) continue;
      if (ends.contains(of(*at))) return *at;
      if (found == 0) found = *at;
    }
    return found;
  }

  TensorTableId table_of(std::uint64_t number) {
    return tensor_table_id(*history_.layout(*history_.get(number, context_), context_));
  }

  Store& store_;
  History& history_;
  const Context& context_;
  const std::vector<SpanInfo> spans_;
  std::vector<std::uint64_t> here_;  // complete and not known to be damaged, ascending
};

}  // namespace

PatchReach find_patch_reach(Store& store, History& history, const Context& context,
                            const DamagedImages& damaged) {
  ReachFinder finder(store, history, context, damaged);
  return store.images().memory() != nullptr ? finder.from_base() : finder.from_newest();
}

}  // namespace weightfs
