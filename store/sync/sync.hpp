// Sync: keeps a store up to date with its repository, and reports what there is.
//
// One thread polls for the next manifest (with jitter), brings the newest version into the store
// (or the followed one: store/catalog/follow.hpp), and only then moves `latest`.  Versions that
// arrived together are applied in one pass.  If one of them cannot be built (a missing or corrupt
// object), the versions before it still can; the old one stays served, status() names the object,
// and the loop retries, backing off to at most 30 s.
//
// With SyncOptions::partial a host that has nothing to show does not wait for its first version:
// that becomes `latest` at once and is filled while it is read
// (store/streaming/partial_images.hpp). Until it is complete no other version is brought in, unless
// it turns out to be damaged.
//
// Images are synced to disk after `latest` has moved (store/sync/image_syncer.hpp).  A version that
// the disk did not take is hidden and brought again.
//
// Then the room that the next version needs is made (store/sync/room_ahead.hpp).  And while there
// is nothing new, what its writer has uploaded already is made (store/sync/head_start.hpp).
//
// What is left of deltas that were made with the version is done (store/sync/delta_finisher.hpp).
//
// And patches are taken (store/sync/patch_recorder.hpp), so that old versions can be made of those
// that are here.
//
// If the store keeps images in memory, a restart finds only their base, and makes the newest
// version again before wait_ready() returns: of the base and the store's patches, without the
// bucket, or else of the bucket's packs.  The base is renewed if it is due
// (store/sync/base_writer.hpp).
//
// What needs a person's help (a key that may not read, a wrong setting) is in status() at once, and
// asked for again about every 10 s.
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
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/catalog/catalog.hpp"
#include "store/catalog/catalog_listeners.hpp"
#include "store/catalog/follow.hpp"
#include "store/local/eviction.hpp"
#include "store/materialize/history.hpp"
#include "store/os/lease.hpp"
#include "store/streaming/partial_images.hpp"
#include "store/sync/base_writer.hpp"
#include "store/sync/head_start.hpp"
#include "store/sync/patch_recorder.hpp"
#include "store/sync/room_ahead.hpp"

namespace weightfs {

struct SyncOptions {
  FollowOptions follow = {};
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  bool tags = true;  // read those of all versions, for Catalog::tags
  /// Globs of the files that are kept (store/materialize/file_filter.hpp); empty: all.
  std::vector<std::string> only = {};
  /// Show versions with absent files, because those are served by other means.  Requires: true if
  /// `only` is not empty.
  bool with_absent = false;
  /// A host without a complete version shows the first one at once and fills it while it is read;
  /// other versions open by name.  False: a version is shown once it is complete.
  bool partial = false;
  /// Make files of the next version before its manifest exists (store/sync/head_start.hpp).
  /// Requires: `only` is empty.
  bool head_start = false;
  /// PatchRecorderOptions::history.
  std::uint64_t history = kHistoryVersions;
  /// Ends the constructor, which checks what was not synced (store/materialize/check_images.hpp).
  Context checking = {};
  Progress checking_progress = {};  // of that
};

/// Of images in memory (ImageTable::use_memory).
struct MemoryStatus {
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> versions;  // complete ones, ascending
  std::uint64_t base = 0;               // ImageTable::base_version()
  BaseRenewals renewals = {};
};

/// For `weightfs status`; all times are seconds since 1970, 0 for never.
struct SyncStatus {
  enum class State { starting, current, fetching, waiting };  // waiting: after an error
  State state = State::starting;
  std::uint64_t latest = 0;      // what the mount shows
  std::uint64_t newest = 0;      // newest version known to be in the bucket
  Follow follow;                 // as the options say
  std::uint64_t followed = 0;    // the version that `latest` should be; 0: none yet
  std::int64_t newest_time = 0;  // when `newest` was published, by its publisher's clock
  /// Since when versions later than `latest` are known here; if the first poll of the process found
  /// them, when the newest was published, if that is earlier.  0: there is none.
  std::int64_t behind_since = 0;
  std::int64_t checked_time = 0;  // last successful poll
  /// `--poll auto`: the time between versions that polls go by; nullopt: steady polls.
  std::optional<std::chrono::milliseconds> rhythm;
  /// Since when the bucket is unreachable: since the last answer in the first poll that failed, or
  /// that has had none for Poll::patience; since it began if it had none.  0: it is reachable.
  std::int64_t offline_since = 0;
  std::string error;  // last error, "" after success; names the object
  std::string error_code;
  std::int64_t error_time = 0;
  std::map<std::string, std::uint64_t> failures = {};  // of this process, by code
  std::uint64_t fetched_bytes = 0;                     // of packs and snapshots, by this process
  std::uint64_t image_bytes = 0;
  /// Versions that are being filled, or could not be begun and have not come since.
  std::map<std::uint64_t, PartialProgress> partial;
  std::vector<std::uint64_t> unsynced;      // complete ones that may not be on disk yet
  std::uint64_t lost = 0;                   // versions that the disk did not take, in this process
  std::optional<MemoryStatus> memory = {};  // nullopt: images are on the disk
  PatchHistory history = {};
  DeltaTable::Counters deltas = {};                // as files
  std::optional<RoomAheadStatus> room_ahead = {};  // nullopt: none is made ahead
  std::optional<HeadStartStatus> head_start = {};  // nullopt: SyncOptions::head_start is not set

  [[nodiscard]] std::uint64_t lag_versions() const noexcept {
    return newest > latest ? newest - latest : 0;
  }
  [[nodiscard]] std::int64_t lag_seconds(std::int64_t now) const noexcept {
    return lag_versions() == 0 || behind_since == 0 || behind_since > now ? 0 : now - behind_since;
  }
};
std::string_view to_string(SyncStatus::State state) noexcept;

class Sync {
 public:
  /// Keeps the references.  Checks what was not synced before the last process ended, which reads
  /// it; then serves what the store has complete.  start() begins to poll, and to sync.
  /// Throws Error: cancelled, timed_out (SyncOptions::checking).
  Sync(Store& store, History& history, SyncOptions options);
  ~Sync();  // stops and joins

  void start();
  void stop();

  /// Registers a listener for new catalogs.  Versions that are complete in the store are already
  /// shown, without having been prepared.
  [[nodiscard]] CatalogListeners::Listening listen(CatalogListener listener);

  [[nodiscard]] std::shared_ptr<const Catalog> catalog() const;
  [[nodiscard]] SyncStatus status() const;

  /// SyncStatus::newest.  Quick, where status() looks at files of the store.
  [[nodiscard]] std::uint64_t newest() const;
  /// SyncStatus::behind_since of who shows `latest`, which may be another one than the catalog's.
  [[nodiscard]] std::int64_t behind_since(std::uint64_t latest) const;

  /// Shows at once the versions that are complete in the store, at least up to `version`, with the
  /// tag of `version`: for a version that was adopted.  Sends no request to the bucket if the store
  /// has the records, and does not wait for a round.  ManifestTable::newest() is at least `version`
  /// before it is shown. Throws Error: what reading the store's records throws.
  void show(std::uint64_t version);

  /// Puts a version into the catalog so that it opens by name: as absent, if it is not here.
  /// Fetches at most its manifest and layout, and none of its files.  Of the absent versions, the
  /// last 64 that were named stay.  Requires: SyncOptions::partial.
  /// Throws Error: not_found (there is no such version); corrupt; unavailable; cancelled,
  /// timed_out.
  void name_version(std::uint64_t version, const Context& context);

  /// SyncOptions::partial: any version opens once it was named.
  [[nodiscard]] bool opens_by_name() const noexcept;

  /// Keeps a version from being evicted for as long as it takes to open a file of it; waits while
  /// it is being removed.  Throws Error: cancelled, timed_out.
  [[nodiscard]] Eviction::Reservation reserve(std::uint64_t version, const Context& context);
  /// As reserve(), without waiting; nullopt while it is being removed.
  [[nodiscard]] std::optional<Eviction::Reservation> try_reserve(std::uint64_t version);

  /// Begins to fill a version that is not complete; see PartialImages::begin.  Afterwards it is in
  /// the catalog as partial or complete.  A failure is also in SyncStatus::partial until the next
  /// call.
  /// Requires: SyncOptions::partial; the version is reserved.
  std::shared_ptr<PartialVersion> fill_version(std::uint64_t version, const Context& context);

  /// Asks the thread to fill a version soon, without waiting; does nothing if it is complete.  A
  /// failure is in SyncStatus::partial until the next request for it.
  void ask_for(std::uint64_t version);

  /// nullptr if the version is not being filled.
  [[nodiscard]] std::shared_ptr<PartialVersion> find_partial(std::uint64_t version) const;

  /// Blocks until `latest` exists, or the repository is known to have nothing that is followed, or
  /// the bucket turns out to be unusable while the store has nothing.  With images in memory also
  /// until the first round has ended, or the bucket has not answered for 10 s: the store may have
  /// no more than their base. Requires: start() or run_once() was called. Throws Error: the first
  /// error of a store that has nothing to show; timed_out; cancelled.
  void wait_ready(const Context& context, const Progress& progress);

  /// One round without the thread, for tests and for `sync`: polls once and brings in what is new.
  /// Throws what went wrong; then `latest` is unchanged, or a version before the broken one.
  void run_once(const Context& context, const Progress& progress = {});

  /// Syncs the versions that are complete and not synced; for who has no thread.  What is lost is
  /// hidden, as by the thread.
  void sync_images();

  /// PatchRecorder::record_noted(), for who has no thread.
  bool record_noted(const Context& context);

  /// DeltaFinisher::finish_all(), for who has no thread.
  void finish_deltas(const Context& context);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
