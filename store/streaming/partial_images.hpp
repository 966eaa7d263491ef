// PartialImages: the versions of a store that are filled while they are read: the first one of a
// cold host, and older ones that are opened by name (time travel).
//
// A version is partial from begin() until a thread of this object has recorded its images as
// complete, or until it is evicted (store/local/eviction.hpp): then its files are removed, and it
// may be begun again.  While it is partial, Evictor counts it, and materialize() of it waits.
// Partial versions end with the process: Store::open() removes files without a record.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/error.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/streaming/partial_version.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

struct PartialImagesOptions {
  /// Globs of the files that are kept (store/materialize/file_filter.hpp); empty: all.  Other files
  /// are not filled.
  std::vector<std::string> only = {};
  unsigned threads = 0;  // as in PartialVersionOptions
  std::chrono::milliseconds tell_failures_for = PartialVersionOptions{}.tell_failures_for;
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// A version was begun or completed, or an error changed.  Called from any thread, without locks
  /// of this object; must be quick.
  std::function<void()> changed = {};
  /// A version was evicted to make room.  Called like `changed`, but with locks of the store held.
  std::function<void()> gave_up = {};
};

class PartialImages {
 public:
  /// Keeps the references.
  PartialImages(Store& store, History& history, PartialImagesOptions options);
  ~PartialImages();  // stops all; removes incomplete versions
  PartialImages(const PartialImages&) = delete;
  PartialImages& operator=(const PartialImages&) = delete;

  /// Begins to fill a version: plan, room, files.  Waits for ImageTable::lock_images(), but holds
  /// it for this call only. Returns: the version, which may have been begun before; nullptr if its
  /// images are complete. It may be evicted as soon as this returns, unless the caller has reserved
  /// it. Throws Error: what make_plan() and Evictor::evict_for_images() throw; no_space; cancelled,
  /// timed_out.
  ///
  /// `watch`: gets the phases wait to room, and where the version comes from, as it begins; its
  /// meter is used until it is complete.  nullptr: nobody asks.
  std::shared_ptr<PartialVersion> begin(std::uint64_t version, const Context& context,
                                        VersionWatch* watch = nullptr);

  /// Ends the threads; PartialImagesOptions::changed is not called after it.  Nothing may begin any
  /// more: it is for who destroys this object next.
  void stop();

  /// nullptr if the version is not partial (any more).
  [[nodiscard]] std::shared_ptr<PartialVersion> find(std::uint64_t version) const;

  [[nodiscard]] std::map<std::uint64_t, std::shared_ptr<PartialVersion>> list() const;

  /// Why a version whose files are all here is not complete yet, usually because the disk is full;
  /// nullopt: nothing went wrong.  It is retried.
  [[nodiscard]] std::optional<Error> record_error(std::uint64_t version) const;

  /// Sum of PartialProgress::fetched_bytes over all versions, including those no longer partial.
  [[nodiscard]] std::uint64_t fetched_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
