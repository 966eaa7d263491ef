#include "store/sync/patch_sweep.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

std::set<std::uint64_t> versions_of_use(const Store& store) {
  std::set<std::uint64_t> numbers{store.manifests().newest().version};
  const ImageTable& images = store.images();
  // In the order in which a version goes through these states.
  for (const auto& some :
       {images.partial_versions(), images.unchecked_versions(), images.complete_versions()}) {
    numbers.insert(some.begin(), some.end());
  }
  numbers.erase(0);
  return numbers;
}

}  // namespace

std::size_t remove_stray_patches(Store& store, History& history, const Context& context) {
  const std::vector<SpanInfo> spans = store.patches().list();
  if (spans.empty() || store.images().complete_versions().empty()) return 0;
  std::set<PatchVersion> led_to;
  for (const std::uint64_t number : versions_of_use(store)) {
    try {
      const PatchVersion version{number, history.get(number, context)->manifest_sha256};
      if (led_to.contains(version)) continue;
      for (const PatchVersion& one : PathsFrom(spans, version).versions()) led_to.insert(one);
    } catch (const Error&) {
      context.check("looking for stray patches");
      return 0;
    }
  }
  return store.patches().remove_if([&](const SpanEnds& ends, bool is_part) {
    return !is_part && !led_to.contains(ends.first) && !led_to.contains(ends.last);
  });
}

void remove_damaged_patches(PatchTable& patches, const Context& context) {
  for (const SpanInfo& span : patches.list()) {
    try {
      PatchCursor cursor(patches, span, {});
      while (cursor.place()) {
        context.check("looking for damaged patches");
        static_cast<void>(cursor.take());
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;  // removed meanwhile
      if (error.code() != ErrorCode::corrupt) throw;
      log_error(fmt::format("{}; the patches from versions {} are removed", error.what(),
                            to_string(span.span())));
      static_cast<void>(patches.remove(span.span()));
    }
  }
}

}  // namespace weightfs
