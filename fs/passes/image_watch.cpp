// A file that several versions share has a name in the directory of each. inotify reports the
// directory through which it was opened.
#include "fs/passes/image_watch.hpp"

#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "fs/passes/passes.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {

ImageWatch::ImageWatch() : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  if (!inotify_) throw_errno(errno, "watch images (see the sysctl fs.inotify.max_user_instances)");
}

void ImageWatch::add(const CatalogVersion& version) {
  for (const CatalogEntry& entry : version.entries) {
    if (!entry.is_directory) continue;
    const std::filesystem::path directory = version.directory / entry.path;
    const std::lock_guard lock(mutex_);
    const int watch = inotify_add_watch(inotify_.fd(), directory.c_str(), IN_OPEN | IN_ONLYDIR);
    if (watch < 0) {
      throw_errno(errno, fmt::format("watch {} (see the sysctl fs.inotify.max_user_watches)",
                                     directory.string()));
    }
    watches_[watch] = {version.number, entry.path};
  }
}

void ImageWatch::remove(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watches_, [&](const auto& item) {
    if (item.second.version != version) return false;
    inotify_rm_watch(inotify_.fd(), item.first);  // fails if the directory is gone
    return true;
  });
}

std::set<ImageWatch::Opened> ImageWatch::take_opened() {
  std::set<Opened> opened;
  alignas(inotify_event) std::array<char, 16384> buffer;
  const std::lock_guard lock(mutex_);
  for (ssize_t got = 0; (got = ::read(inotify_.fd(), buffer.data(), buffer.size())) > 0;) {
    for (const char* at = buffer.data(); at < buffer.data() + got;) {
      inotify_event event;
      std::memcpy(&event, at, sizeof event);
      const char* name = at + sizeof event;
      at = name + event.len;
      const auto watch = watches_.find(event.wd);
      if (watch == watches_.end() || (event.mask & IN_OPEN) == 0 || event.len == 0) continue;
      if (pass_file_of(name) != PassFile::weights) continue;
      const auto& [version, directory] = watch->second;
      opened.insert({version, directory.empty() ? name : directory + "/" + name});
    }
  }
  return opened;
}

}  // namespace weightfs::fs
