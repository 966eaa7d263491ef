// Process files: which files of one device a process has open or mapped, according to /proc.
//
// It reads only fdinfo, maps, map_files and mountinfo, and never follows a link into a mount: a
// daemon that looks at its own mount would wait for itself.  It does not see the descriptors of a
// thread that has its own descriptor table, descriptors in flight in a socket, and descriptors of a
// mount that the process's mount namespace does not have.
//
// Threads: one thread at a time for each object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "fs/base/inode.hpp"

namespace weightfs::fs {

/// Calls each(pid) for every process that /proc lists.
void for_each_process(const std::filesystem::path& proc, const std::function<void(pid_t)>& each);

class ProcessFiles {
 public:
  /// `device`: st_dev of the mount.  `wanted`: whether an inode is of interest.
  ProcessFiles(const std::filesystem::path& proc, pid_t pid, dev_t device,
               std::function<bool(Inode)> wanted);

  struct Open {
    Inode inode = 0;
    unsigned flags = 0;  // open(2)'s
  };
  struct Mapped {
    Inode inode = 0;
    bool is_shared = false;
    bool is_writable = false;  // the mapping itself
    std::string range;         // as maps writes it
  };

  /// The first descriptor, or mapping, that meets the condition.
  std::optional<Open> find_open(const std::function<bool(const Open&)>& condition);
  [[nodiscard]] std::optional<Mapped> find_mapped(
      const std::function<bool(const Mapped&)>& condition) const;

  /// True if the mapped descriptor was open for writing.
  [[nodiscard]] bool was_writable(const Mapped& mapped) const;

  [[nodiscard]] std::string command() const;

 private:
  bool is_ours(std::uint64_t mount);
  [[nodiscard]] std::set<std::uint64_t> read_mounts_of_device() const;

  const std::filesystem::path path_;
  const dev_t device_;
  const std::function<bool(Inode)> wanted_;
  std::optional<std::set<std::uint64_t>> mounts_;  // mount ids of the device; read on first use
};

}  // namespace weightfs::fs
