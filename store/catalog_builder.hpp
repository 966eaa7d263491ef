// Catalog builder: makes the catalog from the store's records, and collects the tags.
//
// The catalog follows from the records alone, so whatever happened before, the next one is right:
//
//     versions    complete, not above Store::newest(), not hidden
//     latest      the highest of them; never below one that was `latest` before
//     tags        of every manifest that was read, the newest version of each
//
// Threads: one thread at a time; what make() returns is immutable.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "store/catalog.hpp"
#include "store/context.hpp"
#include "store/history.hpp"

namespace weightfs {

class CatalogBuilder {
 public:
  /// Keeps both references.  Reads the tags of the manifests that the store has.
  CatalogBuilder(Store& store, History& history);

  /// A version whose manifest or layout is not in the store's records is left out if `bucket` is
  /// nullptr, else fetched.
  std::shared_ptr<const Catalog> make(const Context* bucket);

  /// Leaves a version out, until show_all().
  void hide(std::uint64_t version) { hidden_.insert(version); }
  void show(std::uint64_t version) { hidden_.erase(version); }
  void show_all() { hidden_.clear(); }

  /// Takes the tag of a version that was read already.
  void note(const Version& version);
  [[nodiscard]] std::int64_t newest_time() const noexcept { return newest_time_; }

  /// Reads manifests that were not read yet, newest first, until all were or `until` has passed.
  /// One that cannot be read is left for later; an error of the bucket ends the call. Returns:
  /// whether make() would give another catalog now.
  bool read_tags(std::uint64_t newest, const Context& context, Clock::time_point until);

 private:
  std::shared_ptr<const CatalogVersion> describe(std::uint64_t number, const Context* bucket);
  std::shared_ptr<const CatalogVersion> describe_now(std::uint64_t number, const Context* bucket);
  void read_stored_tags();
  bool read_tag(std::uint64_t number, const Context& context);
  void take_tag(const Manifest& manifest);
  void expect_up_to(std::uint64_t newest);

  Store& store_;
  History& history_;
  std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>> described_;  // complete ones
  std::set<std::uint64_t> hidden_;
  std::uint64_t shown_ = 0;  // highest `latest` so far
  std::map<std::string, std::uint64_t> tags_;
  std::uint64_t expected_ = 0;  // 1..expected_ were read, or are in unread_
  std::set<std::uint64_t> unread_;
  std::map<std::uint64_t, Clock::time_point> unreadable_;  // not to be tried before
  std::uint64_t newest_read_ = 0;
  std::int64_t newest_time_ = 0;
};

}  // namespace weightfs
