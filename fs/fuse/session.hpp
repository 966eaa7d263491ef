// FuseSession: one FUSE connection and the threads that serve it.  Only this module, the operations
// (operations, file_operations, staging_operations), reply and passthrough use libfuse.
//
// The session reads INIT itself and passes it to libfuse through custom_io.  Its loop waits on the
// connection and on a stop signal.  So it can end at any time, and a future supervisor can hold the
// connection for it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fs/fuse/request_counts.hpp"
#include "fs/fuse/session_options.hpp"
#include "fs/fuse/tree.hpp"
#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

/// The version of the loaded library: "3.14.0".
std::string libfuse_version();

/// How files are served, for status.
struct ServingState {
  std::string mode;  // "passthrough" | "bind" | "daemon"
  std::string why;   // why not passthrough; "" with passthrough or "--serve daemon"
  std::vector<std::uint64_t> bound = {};  // bind-mounted versions, ascending
  std::uint64_t open_passthrough = 0, open_daemon = 0;
  std::uint64_t daemon_reads = 0;  // READ requests answered
  std::size_t waiting_reads = 0;   // not yet answered: they wait for bytes
  std::uint64_t served_bytes = 0;  // by READ requests
  std::vector<RequestCount> requests = {};
};

class FuseSession {
 public:
  /// Mounts, answers INIT, tries passthrough.  Requires: `tree` outlives the session.
  /// Throws Error: permission (with what is missing), busy, unsupported (--serve passthrough or
  /// bind, which is not available), io.
  FuseSession(const Tree& tree, FuseSessionOptions options);
  /// Stops, waits until run() has returned, and unmounts: lazily if busy, and only its own mount.
  ~FuseSession();

  /// Serves until the file system is unmounted or stop() is called.  May be called once.
  void run();

  /// Ends run(); may be called from any thread and more than once.
  void stop() noexcept;

  /// Without `bound`, which the session does not know.
  [[nodiscard]] ServingState serving() const;

  /// Whether complete versions should be bind-mounted over this session's mount
  /// (fs/daemon/bound_versions.hpp); the caller does that.
  [[nodiscard]] bool wants_binds() const noexcept;

  /// The mount as /proc/self/mountinfo shows it; nullopt if it does not.
  [[nodiscard]] const std::optional<MountInfo>& mount() const noexcept;

  /// st_dev of the mount.
  [[nodiscard]] dev_t device() const;

  /// True if no file of the version is open through this mount.
  [[nodiscard]] bool is_unused(std::uint64_t version) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
