// Materialise: turns what this host has, and what the bucket holds, into the files of a version.
//
//     base     images of an older version here, or a snapshot in the bucket
//     steps    the deltas from the base to the wanted version, oldest first
//
// For each chunk of the wanted version: read it from the base, apply the coded chunks of all steps
// one after another in memory (kernels/chunk_coder.hpp), compare the hash, write once.  Files are
// written in file-aligned windows of kWindowBytes after fallocate, in parallel over segments.  A
// file that no step touches is hard-linked to the base's image.
//
// A host may want only some files of a version, and a base may have only some of its own: then the
// others are not looked at, and only what the wanted ones need is fetched and decoded.
//
// The expected hash of every chunk follows from the base's hashes and the packs' indexes; before
// anything is written, all of them together must give the manifest's root.
//
// Threads: a Plan is immutable; write_version runs its own threads and returns when they are done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/chunk_coder.hpp"
#include "store/chunk_batches.hpp"
#include "store/error.hpp"
#include "store/eviction.hpp"
#include "store/history.hpp"

namespace weightfs {

inline constexpr std::uint64_t kWindowBytes = 4u << 20;

/// Deltas that materialize() applies in one pass; a longer way is gone in several, so that packs
/// and indexes of a bounded number of versions are held at a time.
inline constexpr std::size_t kStepsPerPass = 64;

/// Images of a version on this host.
struct Base {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  std::filesystem::path directory;
  std::vector<std::uint64_t> hashes;  // of every chunk, also of absent files
  FileSet absent = {};                // files of `layout` that are not in `directory`
};

/// Where the packs of a step hold a chunk.
struct Listed {
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
  std::uint32_t pack = kNowhere;  // index into Step::packs; kNowhere: the chunk is unchanged
  std::uint32_t index = 0;        // into that pack's chunks()

  explicit operator bool() const noexcept { return pack != kNowhere; }
};

/// One delta on the way.
struct Step {
  std::shared_ptr<const Version> version;  // what it leads to
  std::shared_ptr<const Layout> layout;
  std::vector<std::optional<std::uint32_t>> counterparts;  // in the step before
  std::vector<std::shared_ptr<const PackIndex>> packs;     // as in the manifest
  std::vector<Listed> listed;                              // by chunk number of `layout`

  /// Requires: `place` is not kNowhere.
  [[nodiscard]] const PackChunk& chunk(Listed place) const noexcept {
    return packs[place.pack]->chunks()[place.index];
  }
  [[nodiscard]] std::string pack_key(std::size_t pack) const;
};

/// The way to one version; everything that write_version needs but the bytes.
struct Plan {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  std::vector<std::uint64_t> hashes;  // expected, of every chunk of `layout`
  FileSet without;                    // files of `layout` that are not to be made

  // Exactly one of the two is the start:
  std::optional<Base> base;
  struct Snapshot {
    std::shared_ptr<const Version> version;
    std::shared_ptr<const Layout> layout;
    SnapshotHashes hashes;
  };
  std::optional<Snapshot> snapshot;

  std::vector<Step> steps;        // empty: the base or snapshot is the version itself
  std::uint64_t fetch_bytes = 0;  // of packs and snapshot, still to be read from the bucket

  [[nodiscard]] std::uint64_t version_bytes() const noexcept;  // files and blobs to be made

  /// Layout that step `index` starts from; before(0) is the start's own.
  [[nodiscard]] const Layout& before(std::size_t index) const noexcept;
};

/// Finds the way to `wanted` that fetches the fewest bytes.  `bases`: what the host has.  If an
/// object of that way is missing or corrupt, and there is another way, it takes that.  A base that
/// lacks a file which one of the wanted ones comes from is not used.  `without`: files that are not
/// to be made.
///
/// Throws Error: corrupt (a head or a root that does not fit; BaseDamaged if it is a base's),
/// not_found (a pack or snapshot is gone, naming the key), unavailable; the message names the
/// version of the step.
Plan make_plan(History& history, std::shared_ptr<const Version> wanted, std::span<const Base> bases,
               const Context& context, const FileSet& without = {});

/// The Base of a complete version in the store, with the files that it has.
Base base_of(Store& store, History& history, std::uint64_t version, const Context& context);

/// Complete versions older than `before`, to start from: the newest few.  One whose records cannot
/// be read is none, nor one that is distrusted.
std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context);

/// Keeps the base of a plan from being evicted (store/eviction.hpp).
/// Returns: a reservation of nothing if the plan has no base; nullopt: it was evicted just now, so
/// another plan must be made.
std::optional<Eviction::Reservation> reserve_base(Store& store, const Plan& plan,
                                                  Eviction::Claim claim, const Context& context);

struct WriteOptions {
  std::filesystem::path directory;  // exists, empty
  std::filesystem::path spool;      // for packs while they are applied; same machine
  unsigned threads = 0;             // 0: one for each core
  bool sync = true;                 // fsync files and directories
  unsigned mode = 0444;             // of files; a hard-linked one keeps the base's
  kernels::SharedCoder coder = kernels::make_cpu_coder();
};

/// Writes every file of the plan's version that is to be made, with the manifest's time as
/// modification time.  Nothing outside options.directory is changed; after a failure the caller
/// removes what is in it.
///
/// Throws Error: corrupt: a pack, snapshot or blob that does not match (names the key), or a base
/// image that rotted (names the file; BaseDamaged); not_found, naming the key; no_space; cancelled;
/// unavailable.
void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress);

/// Bytes on this host are not what they were: the base must be dropped and made again.
class BaseDamaged : public Error {
 public:
  BaseDamaged(std::uint64_t version, const std::string& message)
      : Error(ErrorCode::corrupt, message), version_(version) {}
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

 private:
  std::uint64_t version_;
};

/// Brings a version into the store: plan, room, write, records.  Tries again from another base or
/// the bucket if a base is damaged, and evicts that one if it may go.  Does nothing if the store
/// has what is wanted already; waits for a version that is partial.  A way of more than
/// kStepsPerPass deltas brings in versions on the way too.
/// `only`: globs of the files that are kept (store/kept_files.hpp); empty: all.  To a version that
/// is complete without some of them these are added; what is there is not touched.
///
/// After a failure nothing of the version is left but what was complete before.  Several calls for
/// one store come one after the other: it holds Store::lock_images().  It may be evicted as soon as
/// this returns, unless the caller has it reserved.
void materialize(Store& store, History& history, std::uint64_t version, const Context& context,
                 const Progress& progress,
                 const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                 const std::vector<std::string>& only = {});

}  // namespace weightfs
