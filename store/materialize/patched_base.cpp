#include "store/materialize/patched_base.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/materialize/bases.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_reader.hpp"
#include "store/patches/patch_table.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {
namespace {

bool is_interrupted(const Error& error) {
  return error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
}

class PatchedBaseFinder {
 public:
  PatchedBaseFinder(Store& store, History& history, const std::set<std::uint64_t>& distrusted,
                    const Context& context)
      : store_(store),
        history_(history),
        distrusted_(distrusted),
        context_(context),
        spans_(store.patches().list()) {}

  std::optional<Base> find(std::uint64_t version) {
    const auto targets = targets_up_to(version);
    if (targets.empty()) return std::nullopt;
    const std::vector<PatchVersion> images = usable_images();
    for (const PatchVersion& target : targets) {
      const PatchVersion* from = nullptr;
      PatchPath path;
      for (const PatchVersion& image : images) {
        std::optional<PatchPath> other = find_path(spans_, image, target);
        if (!other || (from != nullptr && size_bytes_of(*other) >= size_bytes_of(path))) continue;
        from = &image;
        path = std::move(*other);
      }
      if (from == nullptr) continue;
      if (std::optional<Base> base = make(*from, target, std::move(path))) return base;
    }
    return std::nullopt;
  }

 private:
  /// nullptr if that is not known here, or is not the version that is meant.
  std::shared_ptr<const Version> find_known(std::uint64_t number) {
    try {
      return history_.get(number, context_);
    } catch (const Error& error) {
      if (is_interrupted(error)) throw;
      return nullptr;
    }
  }

  std::vector<PatchVersion> usable_images() {
    std::vector<PatchVersion> images;
    if (spans_.empty()) return images;
    for (const std::uint64_t number : store_.images().complete_versions()) {
      if (distrusted_.contains(number) || !store_.images().has_all_files(number)) continue;
      if (const auto known = find_known(number)) images.push_back({number, known->manifest_sha256});
    }
    return with_room(std::move(images));
  }

  /// Those that may stay while another version is made; if there are none, all: that version then
  /// says how much room there is.
  std::vector<PatchVersion> with_room(std::vector<PatchVersion> images) {
    const std::uint64_t bytes = store_.images().newest_bytes();
    std::vector<PatchVersion> fitting;
    std::copy_if(images.begin(), images.end(), std::back_inserter(fitting),
                 [&](const PatchVersion& image) {
                   return store_.evictor().has_room_beside(image.version, bytes);
                 });
    return fitting.empty() ? images : fitting;
  }

  /// Ends of spans up to `version`, the newest first, that are nearer than complete images.
  std::vector<PatchVersion> targets_up_to(std::uint64_t version) {
    std::uint64_t nearest = 0;
    for (const std::uint64_t number : store_.images().complete_versions()) {
      if (number <= version && !distrusted_.contains(number)) nearest = number;
    }
    std::set<PatchVersion, std::greater<>> targets;
    for (const SpanInfo& span : spans_) {
      for (const PatchVersion& end : {span.ends.first, span.ends.last}) {
        if (end.version > nearest && end.version <= version) targets.insert(end);
      }
    }
    return {targets.begin(), targets.end()};
  }

  /// nullopt if the target is not a version of this repository, or has another tensor table.
  std::optional<Base> make(const PatchVersion& from, const PatchVersion& target, PatchPath path) {
    const auto version = find_known(target.version);
    if (!version || version->manifest_sha256 != target.manifest) return std::nullopt;
    Base images = base_of(store_, history_, from.version, context_);
    Base base;
    base.version = version;
    base.layout = history_.layout(*version, context_);
    base.directory = images.directory;
    if (images.version->manifest_sha256 != from.manifest) return std::nullopt;
    if (tensor_table_id(*base.layout) != tensor_table_id(*images.layout)) return std::nullopt;
    if (images.hashes.size() != images.layout->chunk_count()) return std::nullopt;
    auto patched = std::make_shared<PatchedImages>();
    patched->version = images.version;
    patched->layout = images.layout;
    patched->hashes = std::move(images.hashes);
    patched->changed.resize(patched->hashes.size());
    patched->patches = &store_.patches();
    patched->small_files = &store_.small_files();
    patched->hold = store_.patches().hold(path);
    patched->path = std::move(path);
    base.hashes = patched->hashes;
    for (const PathStep& step : patched->path) follow(step, *patched, base);
    base.patched = std::move(patched);
    return base;
  }

  /// Takes the hashes that a step leads to.
  void follow(const PathStep& step, PatchedImages& patched, Base& base) {
    const PatchSpan span = step.span.span();
    try {
      PatchCursor cursor(store_.patches(), step.span, {});
      while (const std::optional<ChunkPlace> place = cursor.place()) {
        context_.check("reading patches");
        const std::uint64_t chunk = number_of(*place, *base.layout);
        const ChunkPatch patch = cursor.take();
        std::uint64_t& hash = base.hashes[chunk];
        if (hash != (step.is_back ? patch.hash_after : patch.hash_before)) {
          throw Error(ErrorCode::corrupt,
                      fmt::format("the patch of {} does not begin where what is before it ends",
                                  to_string(*place)));
        }
        hash = step.is_back ? patch.hash_before : patch.hash_after;
        patched.changed[chunk] = true;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt && error.code() != ErrorCode::not_found) throw;
      throw PatchDamaged(
          span, fmt::format("patches from versions {}: {}", to_string(span), error.what()));
    }
  }

  static std::uint64_t number_of(ChunkPlace place, const Layout& layout) {
    const bool is_there = place.tensor < layout.tensors().size() &&
                          place.chunk < layout.tensors()[place.tensor].chunk_count;
    if (is_there) return layout.tensors()[place.tensor].first_chunk + place.chunk;
    throw Error(ErrorCode::corrupt, fmt::format("there is no {}", to_string(place)));
  }

  Store& store_;
  History& history_;
  const std::set<std::uint64_t>& distrusted_;
  const Context& context_;
  const std::vector<SpanInfo> spans_;
};

}  // namespace

std::optional<Base> find_patched_base(Store& store, History& history, std::uint64_t version,
                                      const std::set<std::uint64_t>& distrusted,
                                      const Context& context) {
  return PatchedBaseFinder(store, history, distrusted, context).find(version);
}

std::optional<Base> find_sound_patched_base(Store& store, History& history, std::uint64_t version,
                                            const std::set<std::uint64_t>& distrusted,
                                            const Context& context) {
  for (;;) {
    const std::vector<std::uint64_t> images = store.images().complete_versions();
    try {
      return find_patched_base(store, history, version, distrusted, context);
    } catch (const PatchDamaged& damaged) {
      const bool is_gone = damaged.span() && !store.patches().find(*damaged.span());
      if (is_gone) continue;  // folded meanwhile
      if (!drop_damaged_patches(store, damaged)) return std::nullopt;
    } catch (const Error& error) {
      if (is_interrupted(error)) throw;
      if (store.images().complete_versions() != images) continue;  // one was evicted meanwhile
      log_warning(fmt::format("patches are not used for version {}: {}", version, error.what()));
      return std::nullopt;
    }
  }
}

bool drop_damaged_patches(Store& store, const PatchDamaged& damaged) {
  // Folded meanwhile, or dropped by somebody else who met it.
  if (damaged.span() && !store.patches().find(*damaged.span())) return true;
  log_error(fmt::format("{}; not using these patches", damaged.what()));
  if (!damaged.span()) return false;
  try {
    return store.patches().remove(*damaged.span());
  } catch (const Error& error) {
    log_warning(fmt::format("cannot remove them: {}", error.what()));
    return false;
  }
}

}  // namespace weightfs
