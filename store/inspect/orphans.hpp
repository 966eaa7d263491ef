// Orphans: objects in packs/, snapshots/, blobs/ and layouts/ that no version names.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/repository/repository.hpp"
#include "store/repository/version_ranges.hpp"

namespace weightfs {

/// Objects below one prefix that no version names. They may be left over from an interrupted
/// publish, or belong to one in progress: the two cannot be told apart.
struct Orphans {
  std::string prefix;  // "packs/7/", "snapshots/1/", "blobs/", "layouts/"
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

class OrphanFinder {
 public:
  /// Notes what a version names; nullptr: its manifest cannot be read, so that is unknown.
  void note(std::uint64_t number, const Version* version);

  /// What these versions name is unknown, too.
  void note_unknown(VersionRanges::Range versions) { unknown_.add(versions); }

  /// Requires: every version was noted.  Of what a version names that cannot be read, nothing is an
  /// orphan; nor is what `retired` holds.  Ascending; empty where the key may not LIST.
  /// Throws Error: what the bucket throws.
  [[nodiscard]] std::vector<Orphans> find(Repository& repository,
                                          const std::set<std::string, std::less<>>& retired,
                                          const Context& context) const;

 private:
  [[nodiscard]] bool is_named(const std::string& key) const;
  [[nodiscard]] bool is_of_unknown_version(std::string_view key) const;
  void find_below(std::string_view prefix, int components, Bucket& bucket,
                  const std::set<std::string, std::less<>>& retired, const Context& context,
                  std::vector<Orphans>& into) const;

  std::set<std::string> named_;  // keys, and directories of snapshots
  VersionRanges unknown_;        // versions whose manifest cannot be read
};

}  // namespace weightfs
