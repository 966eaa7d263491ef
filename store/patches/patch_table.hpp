// PatchTable: the patches that a store has, by span.
//
// Patches lie in a column family of their own, `patches`, which is made when the first ones are
// installed: a store without patches can still be opened by older releases.  RocksDB's compactor is
// off for it: compaction is folding (store/patches/fold_spans.hpp), which makes new spans beside
// the old ones, and a merge operator would lose access to single versions.
//
// A record says that a span's patches exist.  It is written after they are in the database, and
// removed, durably, before they are; whoever dies in between leaves patches without a record, which
// are removed when the store is opened.  So at no moment does a record promise what is not there.
//
//     install   patches --> record          remove   record --> patches
//
// A span that is folded may be installed in parts, so that the work is not lost with the process.
// A part is recorded too, with the place where the next one begins, but is no span yet: list() and
// find() do not know it.
//
// Threads: all calls may run in parallel.  Reading takes no lock of its own: a span may be removed
// meanwhile, which is Error not_found; the caller looks for another path.
// Errors: all throw Error: corrupt, io (the database); those that write also no_space (nothing was
// changed, except that patches without a record may be left; they go when the store is opened or
// the span is installed again).
// Ownership: keeps the reference to the database.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/patch_file_writer.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_records.hpp"
#include "store/patches/patch_span.hpp"

namespace weightfs {

/// What was written since the store was made: folded / taken is the write amplification of folding.
struct PatchCounters {
  std::uint64_t taken_bytes = 0;   // installed at level one
  std::uint64_t folded_bytes = 0;  // installed at higher levels

  bool operator==(const PatchCounters&) const = default;
};

/// How far a span came that is installed in parts.
struct SpanPart {
  SpanInfo info;    // what is installed
  ChunkPlace next;  // all places below are done

  bool operator==(const SpanPart&) const = default;
};

class PatchTable {
 public:
  /// Reads the records, and removes patches that none of them names, and records whose patches are
  /// gone.  A record that cannot be read is a line in the log, and its span is lost.
  /// `directory`: for files that are being written; of the file system of the database.
  PatchTable(Db& db, std::filesystem::path directory);
  PatchTable(const PatchTable&) = delete;
  PatchTable& operator=(const PatchTable&) = delete;

  // ---- spans ----

  /// Writes files for install().  `file_bytes_max`: as PatchFileWriter().
  [[nodiscard]] PatchFileWriter make_writer(
      PatchSpan span, std::uint64_t file_bytes_max = kSortedFileBytesMax) const;

  /// Installs the patches of a span: all, or those after install_part(), which must have been
  /// called with the same ends.  Replaces a span of the same name; one with the same ends stays, as
  /// it has the same patches, and the files are dropped.  No files: nothing changed between the two
  /// versions, which is a span too.  Durable when it returns.
  /// Requires: the files are of a PatchFileWriter of this span, ends.first.version <
  /// ends.last.version.
  void install(const SpanEnds& ends, PatchFiles files);

  /// Installs patches of places below `next`.  Replaces as install().
  void install_part(const SpanEnds& ends, PatchFiles files, ChunkPlace next);

  /// How far install_part() came for this span; nullopt if it did not begin, or for other ends.
  [[nodiscard]] std::optional<SpanPart> find_part(const SpanEnds& ends) const;

  /// Removes a span, or its part, whoever reads it: for damaged ones.  Returns: whether there was
  /// one.
  bool remove(const PatchSpan& span);
  /// As remove(), unless it is held.
  bool remove_if_unheld(const PatchSpan& span);

  /// Removes spans, and parts, for which `is_unwanted` returns true, but none that is held.
  /// Returns: how many.
  std::size_t remove_if(const std::function<bool(const SpanEnds& ends, bool is_part)>& is_unwanted);

  /// Keeps spans from being removed because they are old, or folded, for as long as somebody makes
  /// a version of them.
  class Hold {
   public:
    Hold() = default;  // holds nothing
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept {
      std::swap(table_, other.table_);
      std::swap(names_, other.names_);
      return *this;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

   private:
    friend class PatchTable;
    const PatchTable* table_ = nullptr;
    std::vector<std::pair<PatchLevel, std::uint64_t>> names_;
  };
  /// They need not be there any more: who reads them afterwards finds out.  Waits for a change that
  /// is being made.
  [[nodiscard]] Hold hold(const PatchPath& path) const;

  [[nodiscard]] std::vector<SpanInfo> list() const;  // by level, then by last version
  [[nodiscard]] std::optional<SpanInfo> find(const PatchSpan& span) const;

  /// Of all spans and parts.
  [[nodiscard]] std::uint64_t size_bytes() const;
  [[nodiscard]] PatchCounters counters() const;

  // ---- patches ----

  /// The patch of a chunk; nullopt: the chunk is the same in both versions.
  /// Throws Error: not_found if the span is gone, corrupt (names the patch).
  [[nodiscard]] std::optional<ChunkPatch> find_patch(const SpanInfo& span, ChunkPlace place) const;

  /// Patches of a span, ascending.
  struct Page {
    std::vector<std::pair<ChunkPlace, ChunkPatch>> patches;
    bool is_last = false;  // no more follow
  };
  /// Those from `from` on, until they have `bytes_max` bytes together; at least one if there is
  /// one.  Throws as find_patch().
  [[nodiscard]] Page read_page(const SpanInfo& span, ChunkPlace from, std::size_t bytes_max) const;

 private:
  struct Entry {
    SpanRecord record;
    std::uint64_t serial = 0;  // of all that were put since this process began
  };
  using Name = std::pair<PatchLevel, std::uint64_t>;  // level, last version

  std::vector<std::string> load();
  void sweep(const std::vector<std::string>& bad_records);
  void sweep_patches();
  void forget_all_but(const std::set<Name>& found);
  void remove_all(const Error& damage);
  void put(const SpanEnds& ends, PatchFiles files, std::optional<ChunkPlace> next);
  bool remove(const PatchSpan& span, bool even_if_held);
  void remove_entry(Name name, const Entry& entry);
  [[nodiscard]] bool is_held(Name name) const;
  [[nodiscard]] std::optional<Entry> find_entry(Name name) const;
  [[nodiscard]] std::uint64_t get_serial(const SpanInfo& span) const;
  void check_is_still_there(const SpanInfo& span, std::uint64_t serial) const;

  Db& db_;
  const std::filesystem::path directory_;
  // One change at a time, held over the database: records are those of memory.  Before mutex_.
  mutable RankedMutex change_mutex_{LockRank::patches, "PatchTable::change_mutex_"};
  mutable RankedMutex mutex_{LockRank::store, "PatchTable::mutex_"};  // guards what follows
  std::map<Name, Entry> entries_;
  mutable std::multiset<Name> held_;
  PatchCounters counters_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace weightfs
