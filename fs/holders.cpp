// A descriptor shows its flags, inode and mount in fdinfo; mountinfo of the same process says which
// device that mount is of.  A mapping shows device and inode in maps (with passthrough too, those
// of the mount's file, not of the backing one), and the mode of its link in map_files says how its
// descriptor was opened: a private mapping of a writable descriptor is seen only there.
#include "fs/holders.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

// Calls each(path) for what a directory of /proc holds; a process may end meanwhile.
template <typename Each>
void for_each_item(const stdfs::path& directory, Each&& each) {
  std::error_code failed;
  for (stdfs::directory_iterator item(directory, failed), end; !failed && item != end;
       item.increment(failed)) {
    each(item->path());
  }
}

std::optional<pid_t> pid_of(const stdfs::path& process) {
  const std::string name = process.filename();
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return pid;
}

struct Descriptor {
  unsigned flags = 0;
  std::uint64_t mount = 0;
  Inode inode = 0;
};

Descriptor read_descriptor(const stdfs::path& fdinfo) {
  Descriptor found;
  std::ifstream file(fdinfo);
  for (std::string field; file >> field;) {
    if (field == "flags:") file >> std::oct >> found.flags >> std::dec;
    if (field == "mnt_id:") file >> found.mount;
    if (field == "ino:" && file >> found.inode) break;
  }
  return found;
}

bool is_writable(unsigned flags) {
  return (flags & O_ACCMODE) != O_RDONLY && (flags & O_PATH) == 0;
}

// The look at one process.
class Process {
 public:
  Process(stdfs::path path, dev_t device, const std::set<Inode>& inodes)
      : path_(std::move(path)), device_(device), inodes_(inodes) {}

  // One of the inodes that it holds; 0: none.
  Inode find_held() {
    const Inode open = find_open();
    return open != 0 ? open : find_mapped();
  }

  std::string command() const {
    std::string name;
    std::getline(std::ifstream(path_ / "comm"), name);
    return name;
  }

 private:
  Inode find_open() {
    Inode held = 0;
    for_each_item(path_ / "fdinfo", [&](const stdfs::path& item) {
      if (held != 0) return;
      const Descriptor found = read_descriptor(item);
      if (!is_writable(found.flags) || !inodes_.contains(found.inode)) return;
      if (is_ours(found.mount)) held = found.inode;
    });
    return held;
  }

  Inode find_mapped() const {
    std::ifstream maps(path_ / "maps");
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields(line);
      std::string range, permissions, offset, device;
      Inode inode = 0;
      fields >> range >> permissions >> offset >> device >> inode;
      if (!fields || !inodes_.contains(inode) || device != device_text()) continue;
      const bool is_shared = permissions.size() == 4 && permissions[3] == 's';
      if ((is_shared && permissions[1] == 'w') || was_writable(range)) return inode;
    }
    return 0;
  }

  // As maps writes it.
  std::string device_text() const {
    return fmt::format("{:02x}:{:02x}", major(device_), minor(device_));
  }

  // True if the descriptor that was mapped was open for writing.
  bool was_writable(const std::string& range) const {
    struct stat link {};
    const stdfs::path path = path_ / "map_files" / without_zeros(range);
    return lstat(path.c_str(), &link) == 0 && (link.st_mode & S_IWUSR) != 0;
  }

  // maps fills its numbers up to eight digits, map_files does not.
  static std::string without_zeros(const std::string& range) {
    unsigned long long from = 0, to = 0;
    char dash = 0;
    std::istringstream(range) >> std::hex >> from >> dash >> to;
    return fmt::format("{:x}-{:x}", from, to);
  }

  bool is_ours(std::uint64_t mount) {
    if (!mounts_) mounts_ = read_mounts_of_device();
    return mounts_->contains(mount);
  }

  std::set<std::uint64_t> read_mounts_of_device() const {
    const std::string device = fmt::format("{}:{}", major(device_), minor(device_));
    std::set<std::uint64_t> mounts;
    std::ifstream file(path_ / "mountinfo");
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::uint64_t id = 0, parent = 0;
      std::string of_device;
      if (fields >> id >> parent >> of_device && of_device == device) mounts.insert(id);
    }
    return mounts;
  }

  const stdfs::path path_;
  const dev_t device_;
  const std::set<Inode>& inodes_;
  std::optional<std::set<std::uint64_t>> mounts_;  // ids, of the device; read when first needed
};

}  // namespace

std::vector<Holder> find_writers(dev_t device, const std::vector<Inode>& inodes) {
  const std::set<Inode> wanted(inodes.begin(), inodes.end());
  std::vector<Holder> holders;
  for_each_item("/proc", [&](const stdfs::path& path) {
    const auto pid = pid_of(path);
    if (!pid || *pid == getpid()) return;
    Process process(path, device, wanted);
    if (const Inode held = process.find_held(); held != 0) {
      holders.push_back({*pid, process.command(), held});
    }
  });
  std::sort(holders.begin(), holders.end(),
            [](const Holder& a, const Holder& b) { return a.pid < b.pid; });
  return holders;
}

}  // namespace weightfs::fs
