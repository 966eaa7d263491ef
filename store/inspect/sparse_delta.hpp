// SparseDelta: the change between two versions as one safetensors file, in the convention of TRL:
//
//     NAME.indices   I32, or I64 if NAME has more than 2^31 - 1 elements; ascending
//     NAME.values    the new values, in NAME's own dtype
//     NAME.old       the old values, only where they were asked for (OldValues)
//
// for every tensor that changed, so that  older.flatten()[indices] = values  gives the newer one,
// and  newer.flatten()[indices] = old  the older one again.
//
//     SparseLayout        the offsets of everything (store/sparse/sparse_layout.hpp)
//     SparseDeltaReader   builds the chunks of both versions, checks their hashes, compares them
//
// An entry is a changed element.  If the codec counts bytes and an element has several (F64, I32,
// ...), there is an entry for each changed byte: its element is repeated, with the same value. If a
// chunk has fewer elements than changed bytes, there is one entry for each of its elements.  So
// sizes follow from the counts in this case too, and no tensor takes more than all of its elements.
//
// It contains only tensors, not opaque files or blobs, and exists only for versions with the same
// tensors (name, dtype, shape).
//
// Threads: a SparseLayout and a SparsePlan are immutable; a SparseDeltaReader runs its own threads
// and takes one call at a time.  Format: docs/FORMAT.md, "Sparse deltas".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/block/free_list.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/version_pair.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/sparse/sparse_layout.hpp"

namespace weightfs {

/// How the chunks of both versions are built.
struct SparsePlan {
  Plan from, to;
  std::vector<std::optional<std::uint32_t>> older;  // see match_tensors

  [[nodiscard]] VersionPair versions() const noexcept {
    return {from.version->number(), to.version->number()};
  }
};

/// Throws Error: unsupported (see match_tensors), and as make_plan does.
SparsePlan make_sparse_plan(History& history, VersionPair versions, std::span<const Base> bases,
                            const Context& context);

/// The changed counts from the indexes of a version's packs; nullopt if the version has no delta.
/// Fetches only pack headers.  Throws Error: as Repository::get_pack_index.
std::optional<ChangedCounts> find_changed_counts(History& history, const Version& version,
                                                 const Layout& layout, const Context& context);

class SparseDeltaReader {
 public:
  /// Fetches the packs that the plan needs into `spool`.  Keeps the references to plan and
  /// repository.
  SparseDeltaReader(const SparsePlan& plan, Repository& repository,
                    const std::filesystem::path& spool, kernels::SharedCoder coder,
                    const Context& context, const Progress& progress);
  ~SparseDeltaReader();

  /// Compares the two versions where their hashes differ.
  [[nodiscard]] ChangedCounts count();

  /// Writes a new file at `path`, mode 0444, with the newer manifest's time, synced.  After a
  /// failure the caller removes it.
  /// Throws BaseDamaged; Error: corrupt (a hash or a count that does not match, naming version,
  /// tensor and chunk), no_space, io, cancelled.
  void write(const SparseLayout& layout, std::span<const std::uint32_t> changed,
             const std::filesystem::path& path);

 private:
  struct Worker;
  struct Job {
    std::uint32_t tensor = 0;  // of `to`
    std::uint32_t chunk = 0;
  };
  [[nodiscard]] std::vector<Job> jobs(std::span<const std::uint32_t> changed) const;
  [[nodiscard]] std::unique_ptr<Worker> make_worker() const;
  void read(const Job& job, Worker& worker) const;

  const SparsePlan& plan_;
  Repository& repository_;
  const kernels::SharedCoder coder_;
  const Context context_;
  const Progress progress_;
  PackSpool from_spool_, to_spool_;
  kernels::FreeList<Worker> idle_;
};

/// Writes the change from one version to another to `file`, which must not exist; it appears only
/// when it is complete.  Compares twice: to count and to write.
/// Returns: the number of entries.
/// Throws Error: exists, unsupported (see match_tensors), and as make_plan and write().
std::uint64_t export_sparse_delta(History& history, VersionPair versions,
                                  const std::filesystem::path& file, const Context& context,
                                  const Progress& progress,
                                  const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
