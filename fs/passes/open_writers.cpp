#include "fs/passes/open_writers.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "fs/base/process_files.hpp"

namespace weightfs::fs {
namespace {

bool writes_to(const ProcessFiles::Open& file) {
  return (file.flags & O_ACCMODE) != O_RDONLY && (file.flags & O_PATH) == 0;
}

// An inode that the process can still write to; 0: none.
Inode find_written(ProcessFiles& process) {
  if (const auto open = process.find_open(writes_to)) return open->inode;
  const auto mapped = process.find_mapped([&](const ProcessFiles::Mapped& file) {
    return (file.is_shared && file.is_writable) || process.was_writable(file);
  });
  return mapped ? mapped->inode : 0;
}

}  // namespace

std::vector<Holder> find_writers(dev_t device, const std::vector<Inode>& inodes) {
  const std::set<Inode> wanted(inodes.begin(), inodes.end());
  std::vector<Holder> holders;
  for_each_process("/proc", [&](pid_t pid) {
    if (pid == getpid()) return;
    ProcessFiles process("/proc", pid, device, [&](Inode inode) { return wanted.contains(inode); });
    if (const Inode held = find_written(process); held != 0) {
      holders.push_back({pid, process.command(), held});
    }
  });
  std::sort(holders.begin(), holders.end(),
            [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
  return holders;
}

}  // namespace weightfs::fs
