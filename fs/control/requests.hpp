// Control requests: what can be asked of a daemon at its control socket, and its answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fs/passes/unpin_request.hpp"
#include "store/handover/publish_queue.hpp"

namespace weightfs::fs {

/// Exactly one is given; with `ready` a version, or nothing else: what `latest` is.
struct WaitFor {
  std::optional<std::string> tag = {};
  std::optional<std::uint64_t> version = {};
  std::optional<std::uint64_t> newer_than = {};
  std::optional<std::uint64_t> order = {};  // of a hand-over: for `publish`
  bool ready = false;                       // until all of its images are here
};

/// The end of a wait.
struct WaitEnd {
  enum class How {
    here,        // the bucket has it, and versions/N opens
    gone,        // its image is not here and will not come
    failed,      // the hand-over that was meant cannot be published; an image cannot be made
    damaged,     // an image cannot be made: an object of the bucket is not what it should be
    taken_back,  // or was taken back, or removed
    conflict     // another writer published first
  };
  How how{};
  std::uint64_t version = 0;  // of `here` and `gone`
  std::string message;        // not `here`: why
  std::string left;           // see HandOverEnd
};

struct HandOverRequest {
  std::string path;  // of the directory, below staging/
  std::string name;  // in publish/; empty: one is made up, and there is no tag
  HandOverOptions options;
};

/// After a conflict: see PublishQueue::rebase.
struct RebaseRequest {};

/// Keeps the images of a version.
struct PinRequest {
  std::uint64_t version = 0;  // 0: what `latest` is
};

}  // namespace weightfs::fs
