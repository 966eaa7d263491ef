// fdinfo shows a descriptor's flags, inode and mount; mountinfo of the same process shows the
// device of that mount. maps shows the device and inode of a mapping (with passthrough too: those
// of the mount's file, not of the backing file).  The mode of the mapping's link in map_files shows
// how its descriptor was opened: nothing else reveals a private mapping of a writable descriptor.
#include "fs/base/process_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

// Calls each(path) for every entry of a directory of /proc; the process may end meanwhile.
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
  ProcessFiles::Open open;
  std::uint64_t mount = 0;
};

Descriptor read_descriptor(const stdfs::path& fdinfo) {
  Descriptor found;
  std::ifstream file(fdinfo);
  for (std::string field; file >> field;) {
    if (field == "flags:") file >> std::oct >> found.open.flags >> std::dec;
    if (field == "mnt_id:") file >> found.mount;
    if (field == "ino:" && file >> found.open.inode) break;
  }
  return found;
}

// The device as maps writes it.
std::string device_text(dev_t device) {
  return fmt::format("{:02x}:{:02x}", major(device), minor(device));
}

// maps pads its numbers to eight digits, map_files does not.
std::string without_zeros(const std::string& range) {
  unsigned long long from = 0, to = 0;
  char dash = 0;
  std::istringstream(range) >> std::hex >> from >> dash >> to;
  return fmt::format("{:x}-{:x}", from, to);
}

}  // namespace

void for_each_process(const stdfs::path& proc, const std::function<void(pid_t)>& each) {
  for_each_item(proc, [&](const stdfs::path& path) {
    if (const auto pid = pid_of(path)) each(*pid);
  });
}

ProcessFiles::ProcessFiles(const stdfs::path& proc, pid_t pid, dev_t device,
                           std::function<bool(Inode)> wanted)
    : path_(proc / std::to_string(pid)), device_(device), wanted_(std::move(wanted)) {}

std::optional<ProcessFiles::Open> ProcessFiles::find_open(
    const std::function<bool(const Open&)>& condition) {
  std::optional<Open> held;
  for_each_item(path_ / "fdinfo", [&](const stdfs::path& item) {
    if (held) return;
    const Descriptor found = read_descriptor(item);
    if (!wanted_(found.open.inode) || !condition(found.open)) return;
    if (is_ours(found.mount)) held = found.open;
  });
  return held;
}

std::optional<ProcessFiles::Mapped> ProcessFiles::find_mapped(
    const std::function<bool(const Mapped&)>& condition) const {
  const std::string ours = device_text(device_);
  std::ifstream maps(path_ / "maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string permissions, offset, device;
    Mapped found;
    fields >> found.range >> permissions >> offset >> device >> found.inode;
    if (!fields || permissions.size() != 4 || device != ours || !wanted_(found.inode)) continue;
    found.is_writable = permissions[1] == 'w';
    found.is_shared = permissions[3] == 's';
    if (condition(found)) return found;
  }
  return std::nullopt;
}

bool ProcessFiles::was_writable(const Mapped& mapped) const {
  struct stat link {};
  const stdfs::path path = path_ / "map_files" / without_zeros(mapped.range);
  return lstat(path.c_str(), &link) == 0 && (link.st_mode & S_IWUSR) != 0;
}

std::string ProcessFiles::command() const {
  std::ifstream file(path_ / "comm");
  std::string name;
  std::getline(file, name);
  return name;
}

bool ProcessFiles::is_ours(std::uint64_t mount) {
  if (!mounts_) mounts_ = read_mounts_of_device();
  return mounts_->contains(mount);
}

std::set<std::uint64_t> ProcessFiles::read_mounts_of_device() const {
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

}  // namespace weightfs::fs
