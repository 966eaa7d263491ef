#include "store/materialize/patch_applier.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "kernels/dispatch/hash.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

class PatchGone : public PatchDamaged {
 public:
  using PatchDamaged::PatchDamaged;
};

}  // namespace

PatchApplier::PatchApplier(const Base& base, BuildMeter* meter)
    : base_(base), meter_(meter), path_(base.patched->path) {}

void PatchApplier::apply(ChunkPlace place, std::span<std::byte> chunk) {
  const LayoutTensor& tensor = base_.layout->tensors()[place.tensor];
  if (!base_.patched->changed[tensor.first_chunk + place.chunk]) return;
  const Clock::time_point begin = Clock::now();
  const std::vector<ChunkPatch> patches = read(place);
  // Before anything is changed: afterwards nobody could tell whether image or patch is damaged.
  check_images(place, chunk);
  try {
    const std::string what =
        fmt::format("the patches of {} from version {} to {}", to_string(place),
                    base_.images().number(), base_.version->number());
    apply_chunk_patches(patches, tensor.kind, chunk, scratch_, what);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    throw PatchDamaged(std::nullopt, name_of(place) + ": " + error.what());
  }
  if (meter_ == nullptr) return;
  std::uint64_t bytes = 0;
  for (const ChunkPatch& patch : patches) bytes += patch.patches.size();
  meter_->add_patched(Clock::now() - begin, bytes);
}

/// Spans may be folded, and removed, while a version is read for hours: then there is another path,
/// whose patches come to the same.
std::vector<ChunkPatch> PatchApplier::read(ChunkPlace place) {
  try {
    return read_on_path(place);
  } catch (const PatchGone&) {
    auto path = find_path(base_.patched->patches->list(), path_.front().from(), path_.back().to());
    if (!path) throw;
    path_ = std::move(*path);
  }
  return read_on_path(place);
}

/// Throws PatchDamaged, PatchGone; Error: io.
std::vector<ChunkPatch> PatchApplier::read_on_path(ChunkPlace place) {
  std::vector<ChunkPatch> patches;
  for (const PathStep& step : path_) {
    try {
      for (ChunkPatch& patch :
           read_chunk_patches(*base_.patched->patches, {step}, place, scratch_)) {
        patches.push_back(std::move(patch));
      }
    } catch (const Error& error) {
      const PatchSpan span = step.span.span();
      const std::string what = name_of(place) + ": " + error.what();
      if (error.code() == ErrorCode::corrupt) throw PatchDamaged(span, what);
      if (error.code() == ErrorCode::not_found) throw PatchGone(span, what);
      throw;
    }
  }
  return patches;
}

std::string PatchApplier::name_of(ChunkPlace place) const {
  const LayoutTensor& tensor = base_.layout->tensors()[place.tensor];
  return fmt::format("chunk {} of tensor '{}' in '{}'", place.chunk, tensor.name,
                     base_.layout->files()[tensor.file].path);
}

void PatchApplier::check_images(ChunkPlace place, std::span<const std::byte> chunk) const {
  const LayoutTensor& tensor = base_.images_layout().tensors()[place.tensor];
  const std::uint64_t expected = base_.patched->hashes[tensor.first_chunk + place.chunk];
  const std::uint64_t found = kernels::hash_chunk(chunk);
  if (found == expected) return;
  const std::uint64_t number = base_.images().number();
  throw BaseDamaged(
      number,
      fmt::format("the images of version {} are damaged: {}/{}: chunk {} of tensor '{}' has the "
                  "hash {:016x}, expected {:016x}",
                  number, base_.directory.string(), base_.images_layout().files()[tensor.file].path,
                  place.chunk, tensor.name, found, expected));
}

}  // namespace weightfs
