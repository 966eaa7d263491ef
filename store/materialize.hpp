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
#include "store/error.hpp"
#include "store/history.hpp"

namespace weightfs {

inline constexpr std::uint64_t kWindowBytes = 4u << 20;

/// Deltas that materialize() applies in one pass; a longer way is gone in several, so that packs
/// and indexes of a bounded number of versions are held at a time.
inline constexpr std::size_t kStepsPerPass = 64;

/// Complete images of a version on this host.
struct Base {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  std::filesystem::path directory;
  std::vector<std::uint64_t> hashes;
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

  [[nodiscard]] std::uint64_t version_bytes() const noexcept;  // files and blobs

  /// Layout that step `index` starts from; before(0) is the start's own.
  [[nodiscard]] const Layout& before(std::size_t index) const noexcept;
};

/// Finds the way to `wanted` that fetches the fewest bytes.  `bases`: what the host has.  If an
/// object of that way is missing or corrupt, and there is another way, it takes that.
///
/// Throws Error: corrupt (a head or a root that does not fit; BaseDamaged if it is a base's),
/// not_found (a pack or snapshot is gone, naming the key), unavailable; the message names the
/// version of the step.
Plan make_plan(History& history, std::shared_ptr<const Version> wanted, std::span<const Base> bases,
               const Context& context);

/// The Base of a complete version in the store.
Base base_of(Store& store, History& history, std::uint64_t version, const Context& context);

/// Complete versions older than `before`, to start from.  One whose records cannot be read is none,
/// nor one that is distrusted.
std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context);

struct WriteOptions {
  std::filesystem::path directory;  // exists, empty
  std::filesystem::path spool;      // for packs while they are applied; same machine
  unsigned threads = 0;             // 0: one for each core
  bool sync = true;                 // fsync files and directories
  unsigned mode = 0444;             // of files; a hard-linked one keeps the base's
  kernels::SharedCoder coder = kernels::make_cpu_coder();
};

/// Writes every file of the plan's version, with the manifest's time as modification time.  Nothing
/// outside options.directory is changed; after a failure the caller removes what is in it.
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
/// the bucket if a base is damaged, and removes that one's images unless it is in `keep` or
/// `release` says that it is in use.  Does nothing if the version is complete already; waits for
/// one that is partial.  A way of more than kStepsPerPass deltas brings in versions on the way too.
///
/// After a failure nothing of the version is left.  Several calls for one store come one after the
/// other: it holds Store::lock_images().
/// `release`: see Store::make_room; may be empty.  `keep`: versions, ascending, that must stay
/// beside the base in use.
void materialize(Store& store, History& history, std::uint64_t version,
                 std::span<const std::uint64_t> keep,
                 const std::function<bool(std::uint64_t)>& release, const Context& context,
                 const Progress& progress,
                 const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
