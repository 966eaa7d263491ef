// DeltaFiles: the change from version N - 1 to N as a file (store/inspect/sparse_delta.hpp), made
// on first use and kept in the store:
//
//     facts(N)    the file's size, from the indexes of N's packs; nothing is made
//     build(N)    <store>/deltas/<N>.safetensors, made once for any number of callers
//
// If a version has no delta in the bucket, or its packs are unreachable, it is compared with the
// version before it, provided that the images of both are here.
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
#include "store/base/ranked_mutex.hpp"
#include "store/inspect/sparse_delta.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct DeltaFilesOptions {
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// For tests: called before a file's bytes are written.
  std::function<void(std::uint64_t version)> building = {};
};

/// The attributes of a delta for stat(2).
struct DeltaFacts {
  std::uint64_t size_bytes = 0;
  std::int64_t time = 0;  // the version's time
};

class DeltaFiles {
 public:
  /// Keeps the references.
  DeltaFiles(Store& store, History& history, DeltaFilesOptions options);

  /// The facts that an earlier facts() or build() found.  Never waits.
  [[nodiscard]] std::optional<DeltaFacts> find_facts(std::uint64_t version) const;

  /// May fetch manifests, layouts and pack headers from the bucket.
  /// Requires: version >= 2.
  /// Throws Error: not_found (no such version); unsupported, saying why there is no such file;
  /// unavailable, corrupt.
  DeltaFacts facts(std::uint64_t version, const Context& context);

  /// The complete file.  It may be removed at any time to make room: then call again.
  /// Throws Error: as facts(); corrupt (a pack or an image does not match), no_space, cancelled,
  /// timed_out.
  std::filesystem::path build(std::uint64_t version, const Context& context);

 private:
  struct Promise;  // the facts computed before the bytes are made
  Promise promise(std::uint64_t version, const Context& context);
  std::optional<ChangedCounts> counts_of_packs(const Version& version, const Layout& layout,
                                               const Context& context);
  ChangedCounts counts_of_images(std::uint64_t version, const Context& context);
  [[nodiscard]] bool has_images_of(VersionPair versions) const;
  [[nodiscard]] std::vector<Base> bases(std::uint64_t version, const std::set<std::uint64_t>& bad,
                                        const Context& context);
  void make(std::uint64_t version, const Context& context);
  void write(std::uint64_t version, const Promise& promise, const std::filesystem::path& file,
             const Context& context);
  bool begin(std::uint64_t version, const Context& context);
  void end(std::uint64_t version);

  Store& store_;
  History& history_;
  const DeltaFilesOptions options_;
  // Guards what follows; never held across store or bucket calls.
  mutable RankedMutex mutex_{LockRank::delta_files, "DeltaFiles::mutex_"};
  std::condition_variable_any ended_;
  std::set<std::uint64_t> building_;
  std::map<std::uint64_t, DeltaFacts> facts_;
  std::map<std::uint64_t, std::string> refusals_;  // why there is no file
};

}  // namespace weightfs
