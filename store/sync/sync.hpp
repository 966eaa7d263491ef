// Sync: keeps a store up to date with its repository, and tells what there is.
//
// One thread: poll for the next manifest (with jitter), bring the newest version into the store (or
// the one that is followed: store/sync/follow.hpp), only then move `latest`.  Versions that arrived
// together are applied in one pass.  If one of them cannot be made (a missing or corrupt object),
// the versions before it still can; the old one stays served, status() names the object, and the
// loop tries again, backing off to at most 30 s.
//
// With SyncOptions::partial a host that has nothing to show does not wait for its first version: it
// is `latest` at once, and filled while it is read (store/streaming/partial_images.hpp).  Until it
// is complete no other is brought, unless it turns out to be damaged.
//
// A poll without news is one GET of the next manifest, however many versions there are.  What needs
// a person's help (a key that may not read, a wrong setting) is in status() at once, and asked for
// again about every 10 s.
//
// Threads: all calls may run in parallel.  Lock order: docs/architecture/threads.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/local/eviction.hpp"
#include "store/materialize/history.hpp"
#include "store/os/lease.hpp"
#include "store/streaming/partial_images.hpp"
#include "store/sync/catalog.hpp"
#include "store/sync/catalog_listeners.hpp"
#include "store/sync/follow.hpp"

namespace weightfs {

struct SyncOptions {
  FollowOptions follow = {};
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  bool tags = true;  // of all versions are read, for Catalog::tags
  /// Globs of the files that are kept (store/materialize/file_filter.hpp); empty: all.
  std::vector<std::string> only = {};
  /// Versions are shown although files of them are absent: those are served all the same.
  /// Requires, if `only` is not empty: it is.
  bool with_absent = false;
  /// A host that has no complete version shows the first one at once and fills it while it is read;
  /// others open by name.  False: a version is shown when it is complete.
  bool partial = false;
};

/// For `weightfs status`; all times are seconds since 1970, 0 for never.
struct SyncStatus {
  enum class State { starting, current, fetching, waiting };  // waiting: after an error
  State state = State::starting;
  std::uint64_t latest = 0;        // what the mount shows
  std::uint64_t newest = 0;        // what the bucket is known to have
  Follow follow;                   // as the options say
  std::uint64_t followed = 0;      // of the versions the one that `latest` is to be; 0: none yet
  std::int64_t newest_time = 0;    // when that was published
  std::int64_t checked_time = 0;   // last successful poll
  std::int64_t offline_since = 0;  // bucket out of reach since; 0: it is not
  std::string error;               // last error, "" after success; names the object
  std::string error_code;
  std::int64_t error_time = 0;
  std::uint64_t fetched_bytes = 0;  // of packs and snapshots, by this process
  std::uint64_t image_bytes = 0;
  std::map<std::uint64_t, PartialProgress> partial;  // that are being filled, or cannot be
};
std::string_view to_string(SyncStatus::State state) noexcept;

class Sync {
 public:
  /// Keeps the references.  Serves at once what the store has complete; start() begins to poll.
  Sync(Store& store, History& history, SyncOptions options);
  ~Sync();  // stops and joins

  void start();
  void stop();

  /// From now on it is told of new catalogs.  What the store has complete is shown already, and was
  /// prepared by nobody.
  [[nodiscard]] CatalogListeners::Listening listen(CatalogListener listener);

  [[nodiscard]] std::shared_ptr<const Catalog> catalog() const;
  [[nodiscard]] SyncStatus status() const;

  /// Shows at once what the store has complete, up to `version` at least, with that version's tag:
  /// for a version that was adopted.  Asks the bucket nothing, if the store has the records, and
  /// waits for no round.  Store::newest() is `version` or higher before it is shown.
  /// Throws Error: what the store's records throw.
  void show(std::uint64_t version);

  /// Puts a version into the catalog so that it opens by name: as absent, if it is not here.  Asks
  /// the bucket for its manifest and layout at most; nothing of its files is fetched.  Of those
  /// that are absent the last 64 that were named stay.  Requires: SyncOptions::partial.
  /// Throws Error: not_found (there is no such version); corrupt; unavailable; cancelled,
  /// timed_out.
  void name_version(std::uint64_t version, const Context& context);

  /// SyncOptions::partial: any version opens when it was named.
  [[nodiscard]] bool opens_by_name() const noexcept;

  /// Keeps a version from being evicted, for as long as it takes to open a file of it; waits while
  /// it is being removed.  Throws Error: cancelled, timed_out.
  [[nodiscard]] Eviction::Reservation reserve(std::uint64_t version, const Context& context);
  /// The same without waiting; nullopt while it is being removed.
  [[nodiscard]] std::optional<Eviction::Reservation> try_reserve(std::uint64_t version);

  /// Begins to fill a version that is not complete; see PartialImages::begin.  The catalog has it
  /// then, as partial or complete.  A failure is in SyncStatus::partial too, until the next call.
  /// Requires: SyncOptions::partial; the version is reserved.
  std::shared_ptr<PartialVersion> fill_version(std::uint64_t version, const Context& context);

  /// The same soon, by the thread, for who does not wait; nothing if it is complete.  A failure is
  /// in SyncStatus::partial until it is asked for again.
  void ask_for(std::uint64_t version);

  /// nullptr if the version is not being filled.
  [[nodiscard]] std::shared_ptr<PartialVersion> find_partial(std::uint64_t version) const;

  /// Blocks until `latest` exists, or the repository is known to have nothing that is followed, or
  /// the bucket turns out to be unusable while the store has nothing.  Requires: start() was
  /// called, or run_once(). Throws Error: the first error of a store that has nothing to show;
  /// timed_out; cancelled.
  void wait_ready(const Context& context, const Progress& progress);

  /// One round, without a thread, for tests and for `sync`: polls once and brings in what is new.
  /// Throws what went wrong; latest then is as it was, or a version before the one that is broken.
  void run_once(const Context& context, const Progress& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
