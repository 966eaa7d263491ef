// Catalog builder: makes the catalog from the store's records, and collects the tags.
//
// The catalog follows from the records alone, so the next one is right whatever happened before:
//
//     versions    complete, not above ManifestTable::newest(), not being evicted
//                 (store/local/eviction.hpp); versions that lack a file which is not kept only
//                 where such files are served (store/streaming/remote_files.hpp)
//     incomplete  versions that are being filled; as absent: the last kNamedMax other versions that
//                 were named, and versions that are being evicted: opening a file of these waits
//     latest      the highest of `versions` that is followed, never below an earlier `latest`: if
//                 that one has lost its images it stays `latest`, as absent. Until there is one:
//                 the version given to show_first(), while it is being filled.  It stays reserved
//                 until the next make() has chosen
//     tags        of every manifest that was read: the newest version of each
//
// Threads: all calls may run in parallel; only calls that take a Context wait for the bucket. The
// result of make() is immutable; of two concurrent calls either may have seen more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/catalog/follow.hpp"
#include "store/materialize/history.hpp"
#include "store/streaming/partial_images.hpp"

namespace weightfs {

class CatalogBuilder {
 public:
  /// Limit for versions that were named and have no image here.
  static constexpr std::size_t kNamedMax = 64;

  /// Keeps both references.  Reads the tags of the manifests that the store has.
  /// `with_absent`, `only`: as in SyncOptions.
  CatalogBuilder(Store& store, History& history, Follow follow = {}, bool with_absent = false,
                 std::vector<std::string> only = {});

  /// The versions that are being filled; nullptr: none.  Call it with nullptr before they are
  /// destroyed.
  void set_partials(const PartialImages* partials);

  /// Leaves out a version whose manifest or layout is neither in the store nor was fetched.
  std::shared_ptr<const Catalog> make();

  /// Fetches what make() needs and the store does not have.
  void fetch(const Context& context);

  /// Adds a version to `incomplete` as absent, until `others_max` others were named after it.
  /// Fetches from the bucket what the store does not have.
  /// Throws Error: not_found; what History throws.
  void name(std::uint64_t version, const Context& context, std::size_t others_max = kNamedMax);

  /// The version to show as `latest` while it is being filled, on a host that has shown no other.
  void show_first(std::uint64_t version);

  /// Records the tag of a version that was already read.
  void note(const Version& version);
  [[nodiscard]] std::int64_t newest_time() const;

  /// Reads unread manifests, newest first, until all are read or `until` has passed.  One that
  /// cannot be read is left for later; an error of the bucket ends the call.
  /// Returns: whether make() would give another catalog now.
  bool read_tags(std::uint64_t newest, const Context& context, Clock::time_point until);

  /// The newest of versions 1..newest that carries the tag, 0 if none does.  Reads the unread
  /// manifests, newest first, down to that version; one that cannot be read counts as untagged.
  /// Throws Error: the bucket is unreachable; cancelled, timed_out.
  std::uint64_t find_carrier(const std::string& tag, std::uint64_t newest, const Context& context);

  /// Of the manifests after `version` the oldest that could not be read: why.
  [[nodiscard]] std::optional<Error> find_unreadable(std::uint64_t version) const;

 private:
  struct Unreadable {
    Clock::time_point retry;
    ErrorCode code = ErrorCode::corrupt;
    std::string why;
  };
  struct Described {
    std::shared_ptr<const CatalogVersion> version;
    /// The same version without images, in the state last requested; may be null.
    std::shared_ptr<const CatalogVersion> incomplete = {};
    ImageState state = ImageState::absent;  // of `incomplete`
  };

  // The functions down to known() require: mutex_ is held.
  void add_complete(Catalog& catalog);
  void add_incomplete(Catalog& catalog);
  void choose(Catalog& catalog);
  void hide(Catalog& catalog, std::uint64_t version);
  void keep_latest(Catalog& catalog);
  bool reserve_latest(std::uint64_t version);
  void add_incomplete(Catalog& catalog, std::uint64_t version, ImageState state);
  Described* known(std::uint64_t version);
  [[nodiscard]] bool is_as_described(const CatalogVersion& version) const;
  std::shared_ptr<const CatalogVersion> describe(std::uint64_t number, const Context* bucket);
  std::shared_ptr<const CatalogVersion> describe_now(std::uint64_t number, const Context* bucket);
  void read_stored_tags();
  bool read_tag(std::uint64_t number, const Context& context);
  void take_tag(const Manifest& manifest);  // requires: mutex_ is held
  void expect_up_to(std::uint64_t newest);  // the same
  std::vector<std::uint64_t> unread_tags(std::uint64_t newest);
  [[nodiscard]] std::uint64_t known_carrier(const std::string& tag) const;

  Store& store_;
  History& history_;
  const Follow follow_;
  const bool with_absent_;
  const std::vector<std::string> only_;
  // Guards what follows; never held across bucket calls.
  mutable RankedMutex mutex_{LockRank::catalog_builder, "CatalogBuilder::mutex_"};
  const PartialImages* partials_ = nullptr;
  // Of complete versions, and those of `partials_` and `named_`.
  std::map<std::uint64_t, Described> described_;
  std::deque<std::uint64_t> named_;  // the last one is in front
  std::uint64_t first_ = 0;          // see show_first()
  std::uint64_t shown_ = 0;          // highest `latest` so far
  bool has_shown_complete_ = false;
  Eviction::Reservation latest_;  // of the last catalog's `latest`
  std::map<std::string, std::uint64_t> tags_;
  std::uint64_t expected_ = 0;  // 1..expected_ were read, or are in unread_
  std::set<std::uint64_t> unread_;
  std::map<std::uint64_t, Unreadable> unreadable_;
  std::uint64_t newest_read_ = 0;
  std::int64_t newest_time_ = 0;
};

}  // namespace weightfs
