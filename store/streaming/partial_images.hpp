// PartialImages: the versions of a store that are filled while they are read: the first one of a
// cold host, and older ones that somebody opens by name (time travel).
//
// A version is partial from begin() until its images are complete in the store, which a thread of
// this object sees to, or until it is evicted (store/local/eviction.hpp): then what is here of it
// goes, and it may be begun again.  Evictor counts it meanwhile, and materialize() of it waits.
// What is partial ends with the process: Store::open() removes what has no record.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/streaming/partial_version.hpp"

namespace weightfs {

struct PartialImagesOptions {
  /// Globs of the files that are kept (store/materialize/file_filter.hpp); empty: all.  Others are
  /// not filled.
  std::vector<std::string> only = {};
  unsigned threads = 0;  // as of PartialVersionOptions
  std::chrono::milliseconds tell_failures_for{30'000};
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// A version began or became complete, or an error changed.  From any thread, without locks of
  /// this object; must be quick.
  std::function<void()> changed = {};
  /// One was given up to make room.  The same, but with locks of the store held.
  std::function<void()> gave_up = {};
};

class PartialImages {
 public:
  /// Keeps the references.
  PartialImages(Store& store, History& history, PartialImagesOptions options);
  ~PartialImages();  // stops all; what is not complete is removed
  PartialImages(const PartialImages&) = delete;
  PartialImages& operator=(const PartialImages&) = delete;

  /// Begins to fill a version: plan, room, files.  Waits for Store::lock_images(), but holds it for
  /// this call only.
  /// Returns: the version; the one that was begun before; nullptr if its images are complete.
  /// It may be evicted as soon as this returns, unless the caller has it reserved.
  /// Throws Error: what make_plan() and Evictor::evict_for_images() throw; no_space; cancelled,
  /// timed_out.
  std::shared_ptr<PartialVersion> begin(std::uint64_t version, const Context& context);

  /// nullptr if the version is not partial (any more).
  [[nodiscard]] std::shared_ptr<PartialVersion> find(std::uint64_t version) const;

  [[nodiscard]] std::map<std::uint64_t, std::shared_ptr<PartialVersion>> list() const;

  /// PartialProgress::fetched_bytes of all versions so far, also of those that are not partial any
  /// more.
  [[nodiscard]] std::uint64_t fetched_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
