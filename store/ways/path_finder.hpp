// PathFinder: the cheapest way from what this host and the bucket have to a version.
//
// The search is on values (store/ways/way_map.hpp).  It begins with what the wanted
// version's manifest says and what is here, and guesses the rest: a delta costs what those known
// cost.  What lies on the way that it finds is fetched, in parallel, and the search repeated with
// what that says, until all of the way is known.  So only manifests of versions on a way are ever
// read:
//
//     wanted, and the snapshot or base that is nearest     a way by deltas alone
//     more than kDeltasWithoutSkips deltas?                one LIST: which skip deltas are there
//     no way is left?                                      the log of gc: which skips it needs
//     manifests and records on that way                    in parallel; again if that is dearer
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/skip_record.hpp"
#include "store/repository/repository.hpp"
#include "store/ways/skip_book.hpp"
#include "store/ways/version_source.hpp"
#include "store/ways/way_map.hpp"

namespace weightfs {

/// A way of no more deltas is taken without a look for skips: it costs fewer requests than that.
inline constexpr std::size_t kDeltasWithoutSkips = 4;
/// Skips to versions further back are not looked for, so that LIST stays a few pages.
inline constexpr std::uint64_t kSkipsListedBack = 2048;

/// A delta or a skip delta on a way.
struct FoundHop {
  VersionPair versions;
  std::shared_ptr<const SkipRecord> skip = nullptr;  // nullptr: the delta of versions.to
};

/// A version to start from, the hops from there, and what they cost.
struct FoundWay {
  std::shared_ptr<const Version> start;
  bool is_here = false;             // false: it starts from the version's snapshot
  std::vector<FoundHop> hops = {};  // oldest first; empty: the start is the wanted version
  std::uint64_t fetch_bytes = 0;
};

class PathFinder {
 public:
  /// `here`: versions that cost nothing, as this host has them.  Keeps the references.
  PathFinder(VersionSource& source, SkipBook& skips, std::shared_ptr<const Version> wanted,
             std::span<const std::shared_ptr<const Version>> here, const Context& context);

  /// The cheapest of the ways that are left.
  /// Throws Error: corrupt, not_found, unsupported (there is none; the message names what is in the
  /// way, if that is known; NeededSkipDamaged if it is a skip that gc left instead of deltas);
  /// unavailable, cancelled, timed_out.
  FoundWay find();

  /// Does without the start of a way.
  void leave_out_start(const FoundWay& way);
  /// A skip: after it was left out of SkipBook, with the reason.
  void leave_out(const FoundHop& hop);
  /// Does without all skips from now on but those that the log of gc needs: where it removed the
  /// deltas, nothing else leads to a version.  It is read once no way is left.
  void leave_out_skips();

  /// What is wrong with a skip that the log of gc needs, if that is why there is no way; nullopt
  /// until it was read.
  [[nodiscard]] const std::optional<NeededSkipDamaged>& damaged_need() const noexcept {
    return damaged_need_;
  }

 private:
  void note(const Version& version);
  void note_snapshot(std::uint64_t version);
  void note_unreadable(std::uint64_t version, const std::exception_ptr& error);
  bool look_back();
  void list_skips();
  void read_log();
  void note_damage(const VersionPair& versions);
  bool fetch_missing(const Way& way);
  void fetch(std::span<const std::uint64_t> versions, std::span<const VersionPair> skips);
  void take_record(const VersionPair& versions, std::shared_ptr<const SkipRecord> record);
  bool price_start(const Way& way);
  WayCost guess_snapshots();
  bool check_hops(const Way& way);
  bool check_delta(const VersionPair& versions, const Way& way);
  bool check_record(const VersionPair& versions);
  FoundWay found(const Way& way);
  [[noreturn]] void throw_no_way();
  [[nodiscard]] bool is_here(std::uint64_t version) const { return here_.contains(version); }
  std::shared_ptr<const Version> get(std::uint64_t version);

  VersionSource& source_;
  SkipBook& skips_;
  const std::shared_ptr<const Version> wanted_;
  std::map<std::uint64_t, std::shared_ptr<const Version>> here_;
  const Context& context_;

  WayMap map_;
  std::set<std::uint64_t> read_;        // versions whose manifest was read, or cannot be
  std::set<std::uint64_t> unreadable_;  // of these
  std::set<std::uint64_t> unstarted_;   // not to begin at
  std::set<std::uint64_t> priced_;      // snapshots whose layout was read
  std::map<VersionPair, std::shared_ptr<const SkipRecord>> records_;
  std::set<VersionPair> needed_;                   // skips, by the log
  std::optional<NeededSkipDamaged> damaged_need_;  // of the first of these that is of no use
  bool uses_skips_ = true, has_listed_ = false, has_read_log_ = false;
  std::uint64_t back_;  // snapshots from here on are known
  std::size_t looks_back_ = 0;
  WayCost known_deltas_;  // sum
  std::uint64_t known_delta_count_ = 0;
  std::optional<WayCost> snapshot_cost_;  // a guess
  std::exception_ptr first_error_;        // of a manifest or layout
};

}  // namespace weightfs
