// FuseSessionOptions: what a session serves in addition to the tree, and how.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "fs/passes/loader_pins.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/inspect/delta_files.hpp"
#include "store/streaming/remote_files.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

enum class Serve { automatic, passthrough, bind, daemon };

/// How files are served.
struct ServeOptions {
  Serve how = Serve::automatic;  // passthrough, bind: an error if it is not available
  /// The limit for data that a call needs from the bucket; after it the call fails with EIO.
  std::chrono::milliseconds read_timeout{60'000};
};

/// The parts of a writer's mount; nullptr on a reader's.  They outlive the session.
struct Writing {
  Staging* staging = nullptr;
  PublishQueue* queue = nullptr;
};

struct FuseSessionOptions {
  std::filesystem::path mount_point;  // canonical
  std::string source;                 // URL without secrets, as /proc/mounts shows it
  Serve serve = ServeOptions{}.how;
  std::filesystem::path store;          // has the images: passthrough is tested there
  std::function<std::string()> status;  // the text of .weightfs/status
  Writing writing = {};
  LoaderPins* pins = nullptr;    // outlives the session; nullptr: `latest` is the same for all
  DeltaFiles* deltas = nullptr;  // outlives the session; nullptr: the tree has no /deltas
  std::function<std::string()> advice = [] { return std::string(); };  // the text of
                                                                       // .weightfs/advice
  std::function<std::string()> health = [] { return std::string(); };  // of .weightfs/health
  Sync* sync = nullptr;  // as above, with SyncOptions::partial; nullptr: nothing is fetched
  RemoteFiles* remote_files = nullptr;  // outlives the session; nullptr: all files are kept
  std::chrono::milliseconds read_timeout = ServeOptions{}.read_timeout;
  bool may_bind = true;  // false: some images are in memory, where no other process finds them
};

}  // namespace weightfs::fs
