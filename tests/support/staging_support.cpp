#include "tests/support/staging_support.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/support.hpp"

namespace weightfs::test {

int errno_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const PosixError& error) {
    return error.number();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::no_space) return ENOSPC;
    throw;
  }
  return 0;
}

namespace {

void collect(const Staging& staging, StagingId directory,
             const std::function<void(StagingId)>& each) {
  std::vector<StagingName> names;
  staging.read_directory(directory, 0, [&](const StagingName& name) {
    names.push_back(name);
    return true;
  });
  for (const StagingName& name : names) {
    each(name.id);
    if (S_ISDIR(name.type)) collect(staging, name.id, each);
  }
}

std::vector<std::string> lines_of(const Staging& staging,
                                  const std::function<std::string(StagingId)>& line) {
  std::vector<std::string> lines;
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    collect(staging, root, [&](StagingId id) { lines.push_back(line(id)); });
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string describe(const Staging& staging, StagingId id) {
  const struct stat a = staging.attributes(id);
  std::string line = fmt::format("{} id {} mode {:o} owner {}:{} links {} size {} mtime {}.{}",
                                 staging.path_of(id), id, a.st_mode, a.st_uid, a.st_gid, a.st_nlink,
                                 a.st_size, a.st_mtim.tv_sec, a.st_mtim.tv_nsec);
  line += fmt::format(" ctime {}.{}", a.st_ctim.tv_sec, a.st_ctim.tv_nsec);
  if (S_ISLNK(a.st_mode)) line += " -> " + staging.read_link(id);
  if (S_ISREG(a.st_mode)) {
    line +=
        fmt::format(" hash {:x}", std::hash<std::string>()(read_text(staging.backing_path(id))));
  }
  return line;
}

}  // namespace

std::vector<std::string> paths_of(const Staging& staging) {
  return lines_of(staging, [&](StagingId id) { return staging.path_of(id); });
}

std::string tree_text(const Staging& staging) {
  std::string text;
  for (const auto& line : lines_of(staging, [&](StagingId id) { return describe(staging, id); })) {
    text += line + "\n";
  }
  return text + describe(staging, kStagingRoot) + "\n" + describe(staging, kPublishRoot) + "\n";
}

}  // namespace weightfs::test
