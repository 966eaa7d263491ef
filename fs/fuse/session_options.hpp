// FuseSessionOptions: what a session serves beside the tree, and how.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "fs/passes/loader_pins.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/inspect/delta_files.hpp"
#include "store/materialize/remote_files.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

enum class Serve { automatic, passthrough, bind, daemon };

/// How files are served.
struct ServeOptions {
  Serve how = Serve::automatic;  // passthrough, bind: an error if it is not available
  /// For what must come from the bucket before a call can be answered: then EIO.
  std::chrono::milliseconds read_timeout{60'000};
};

/// What a writer's mount has beside a reader's; nullptrs on a reader's.  They outlive the session.
struct Writing {
  Staging* staging = nullptr;
  PublishQueue* queue = nullptr;
};

struct FuseSessionOptions {
  std::filesystem::path mount_point;  // canonical
  std::string source;                 // URL without secrets, as /proc/mounts shows it
  Serve serve = ServeOptions{}.how;
  std::filesystem::path store;          // where images lie: passthrough is tried there
  std::function<std::string()> status;  // text of .weightfs/status
  Writing writing = {};
  LoaderPins* pins = nullptr;    // outlive the session; nullptr: `latest` is the same for everybody
  DeltaFiles* deltas = nullptr;  // outlives the session; nullptr: the tree has no /deltas
  std::function<std::string()> advice = [] { return std::string(); };  // of .weightfs/advice
  Sync* sync = nullptr;         // the same, with SyncOptions::partial; nullptr: nothing is fetched
  RemoteFiles* rest = nullptr;  // outlives the session; nullptr: all files are kept
  std::chrono::milliseconds read_timeout = ServeOptions{}.read_timeout;
};

}  // namespace weightfs::fs
