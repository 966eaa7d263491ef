// Plan: the path from what this host and the bucket have to a version.
//
//     base     images of an older version here, images and patches that lead to an older version
//              or to the wanted one, or a snapshot in the bucket
//     steps    the deltas, and skip deltas, from the base to the wanted version, oldest first
//
// The expected hash of every chunk follows from the base's hashes and the packs' indexes. Together
// they must give the manifest's root, which is checked before anything is written.
//
// Threads: a Plan is immutable; all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/early_record.hpp"
#include "store/format/skip_record.hpp"
#include "store/local/small_files.hpp"
#include "store/materialize/history.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_table.hpp"
#include "store/seed/snapshot_pieces.hpp"
#include "store/timing/version_timing.hpp"
#include "store/ways/path_finder.hpp"

namespace weightfs {

/// Images of one version that the store's patches make into another one, which has the same tensor
/// table (store/materialize/patched_base.hpp).
struct PatchedImages {
  std::shared_ptr<const Version> version;  // whose files these are
  std::shared_ptr<const Layout> layout;
  std::vector<std::uint64_t> hashes;  // of the chunks of these files
  std::vector<bool> changed;          // by chunk number: the path has patches of it
  const PatchTable* patches = nullptr;
  const SmallFiles* small_files = nullptr;  // of versions that are not here; may be null
  PatchPath path;                           // from `version`
  PatchTable::Hold hold;                    // of the path
};

/// Images of a version on this host, or others and the patches from them to it.
struct Base {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  std::filesystem::path directory;
  std::vector<std::uint64_t> hashes;  // of every chunk, including those of absent files
  FileSet absent = {};                // files of `layout` that are not in `directory`
  std::shared_ptr<const PatchedImages> patched = nullptr;  // nullptr: `directory` has `version`

  /// The version whose files are in `directory`, and its layout.
  [[nodiscard]] const Version& images() const noexcept {
    return patched ? *patched->version : *version;
  }
  [[nodiscard]] const Layout& images_layout() const noexcept {
    return patched ? *patched->layout : *layout;
  }
};

/// Where the packs of a step hold a chunk.
struct PackEntry {
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
  std::uint32_t pack = kNowhere;  // index into Step::packs; kNowhere: the chunk is unchanged
  std::uint32_t index = 0;        // into that pack's chunks()

  explicit operator bool() const noexcept { return pack != kNowhere; }
};

/// What a plan has of a pack beside its header: unchecked, its pieces must be compared before use.
struct PlannedData {
  std::shared_ptr<const std::string> bytes = {};  // nullptr: to be fetched
  bool is_kept = false;                           // it was fetched for another plan
};

/// One delta of the path, or a skip delta.
struct Step {
  std::shared_ptr<const Version> version;            // the version it leads to
  std::shared_ptr<const SkipRecord> skip = nullptr;  // nullptr: the version's own delta
  std::shared_ptr<const Layout> layout;
  std::vector<std::optional<std::uint32_t>> counterparts;  // in the layout before this step
  std::vector<std::shared_ptr<const PackIndex>> packs;     // of delta()
  std::vector<PlannedData> pack_data;                      // of packs
  std::vector<PackEntry> listed;                           // by chunk number of `layout`

  /// Requires: `place` is not kNowhere.
  [[nodiscard]] const PackChunk& chunk(PackEntry place) const noexcept {
    return packs[place.pack]->chunks()[place.index];
  }
  /// Of the version's manifest, or of the skip's record.
  [[nodiscard]] const DeltaRef& delta() const noexcept {
    return skip ? skip->delta : *version->manifest.delta;
  }
  [[nodiscard]] std::string pack_key(std::size_t pack) const;
};

/// The path to one version: everything that write_version needs except the bytes.
struct Plan {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  std::vector<std::uint64_t> hashes;  // expected, of every chunk of `layout`
  FileSet without;                    // files of `layout` not to build

  // Exactly one of the two is set:
  std::optional<Base> base;
  std::optional<StoredSnapshot> snapshot;

  std::vector<Step> steps;        // empty: the base or snapshot is the version itself
  std::uint64_t fetch_bytes = 0;  // of packs and snapshot, still to be fetched from the bucket

  [[nodiscard]] std::uint64_t version_bytes() const noexcept;  // of the files and blobs to be built

  /// The layout that step `index` starts from; before(0) is that of the start.
  [[nodiscard]] const Layout& before(std::size_t index) const noexcept;
};

/// Whether a plan may have skip deltas: without them it proves that a version needs none.
enum class SkipUse { allowed, none };

/// What is read of packs: their headers, or also the data of small ones, in the same request.
/// `with_data` is for who needs all packs: it saves a round trip, and holds up to 16 MiB.
enum class PackReads { headers, with_data };

struct PlanOptions {
  FileSet without = {};  // files not to build
  SkipUse skips = SkipUse::allowed;
  PackReads reads = PackReads::headers;
};

/// The plan for some files of the version after the base before its manifest is known: from the
/// base's files by the packs that its early record names.  Nothing says that this is what the
/// manifest will lead to: no root is compared, and blobs are left out.  `files`: those of the
/// record to be made; each is one of the base's layout, and has packs.
/// Throws Error: as make_plan(); corrupt also if a pack has chunks of another file.
Plan make_early_plan(History& history, const Base& base, std::span<const EarlyRecord::File> files,
                     const Context& context);

/// Finds the cheapest path to `wanted` (store/ways/path_finder.hpp).  `bases`: what the host
/// has.  If an object on that path is missing or corrupt, another path is taken if there is one.
/// Nothing that is wrong with a skip delta is an error while another path is left: the log says so
/// once, and that is taken.  A base is not used if it lacks a file that a wanted file is built
/// from.
///
/// Throws Error: corrupt (a pack header or root does not match; BaseDamaged if it is a base's;
/// NeededSkipDamaged if gc left nothing but a skip delta that is damaged, naming its object),
/// not_found (a pack or snapshot is gone, naming the key; or gc removed the version), unavailable;
/// the message names the version of the step.
Plan make_plan(History& history, std::shared_ptr<const Version> wanted, std::span<const Base> bases,
               const Context& context, const PlanOptions& options = {});

/// Notes where a version comes from.  Of several passes: where the first began, and all deltas.
void note_origin(const Plan& plan, VersionTiming& timing);

/// Data on this host is damaged: the base must be dropped and rebuilt.
class BaseDamaged : public Error {
 public:
  BaseDamaged(std::uint64_t version, const std::string& message)
      : Error(ErrorCode::corrupt, message), version_(version) {}
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

 private:
  std::uint64_t version_;
};

/// A patch of the store is damaged, or gone: another way must be found.  The message names it.
class PatchDamaged : public Error {
 public:
  /// `span`: whose patch it is; nullopt: which one of a path is not known.
  PatchDamaged(std::optional<PatchSpan> span, const std::string& message)
      : Error(ErrorCode::corrupt, message), span_(span) {}
  [[nodiscard]] const std::optional<PatchSpan>& span() const noexcept { return span_; }

 private:
  std::optional<PatchSpan> span_;
};

/// A way to a version (store/ways/path_finder.hpp), and the base if it begins at one.
struct ReconstructionPath {
  FoundWay way;
  const Base* base = nullptr;  // nullptr: it begins at a snapshot
};

/// The path of deltas from a base to a version.  Reads nothing.
ReconstructionPath path_of_deltas(const Base& base, const Version& wanted);

/// The cheapest path to `wanted`, by bytes and requests (store/ways/path_finder.hpp); reads
/// manifests, layouts and records of skips only.
/// Throws Error: corrupt, not_found, unsupported, if there is none.
ReconstructionPath find_path(History& history, const std::shared_ptr<const Version>& wanted,
                             std::span<const Base> bases, const Context& context);

/// The plan for one path.  Throws as make_plan does; ObjectError with a key of a skip delta if it
/// is one of these.
Plan make_plan_by(const ReconstructionPath& path, History& history,
                  const std::shared_ptr<const Version>& wanted, const Context& context);

}  // namespace weightfs
