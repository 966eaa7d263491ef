// Control requests: requests to a daemon at its control socket, and its replies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fs/passes/unpin_request.hpp"
#include "store/base/version_pair.hpp"
#include "store/handover/publish_queue.hpp"

namespace weightfs::fs {

/// Exactly one condition is given.  With `ready`: a version, or none, meaning the one that `latest`
/// shows.
struct WaitFor {
  std::optional<std::string> tag = {};
  std::optional<std::uint64_t> version = {};
  std::optional<std::uint64_t> newer_than = {};
  std::optional<std::uint64_t> order = {};  // a hand-over's: for `publish`
  bool ready = false;                       // until all of its images are here
};

/// The outcome of a wait.
struct WaitEnd {
  enum class How {
    here,        // the bucket has it, and versions/N can be opened
    gone,        // its image is not here and will not arrive
    failed,      // the hand-over cannot be published, or an image cannot be made
    damaged,     // an image cannot be made: an object in the bucket is corrupt
    taken_back,  // the hand-over was taken back, or removed
    conflict     // another writer published first
  };
  How how{};
  std::uint64_t version = 0;  // for `here` and `gone`
  std::string message;        // the reason, unless `here`
  std::string left;           // see HandOverEnd
};

struct HandOverRequest {
  std::string path;  // the directory, below staging/
  std::string name;  // in publish/; empty: a generated name, and no tag
  HandOverOptions options;
};

/// After a conflict: see PublishQueue::rebase.
struct RebaseRequest {};

/// Keeps a version's images.
struct PinRequest {
  std::uint64_t version = 0;  // 0: the one that `latest` shows
};

/// Compares two versions by the patches of the daemon's store (store/inspect/patch_diff.hpp).
struct DiffRequest {
  VersionPair versions;
  std::uint32_t first = 0;  // the tensor that the page begins with
};

}  // namespace weightfs::fs
