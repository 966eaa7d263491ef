// Session mount: the mount of one session, from its making to its end.
//
//     made, nowhere yet --INIT is answered--> attach() --> in its place --> unmounted
//
// A dead mount that is in its place is replaced: the new one is put beneath it, and the dead one
// goes (Linux 6.5).  Where the kernel does not do that, the new one lies on top, and both go at the
// end.  Either way nobody can reach the directory below, in which a trainer would make what nobody
// ever sees.
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
  /// Unmounts what it has mounted, lazily if that is busy, and not another mount that was put over
  /// it.
  ~SessionMount();
  SessionMount(const SessionMount&) = delete;
  SessionMount& operator=(const SessionMount&) = delete;

  /// Puts it in its place.  Once.  Throws Error: see attach_mount().
  void attach(Replacing how = Replacing::beneath);

  [[nodiscard]] int fd() const noexcept { return made_.connection.fd(); }

  /// Once it is attached: as /proc/self/mountinfo shows it; nullopt if it does not.
  [[nodiscard]] const std::optional<MountInfo>& info() const noexcept { return info_; }

 private:
  void end() const;

  std::filesystem::path path_;
  bool lies_on_dead_;
  NewMount made_;
  std::optional<MountInfo> info_;
};

}  // namespace weightfs::fs
