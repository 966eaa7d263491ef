// Early version: the files of a version that were made before its manifest was known
// (store/sync/make_early.hpp), and that it takes.
//
// Nothing in an early record is believed.  A file that was made early is used only if the manifest
// leads to it by the same packs, and to the same hash for each of its chunks, which were compared
// when it was made; its header is written over with the version's.  Of a file whose first bytes
// were made early this holds for these, and the rest is made with the version.  Everything else is
// made as if there had been no early record.
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md, "Early records".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/local/early_images.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"

namespace weightfs {

/// The files made early that a version takes.
class EarlyVersion final : public BegunFiles {
 public:
  /// Keeps the reference, and `set`, which may be null.
  EarlyVersion(const Plan& plan, std::unique_ptr<EarlySet> set);

  /// Of the files that fit, which have their room.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// What of them is made.
  [[nodiscard]] std::uint64_t made_bytes() const noexcept { return made_bytes_; }

  /// Moves a file that fits to its place, with its header.
  [[nodiscard]] std::optional<Rest> rest_of(const LayoutFile& file,
                                            const std::filesystem::path& path,
                                            const ImageSeal& seal) const override;

  /// What changed in these files; nullopt: some of it was not noted, or was noted together with
  /// what changed in files that do not fit.
  [[nodiscard]] std::optional<std::vector<FreshPart>> noted() const;

  /// Takes from the disk what does not fit.
  /// Throws std::filesystem::filesystem_error.
  void remove_rest();

  /// All that was not placed, and not removed.
  [[nodiscard]] std::unique_ptr<EarlySet> release() noexcept { return std::move(set_); }

 private:
  [[nodiscard]] bool is_of_plan() const;
  [[nodiscard]] bool fits(const LayoutFile& file, const EarlyImage& image) const;
  [[nodiscard]] bool is_fitting(const std::string& path) const;

  const Plan& plan_;
  std::unique_ptr<EarlySet> set_;
  FileSet fitting_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t made_bytes_ = 0;
};

}  // namespace weightfs
