#include "store/handover/seal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <system_error>

#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

/// There is no call that waits for a lease, so this polls.
constexpr auto kProbeInterval = std::chrono::milliseconds(10);
constexpr std::size_t kShownMax = 5;
constexpr const char* kNobodySeen =
    "no visible process (one of another PID namespace, or a descriptor in flight in a socket)";

bool is_hidden(std::string_view path) {
  return path.starts_with('.') || path.find("/.") != path.npos;
}

std::vector<StagedFile> files_of(const Staging& staging, StagingId directory) {
  std::vector<StagedFile> files = staging.list(directory);
  std::erase_if(files, [](const StagedFile& file) { return !S_ISREG(file.type); });
  return files;
}

/// Why the kernel did not tell who writes to a file.
[[noreturn]] void throw_untold(const stdfs::path& path, int error) {
  const std::string why = "fcntl(2), F_SETLEASE: " + std::generic_category().message(error);
  if (error == EACCES) {
    throw Error(ErrorCode::permission,
                fmt::format("cannot ask who still writes to {} ({}): only its owner may, or who "
                            "has CAP_LEASE; mount as the user who owns the --store",
                            path.string(), why));
  }
  if (error == EINVAL || error == EOPNOTSUPP || error == EAGAIN) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the file system of {} has no leases ({}), so nobody can tell who "
                            "still writes to a file: choose another --store",
                            path.parent_path().string(), why));
  }
  throw_errno(error,
              fmt::format("ask who still writes to {} (fcntl(2), F_SETLEASE)", path.string()));
}

/// Throws Error: unsupported, permission (the kernel does not tell), what opening the file throws.
bool is_written(const stdfs::path& path) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  const Writers writers = find_writers(file.fd());
  if (writers == Writers::unknown) throw_untold(path, errno);
  return writers == Writers::some;
}

std::vector<StagedFile> held_files(const Staging& staging, StagingId directory) {
  std::vector<StagedFile> files = files_of(staging, directory);
  std::erase_if(files, [&](const StagedFile& file) {
    return file.writers == 0 && !is_written(staging.backing_path(file.id));
  });
  return files;
}

/// Names the first of these files, below the directory that the user knows as `shown`.
std::string names_of(const std::string& shown, const std::vector<StagedFile>& files) {
  std::string names;
  for (std::size_t i = 0; i < std::min(files.size(), kShownMax); i++) {
    names += fmt::format("{}{}/{}", i > 0 ? ", " : "", shown, escape_name(files[i].path));
  }
  if (files.size() > kShownMax) names += fmt::format(" and {} more", files.size() - kShownMax);
  return names;
}

[[noreturn]] void throw_held(
    const std::string& shown, const std::vector<StagedFile>& held,
    const std::function<std::string(const std::vector<StagedFile>& files)>& holders) {
  const std::string names = names_of(shown, held);
  std::string who = holders ? holders(held) : "";
  if (who.empty()) who = kNobodySeen;
  throw Error(
      ErrorCode::busy,
      fmt::format("{} {} still open for writing, or mapped by a writer, held by {}; close "
                  "{} first, then hand over again",
                  names, held.size() > 1 ? "are" : "is", who, held.size() > 1 ? "them" : "it"));
}

void link_file(const stdfs::path& from, const stdfs::path& to, const std::string& shown) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  if (errno == ENAMETOOLONG) {
    throw Error(ErrorCode::invalid, fmt::format("the path {} is too long: shorten it", shown));
  }
  throw_errno(errno, fmt::format("link {} to {}", to.string(), from.string()));
}

void make_link_directory(const stdfs::path& path, const std::string& shown) {
  if (::mkdir(path.c_str(), 0700) == 0) return;
  if (errno == ENAMETOOLONG) {
    throw Error(ErrorCode::invalid, fmt::format("the path {} is too long: shorten it", shown));
  }
  throw_errno(errno, "make the directory " + path.string());
}

/// The kernel tells it once, and drops what it could not write.
[[noreturn]] void throw_lost(std::string_view why) {
  throw Error(
      ErrorCode::corrupt,
      fmt::format("staged files could not be synced to disk; check them or write them again: {}",
                  why));
}

void for_each_file(const stdfs::path& tree,
                   const std::function<void(const stdfs::path& path)>& each) {
  for (const auto& entry : stdfs::recursive_directory_iterator(tree)) {
    if (entry.is_regular_file()) each(entry.path());
  }
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// What `body` throws names files of the tree as their user knows them.
void as_shown(const stdfs::path& tree, std::string_view shown, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code(), replaced(error.what(), escape_name(tree.native()), shown));
  }
}

}  // namespace

void require_leases(const stdfs::path& file) {
  // What looks like a writer is a file system that grants no lease.
  if (is_written(file)) throw_untold(file, EAGAIN);
}

bool may_hand_over(const Staging& staging, Caller caller) {
  const struct stat root = staging.attributes(kPublishRoot);
  if (caller.uid == 0) return true;
  if (caller.uid == root.st_uid) return (root.st_mode & S_IWUSR) != 0;
  if (caller.gid == root.st_gid) return (root.st_mode & S_IWGRP) != 0;
  return (root.st_mode & S_IWOTH) != 0;
}

void require_own_files(const Staging& staging, StagingId directory, Caller caller) {
  if (caller.uid == 0) return;
  std::vector<StagedFile> others = files_of(staging, directory);
  std::erase_if(others, [&](const StagedFile& file) { return file.uid == caller.uid; });
  if (others.empty()) return;
  throw Error(
      ErrorCode::permission,
      fmt::format("{} {} to uid {}, but uid {} is handing over: users can hand over only their own "
                  "files; let the owner or root do it",
                  names_of(escape_name(staging.path_of(directory)), others),
                  others.size() > 1 ? "belong" : "belongs", others.front().uid, caller.uid));
}

void wait_unwritten(Staging& staging, StagingId directory,
                    const std::function<std::string(const std::vector<StagedFile>& files)>& holders,
                    Clock::time_point until, const Context& context) {
  const std::string shown = escape_name(staging.path_of(directory));
  staging.wait_unwritten(directory, context, until);
  while (true) {
    const std::vector<StagedFile> held = held_files(staging, directory);
    if (held.empty()) return;
    if (Clock::now() >= until) throw_held(shown, held, holders);
    context.pause(kProbeInterval, "waiting for the writers of " + shown);
  }
}

void make_links(const Staging& staging, StagingId directory, const stdfs::path& tree) {
  remove_links(tree);
  make_directories(tree.parent_path(), 0700);
  const std::string shown = escape_name(staging.path_of(directory));
  make_link_directory(tree, shown);
  // Sorted by path: a directory comes before its contents.
  for (const StagedFile& file : staging.list(directory)) {
    if (is_hidden(file.path)) continue;
    const std::string name = fmt::format("{}/{}", shown, escape_name(file.path));
    if (S_ISDIR(file.type)) {
      make_link_directory(tree / file.path, name);
    } else if (S_ISREG(file.type)) {
      link_file(staging.backing_path(file.id), tree / file.path, name);
    } else {
      throw Error(
          ErrorCode::invalid,
          fmt::format("{} is a symlink, which cannot be handed over: put the file itself there",
                      name));
    }
  }
}

void remove_links(const stdfs::path& tree) noexcept {
  try {
    stdfs::remove_all(tree);
  } catch (const std::exception& error) {
    log_caught("cannot remove links to staged files", error);
  }
}

void check_links(const stdfs::path& tree, const std::vector<std::string>& include, ScanScope scope,
                 std::string_view shown) {
  as_shown(tree, shown, [&] { static_cast<void>(scan_checkpoint(tree, include, scope)); });
}

namespace {

/// A queue that is to end waits for a slice at most.
void sync_file(const stdfs::path& path, const Context& context) {
  const auto goes_on = [&] {
    context.check("syncing the files that were handed over");
    return true;
  };
  const File file = File::open(path, O_RDONLY);
  try {
    static_cast<void>(sync_in_slices(file.fd(), path, goes_on));
  } catch (const LostWrite& lost) {
    throw_lost(lost.what());
  }
}

}  // namespace

void sync_links(const stdfs::path& tree, const stdfs::path& backing, std::string_view shown,
                const Context& context) {
  as_shown(tree, shown,
           [&] { for_each_file(tree, [&](const auto& path) { sync_file(path, context); }); });
  try {
    fsync_directory(backing);
  } catch (const LostWrite& lost) {
    throw_lost(lost.what());
  }
}

void require_no_lost_writes(const stdfs::path& tree, std::string_view shown) {
  // Behind the end of every file, so that there is nothing to wait for: only the error is told.
  constexpr off_t kFar = off_t{1} << 50;
  const auto check = [](const stdfs::path& path) {
    const File file = File::open(path, O_RDONLY);
    if (::sync_file_range(file.fd(), kFar, 1, SYNC_FILE_RANGE_WAIT_BEFORE) == 0) return;
    const int error = errno;
    if (!is_lost_write(error)) return;
    throw_lost(fmt::format("{}: {}", path.string(), std::generic_category().message(error)));
  };
  as_shown(tree, shown, [&] { for_each_file(tree, check); });
}

}  // namespace weightfs
