#include "store/sync/patch_reach.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "store/patches/patch_path.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

PatchReach find_patch_reach(Store& store, History& history, const Context& context) {
  PatchReach reach;
  const std::vector<std::uint64_t> here = store.images().complete_versions();
  reach.base = store.images().base_version();
  if (here.empty() || reach.base == 0) return reach;
  reach.newest = here.back();
  reach.reached = reach.start = reach.base;
  const PatchVersion base{reach.base, history.get(reach.base, context)->manifest_sha256};
  const std::vector<SpanInfo> spans = store.patches().list();
  std::set<PatchVersion> ends;
  for (const SpanInfo& span : spans) ends.insert(span.ends.last);
  for (const PatchVersion& end : ends) {
    if (end.version <= reach.base || end.version > reach.newest) continue;
    const auto path = find_path(spans, base, end, Direction::forwards);
    if (!path) continue;
    reach.reached = end.version;
    reach.path_bytes = size_bytes_of(*path);
    if (std::binary_search(here.begin(), here.end(), end.version)) reach.start = end.version;
  }
  return reach;
}

}  // namespace weightfs
