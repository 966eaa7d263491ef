// Session mount: the mount of one session, from its creation to its end.
//
//     detached --INIT is answered--> attach() --> attached --> unmounted
//
// A dead mount at the path is replaced: the new one is put beneath it, and the dead one is
// unmounted (Linux 6.5).  On older kernels the new one lies on top, and both are unmounted at the
// end.  Either way the directory below is never reachable: what a trainer wrote there would be lost
// from sight.
//
// Threads: one thread at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

class SessionMount {
 public:
  /// See make_mount().  `path`: see prepare_mount_point().
  SessionMount(std::filesystem::path path, const std::string& source, Access access);
  /// Unmounts its mount, lazily if that is busy; never another mount that was put on top.
  ~SessionMount();
  SessionMount(const SessionMount&) = delete;
  SessionMount& operator=(const SessionMount&) = delete;

  /// Attaches the mount.  May be called once.
  /// Throws Error: see attach_mount().
  void attach(Replacing how = Replacing::beneath);

  [[nodiscard]] int fd() const noexcept { return made_.connection.fd(); }

  /// The attached mount as /proc/self/mountinfo shows it; nullopt if it does not, or not attached
  /// yet.
  [[nodiscard]] const std::optional<MountInfo>& info() const noexcept { return info_; }

 private:
  void end() const;

  std::filesystem::path path_;
  bool lies_on_dead_;
  NewMount made_;
  std::optional<MountInfo> info_;
};

}  // namespace weightfs::fs
