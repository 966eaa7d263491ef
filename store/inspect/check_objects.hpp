// ObjectChecker: fetches and hashes packs and snapshots, piece by piece.
//
// What is wrong with an object goes to Verdicts; each returns whether all was whole.  Other errors
// are thrown.  Memory: a few pieces for each request in flight.
//
// Threads: one call at a time; each runs its own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/manifest.hpp"
#include "store/format/pack.hpp"
#include "store/inspect/verdicts.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/repository.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {

/// Objects whose pieces are to be fetched, and the owners of their hashes.
struct ObjectRuns {
  std::vector<PieceRun> runs;
  std::vector<std::shared_ptr<const PackIndex>> indexes;
  SnapshotHashes snapshot;
};

class ObjectChecker {
 public:
  ObjectChecker(Repository& repository, Verdicts& verdicts, const Context& context)
      : repository_(repository), verdicts_(verdicts), context_(context) {}

  /// `key_of`: of a pack of this delta.
  using KeyOf = std::function<std::string(const PackRef&)>;
  bool check_packs(const DeltaRef& delta, const KeyOf& key_of, const Layout& layout,
                   ProgressCounter& counter);
  bool check_snapshot(const Version& version, const Layout& layout, ProgressCounter& counter);
  bool check_runs(BucketReader& from, const ObjectRuns& runs, ProgressCounter& counter);

 private:
  std::uint64_t check_part(BucketReader& from, const PieceRun& run, std::uint64_t first);
  void check_end(BucketReader& from, const PieceRun& run);

  Repository& repository_;
  Verdicts& verdicts_;
  const Context& context_;
};

}  // namespace weightfs
