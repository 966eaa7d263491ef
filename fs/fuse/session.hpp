// FuseSession: one FUSE connection and the threads that serve it.  Home of libfuse, together with
// the operations (operations, file_operations, staging_operations), reply and passthrough.
//
// The session reads INIT itself and hands it to libfuse through custom_io, and its loop waits on
// the connection and on a stop signal, so it can end at any time, and a later supervisor can hold
// the connection for it.
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

#include "fs/fuse/session_options.hpp"
#include "fs/fuse/tree.hpp"
#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

/// Of the library that is loaded: "3.14.0".
std::string libfuse_version();

/// How files are served: for status.
struct ServingState {
  std::string mode;  // "passthrough" | "bind" | "daemon"
  std::string why;   // why not passthrough, in words; "" if it is, or "--serve daemon"
  std::vector<std::uint64_t> bound = {};  // versions that are bind-mounted, ascending
  std::uint64_t open_passthrough = 0, open_daemon = 0;
  std::uint64_t daemon_reads = 0;  // READ requests answered
  std::size_t waiting_reads = 0;   // others, for bytes that are not here yet
};

class FuseSession {
 public:
  /// Mounts, answers INIT, tries passthrough.  The tree must outlive the session.
  /// Throws Error: permission (with what is missing), busy, unsupported (--serve passthrough or
  /// bind, and not to be had), io.
  FuseSession(const Tree& tree, FuseSessionOptions options);
  /// Stops, waits for run() where it is still running, and unmounts: lazily if busy, and only what
  /// this session has mounted.
  ~FuseSession();

  /// Serves until the file system is unmounted or stop() is called.  Once for each session.
  void run();

  /// Ends run(); may be called from any thread and more than once.
  void stop() noexcept;

  /// Without `bound`, which others know.
  [[nodiscard]] ServingState serving() const;

  /// True if complete versions are to be bind-mounted over what this session shows
  /// (fs/daemon/bound_versions.hpp); it is the caller who does so.
  [[nodiscard]] bool wants_binds() const noexcept;

  /// What is mounted, as /proc/self/mountinfo shows it; nullopt if it does not.
  [[nodiscard]] const std::optional<MountInfo>& mount() const noexcept;

  /// st_dev of what is mounted.
  [[nodiscard]] dev_t device() const;

  /// True if nobody has a file of the version open through this mount.
  [[nodiscard]] bool is_unused(std::uint64_t version) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
