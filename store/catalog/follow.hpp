// Follow: what `latest` means on a host: the newest version, the newest that carries a tag, or one
// fixed version.
//
//     latest     the newest complete version
//     a number   that version: the host stays there, whatever is published
//     a tag      the newest complete version that carries it; moves when another one gets the tag
//
// Only versions that are followed are brought into the store.  The followed version may not exist
// yet: then there is no `latest`, as in an empty repository.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "store/catalog/catalog.hpp"

namespace weightfs {

struct Follow {
  enum class Kind { latest, version, tag };
  Kind kind = Kind::latest;
  std::uint64_t version = 0;  // of Kind::version
  std::string tag = {};       // of Kind::tag

  friend bool operator==(const Follow&, const Follow&) = default;
};

/// When the bucket is polled.
struct Poll {
  std::chrono::milliseconds interval{1000};
  bool learns = true;  // the run's rhythm, for denser polls around the next version: PollRhythm
  /// While nothing new comes, how often it is checked that the bucket still is the same one.
  std::chrono::milliseconds check_interval{60'000};
  /// A poll that lasts longer counts as one without an answer, though it has not ended.
  std::chrono::milliseconds patience{30'000};
};

/// How a host follows a repository.
struct FollowOptions {
  Poll poll = {};
  Follow what = {};
};

/// Parses "latest", digits (a version, even if a tag has that name), or else a tag.
/// Throws Error: invalid, naming the problem.
Follow parse_follow(std::string_view text);

/// The text that parse_follow() accepts.
std::string to_string(const Follow& follow);

/// "the newest version", "version 5", "the tag canary".
std::string describe(const Follow& follow);

/// The version that the host should have, given what is in the bucket; 0: none yet.
///
/// `newest`: the newest existing version.  `carrier`: the newest that carries the tag, 0 if none
/// does; only used by Kind::tag.
std::uint64_t version_to_bring(const Follow& follow, std::uint64_t newest, std::uint64_t carrier);

/// Which of the complete versions is `latest`; 0 if none of them is followed.  Uses the tags of
/// these versions only: if a tag moved to a version that is not here yet, `latest` stays.
std::uint64_t choose_latest(
    const Follow& follow,
    const std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>>& versions);

}  // namespace weightfs
