// Follow: what `latest` means on a host: the newest version, the newest that carries a tag, or one
// version and no other.
//
//     latest     the newest complete version
//     a number   that version: the host stays there, whatever is published
//     a tag      the newest complete version that carries it; moves when another one gets the tag
//
// Only what is followed is brought into the store.  What is followed may not exist yet: there is no
// `latest` then, as in an empty repository.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "store/sync/catalog.hpp"

namespace weightfs {

struct Follow {
  enum class Kind { latest, version, tag };
  Kind kind = Kind::latest;
  std::uint64_t version = 0;  // of Kind::version
  std::string tag = {};       // of Kind::tag

  friend bool operator==(const Follow&, const Follow&) = default;
};

/// How a host follows a repository.
struct FollowOptions {
  std::chrono::milliseconds poll{1000};  // between two looks at the bucket
  Follow what = {};
};

/// "latest", digits (a version, also if a tag has that name), else a tag.
/// Throws Error: invalid, saying why the text is none of them.
Follow parse_follow(std::string_view text);

/// What parse_follow() takes.
std::string to_string(const Follow& follow);

/// "the newest version", "version 5", "the tag canary".
std::string describe(const Follow& follow);

/// The version that the host is to have, by what the bucket has; 0: there is none yet.
///
/// `newest`: the newest version there is.  `carrier`: the newest that carries the tag, 0 if none
/// does; only asked for by Kind::tag.
std::uint64_t version_to_bring(const Follow& follow, std::uint64_t newest, std::uint64_t carrier);

/// What `latest` is, among complete versions; 0 if none of them is followed.  By the tags of these
/// versions alone: a tag that moved to a version that is not here yet leaves `latest` where it is.
std::uint64_t choose_latest(
    const Follow& follow,
    const std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>>& versions);

}  // namespace weightfs
