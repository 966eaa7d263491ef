// SkipMaker: makes the skip deltas that a bucket lacks (store/skips/skip_rules.hpp), beside a
// writer's publishes, in a thread of the lowest priority.
//
//     a version is shown, its patches are taken  -->  wake()  -->  one skip after another
//
// It makes those whose versions can be read here, of images or of the store's patches, and writes
// no version as files; the others are left to `weightfs skip`.  Each is a pass over the
// model.  A publish goes before: work waits while `give_way` does, and is dropped if the store has
// no room for another version, since the images that it reads must stay.
//
// A skip that cannot be made is tried again after a pause, and meanwhile the others are made.  So
// is all of it if the bucket or the history cannot be asked.
//
// Threads: all calls may run in parallel, make_one() one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/version_pair.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/gc_log.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

/// Before each batch of a skip delta, whoever makes it: waits while `give_way` does, which may be
/// empty.  `newest`: the newest version when the work began.
/// Throws Error: no_space if there is a newer one now and the store has no room for another
/// version, since the images that the skip is made of must stay; cancelled, timed_out.
void let_publish_go_first(Store& store, std::uint64_t newest,
                          const std::function<void(const Context& context)>& give_way,
                          const Context& context);

struct SkipMakerOptions {
  std::string off = {};  // why none are made; "": they are
  /// Newest versions to which skips are made.
  std::uint64_t versions = 64;
  /// Waits while something more important goes on; may be empty.
  std::function<void(const Context& context)> give_way = {};
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  Clock::duration retry_pause = std::chrono::seconds(60);  // of what failed
};

struct SkipMakerStatus {
  std::uint64_t made = 0, bytes = 0;           // by this process; uploaded
  std::optional<VersionPair> last = {};        // of these
  std::optional<VersionPair> making = {};      // now
  std::vector<VersionPair> out_of_reach = {};  // nothing here leads to both versions
  std::vector<VersionPair> failed = {};        // that will be tried again
  std::string off;                             // SkipMakerOptions::off
  std::string error;                           // of the last one that failed; "": none is to be
                                               // tried again
};

class SkipMaker {
 public:
  /// Keeps the references.
  SkipMaker(Store& store, History& history, SkipMakerOptions options);
  ~SkipMaker();  // stops

  void start() { thread_.start(); }
  /// Waits for a batch of chunks, or a request.
  void stop() { thread_.stop(); }

  /// There may be a newer version, or patches.  Quick.
  void wake() { thread_.wake(); }

  enum class Outcome { made, none, failed };
  /// Makes one skip.  `none`: there is none that could be made now.  `failed`: see status().
  /// Requires: the thread does not run.
  /// Throws Error: cancelled, timed_out; what manifests and the bucket's lists throw.
  Outcome make_one(const Context& context);

  [[nodiscard]] SkipMakerStatus status() const;

 private:
  [[nodiscard]] std::vector<VersionPair> find_due(const Context& context);
  void settle_what_is_there(const std::vector<VersionPair>& due, const Context& context);
  void settle(const VersionPair& skip);
  [[nodiscard]] bool is_in_reach(std::uint64_t version, const Context& context) const;
  Outcome make(const VersionPair& skip, const Context& context);
  Outcome code_and_put(const VersionPair& skip, const Context& context);
  void note_failure(const VersionPair& skip, const std::string& error);
  void show_failed();
  void show_making(std::optional<VersionPair> skip);
  [[nodiscard]] Clock::duration pause() const;

  Store& store_;
  History& history_;
  const SkipMakerOptions options_;
  // Used by make_one() only:
  GcLog retired_;                  // as far as it was read
  std::set<VersionPair> settled_;  // there, or never to be made
  struct Failure {
    Clock::time_point again;
    std::string error;
  };
  std::map<VersionPair, Failure> failed_;                           // still to be made
  mutable RankedMutex mutex_{LockRank::leaf, "SkipMaker::mutex_"};  // guards the next one
  SkipMakerStatus status_;
  WokenThread thread_;  // last: it uses those above
};

}  // namespace weightfs
