// Early version: files of the version that comes next, made before its manifest is known from the
// parent's images and the packs that its early record names, and used when the manifest is there.
//
// While a trainer saves, its writer's mount has coded and uploaded most files; a reader that makes
// these meanwhile has little to do when the version is committed.
//
// Nothing in an early record is believed.  A file that was made early is used only if the manifest
// leads to it by the same packs, and to the same hash for each of its chunks, which were compared
// when it was made; its header is written over with the version's.  Everything else is made as if
// there had been no early record.
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md, "Early records".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/format/early_record.hpp"
#include "store/local/early_images.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {

/// Makes those files of the record that the store does not have yet (Store::early_images).
/// Nothing is evicted for it that would not go for the version.  What cannot be made is left to
/// the version.
/// Requires: the version before the record's is complete here, with all its files.
/// Returns: the bytes of the files that were made; 0 also if there is no room, somebody wants the
/// delta to the version (which is made with it: store/sparse/ahead_deltas.hpp), the record is of
/// another history, or the version is being made already.
/// Throws Error: as make_plan() and write_version().
std::uint64_t make_early(Store& store, History& history, const EarlyRecord& record,
                         const kernels::SharedCoder& coder, const Context& context);

/// The files made early that a version takes.
class EarlyVersion {
 public:
  /// Keeps the reference, and of `set` what fits the plan; the rest goes with this.  `set` may be
  /// null.
  EarlyVersion(const Plan& plan, std::unique_ptr<EarlySet> set);

  /// Of the files that fit.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Moves a file of the plan's layout to its place, with its header, mode and time.
  /// Returns: false if it was not made early, or does not fit: it must be made.
  /// Throws Error: io.
  bool place(const LayoutFile& file, const std::filesystem::path& path,
             const ImageSeal& seal) const;

  /// What changed in these files, as far as it was noted; nullopt: some of it was not, or notes
  /// are of files that do not fit.
  [[nodiscard]] std::optional<std::vector<FreshPart>> noted() const;

 private:
  [[nodiscard]] bool is_of_plan() const;
  [[nodiscard]] bool fits(const LayoutFile& file, const EarlyImage& image) const;

  const Plan& plan_;
  std::unique_ptr<EarlySet> set_;
  FileSet fitting_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace weightfs
