// PatchApplier: applies the store's patches to chunks of images, and finds out what is damaged if
// the result is not what it should be.
//
// Each chunk's patches are looked up by themselves, so chunks may be asked for in any order, and
// what a thread holds is one chunk's patches.
//
// Memory: the patches of one chunk.
// Threads: a PatchApplier belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/materialize/plan.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/patch_span.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class PatchApplier {
 public:
  /// Keeps the references.  Requires: base.patched.  `meter` may be null.
  PatchApplier(const Base& base, BuildMeter* meter);

  /// `chunk`: the bytes of the images, which become those of the base's version.  If no patch
  /// changes the chunk, nothing is done and nothing compared.
  /// Throws BaseDamaged (the bytes were not those of the images), PatchDamaged (a patch is damaged
  /// or gone), Error: io.
  void apply(ChunkPlace place, std::span<std::byte> chunk);

 private:
  std::vector<ChunkPatch> read(ChunkPlace place);
  std::vector<ChunkPatch> read_on_path(ChunkPlace place);
  [[nodiscard]] std::string name_of(ChunkPlace place) const;
  void check_images(ChunkPlace place, std::span<const std::byte> chunk) const;

  const Base& base_;
  BuildMeter* const meter_;
  PatchPath path_;
  kernels::Scratch scratch_;
};

}  // namespace weightfs
