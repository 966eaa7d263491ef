// DeltaFiles: the change from one version to another as a file (store/inspect/sparse_delta.hpp),
// made on first use and kept in the store (store/local/delta_table.hpp), unless it was made with
// its version (store/sparse/ahead_deltas.hpp):
//
//     facts(A to B)    the file's size; nothing is made
//     build(A to B)    the file, made once for any number of callers
//
// Each with or without the old values (DeltaId): two files, of which neither is made of the other.
//
// The size follows from how many elements of each chunk changed:
//
//     patches of the store that lead from A to B    no image, no pack
//     else the indexes of B's packs, if A is B - 1
//     else both versions, compared, if images and patches here make both
//
// Who asks for one that is being made with its version waits for it.  Who opens one says that the
// next one is wanted (store/local/wanted_deltas.hpp).
//
// The bytes come from images and patches where these lead to a version, else from the bucket.
//
// Threads: all calls may run in parallel.  Of several callers that want one file, one makes it and
// the others wait; if it gives up, the next one starts over.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/version_pair.hpp"
#include "store/inspect/sparse_delta.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct DeltaFilesOptions {
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// For tests: called before a file's bytes are written.
  std::function<void(const DeltaId& id)> building = {};
};

/// The attributes of a delta for stat(2).
struct DeltaFacts {
  std::uint64_t size_bytes = 0;
  std::int64_t time = 0;  // of the version that it leads to
};

class DeltaFiles {
 public:
  /// Keeps the references.
  DeltaFiles(Store& store, History& history, DeltaFilesOptions options);

  /// The facts that an earlier facts() or build() found.  Never waits.
  [[nodiscard]] std::optional<DeltaFacts> find_facts(const DeltaId& id) const;

  /// May fetch manifests, layouts and pack headers from the bucket.
  /// Requires: two versions, both above 0.
  /// Throws Error: not_found (no such version); unsupported, saying why there is no such file;
  /// unavailable, corrupt.
  DeltaFacts facts(const DeltaId& id, const Context& context);

  /// The complete file.  It may be removed at any time to make room: then call again.
  /// Throws Error: as facts(); corrupt (a pack or an image does not match), no_space, cancelled,
  /// timed_out.
  std::filesystem::path build(const DeltaId& id, const Context& context);

 private:
  struct Promise;  // the facts computed before the bytes are made
  Promise promise(const DeltaId& id, const Context& context);
  ChangedCounts count(VersionPair versions, const Version& to, const Layout& layout,
                      const Context& context);
  std::optional<ChangedCounts> counts_of_packs(const Version& version, const Layout& layout,
                                               const Context& context);
  ChangedCounts counts_by_comparing(VersionPair versions, const Context& context);
  bool can_make(std::uint64_t version, const Context& context);
  bool can_compare(VersionPair versions, const Context& context);
  [[nodiscard]] std::vector<Base> bases(VersionPair versions, const std::set<std::uint64_t>& bad,
                                        const Context& context);
  template <typename Body>
  void with_plan(VersionPair versions, const Context& context, const Body& body);
  void make(const DeltaId& id, const Context& context);
  void write(const DeltaId& id, const Promise& promise, const std::filesystem::path& file,
             const Context& context);
  bool begin(const DeltaId& id, const Context& context);
  void end(const DeltaId& id);

  Store& store_;
  History& history_;
  const DeltaFilesOptions options_;
  // Guards what follows; never held across store or bucket calls.
  mutable RankedMutex mutex_{LockRank::delta_files, "DeltaFiles::mutex_"};
  std::condition_variable_any ended_;
  std::set<DeltaId> building_;
  std::map<DeltaId, DeltaFacts> facts_;
  std::map<VersionPair, std::string> refusals_;  // why there is no file
};

}  // namespace weightfs
