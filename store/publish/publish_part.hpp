// Publish part: publishes the files of one host as a part of a version that several make together
// (store/parts).
//
//     parent    as publish()
//     scan      the part's files; an index may name files of other parts
//     look      is the version there already, or this part?  Then its bytes must be those
//     code      against the parent, if the part's files have its tensors; else a snapshot
//     claim     of a snapshot: before its first file is uploaded, unless the version exists by now
//     upload    packs or files, blobs, the part's layout and hashes
//     record    by put-if-absent: from here on the part is published
//     wait      until the version exists.  Whoever finds all records makes it: union, manifest
//
// Only what all hosts know alike decides whether there is a snapshot: wishes, the version's number,
// and the history before it.
//
// If it is killed at any point, the same call goes on.  What it uploads is never removed, since
// another process of the same host may have recorded it: what no manifest names is garbage once the
// version exists.
//
// Threads: as publish().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/parts/part_set.hpp"
#include "store/publish/publish.hpp"

namespace weightfs {

struct PartResult {
  std::uint64_t version = 0;  // exists, or is the one that the part waits for
  std::uint64_t parent = 0;
  std::vector<unsigned> missing;  // parts that have not come; empty: the version exists
  bool is_committed_here = false;
  std::uint64_t changed_elements = 0, elements = 0;  // of this part
  std::uint64_t part_bytes = 0;                      // of its published files
  std::uint64_t uploaded_bytes = 0;                  // 0: it was published before
  bool snapshot = false, delta = false;
  std::vector<std::string> unpublished;
};

/// The number was taken by another writer, or the fence does not hold.  Nothing was committed.
class NumberTaken : public Error {
 public:
  using Error::Error;
};

/// The others did not come in time.
class PartsMissing : public Error {
 public:
  using Error::Error;
};

/// Calls `options.committing` right before the part's record is written, or was found: from there
/// on the version may come to exist, whoever commits it.  Calls `options.waiting` also with no
/// parts, once all that were missing have come.
///
/// Points for PublishOptions::at: "scanned", "parent", "diffed", "claimed", "pack", "part-objects",
/// "part", "waiting", "complete", "united", "before-commit", "committed", "removed".
///
/// Requires: options.part is one.
/// Throws Error: as publish(); also invalid (no token, no tag, parts that make no version),
/// conflict (the part exists with other bytes, or without the snapshot that is wished for).  Throws
/// PartsMissing: timed_out (other parts did not come within part_wait: names them; this one stays).
/// Throws NumberTaken: conflict.  Throws CommitUnknown.
PartResult publish_part(History& history, Store& store, const PublishOptions& options,
                        const Context& context, const Progress& progress);

/// The version after `after` that was made of these parts; nullopt if there is none up to the
/// newest.  Reads the manifests one after another.  Throws Error: as History::find.
std::optional<std::uint64_t> find_part_version(History& history, std::uint64_t after,
                                               const PartChoice& part, std::string_view tag,
                                               const Context& context);

}  // namespace weightfs
