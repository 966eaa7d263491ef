// Every call first checks, under the lock, and throws the error that a POSIX file system would
// return.  A change is then written to the database as one batch, and made in memory only if the
// write succeeds. Slow operations on bytes (truncate, fsync, unlink) run without locks; a file
// counts as having a writer while it is truncated, so that a seal waits for that.

#include "store/staging/staging.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "store/os/file.hpp"
#include "store/staging/state.hpp"

namespace weightfs {

namespace {

constexpr std::uint64_t kDirectoryBytes = 4096;  // the size reported for a directory
constexpr std::size_t kNamesAtOnce = 128;
constexpr std::size_t kTargetBytesMax = 4095;

// For lookups: any other invalid name simply does not exist.
void require_length(std::string_view name) {
  if (name.size() > kNameBytesMax) {
    throw PosixError(ENAMETOOLONG, "use the name " + std::string(name));
  }
}

void require_entry_name(std::string_view name) {
  require_length(name);
  if (!is_entry_name(name)) throw PosixError(EINVAL, "use the name '" + std::string(name) + "'");
}

StagingId get_child(const StagingTree& tree, StagingId directory, std::string_view name,
                    const char* action) {
  tree.directory(directory);
  require_length(name);
  const std::optional<StagingId> id = tree.child(directory, name);
  if (!id) throw PosixError(ENOENT, action + (" " + tree.path_of(directory, name)));
  return *id;
}

// Checks the place for a new entry: the directory may be changed and lacks the name.
void require_free(const StagingTree& tree, StagingId directory, std::string_view name) {
  tree.directory(directory);
  require_entry_name(name);
  if (tree.child(directory, name)) {
    throw PosixError(EEXIST, "make " + tree.path_of(directory, name));
  }
  tree.require_changeable(directory, StagingTree::Change::attributes);
}

// The record of a new inode made by `caller`; a setgid directory passes on its group.
StagingRecord record_of(const StagingChange& change, StagingId directory, mode_t mode,
                        Caller caller) {
  const StagingRecord& parent = change.tree().get(directory).record;
  StagingRecord record;
  record.mode = mode;
  record.uid = caller.uid;
  record.gid = caller.gid;
  record.atime = record.mtime = record.ctime = change.now();
  if ((parent.mode & S_ISGID) != 0) {
    record.gid = parent.gid;
    if (S_ISDIR(mode)) record.mode |= S_ISGID;
  }
  return record;
}

}  // namespace

Staging::Staging(Db& db, std::filesystem::path directory, StagingOptions options)
    : state_(std::make_unique<State>(db, std::move(directory), std::move(options))) {
  state_->load();
}

Staging::~Staging() = default;

// ---- looking ----

StagingId Staging::lookup(StagingId parent, std::string_view name) const {
  const std::scoped_lock lock(state_->mutex);
  return get_child(state_->tree, parent, name, "find");
}

struct stat Staging::attributes(StagingId id) const {
  struct stat result {};
  std::unique_lock lock(state_->mutex);
  const StagingInode& inode = state_->tree.get(id);
  const bool is_linked = inode.parent != 0 || StagingTree::is_root(id);
  const StagingRecord& record = inode.record;
  result.st_mode = record.mode;
  result.st_uid = record.uid;
  result.st_gid = record.gid;
  result.st_nlink = !is_linked ? 0 : inode.is_directory() ? 2 + inode.subdirectories : 1;
  result.st_atim = record.atime;
  result.st_mtim = record.mtime;
  result.st_ctim = record.ctime;
  result.st_size =
      static_cast<off_t>(inode.is_directory() ? kDirectoryBytes : record.target.size());
  const bool is_file = inode.is_file();
  lock.unlock();

  result.st_blksize = 4096;
  result.st_ino = id;
  if (!is_file) return result;
  struct stat bytes {};
  if (::fstatat(state_->directory_file.fd(), state_->backing_name(id).c_str(), &bytes, 0) != 0) {
    throw PosixError(errno == ENOENT ? ESTALE : errno, "stat " + state_->backing_path(id).string());
  }
  result.st_size = bytes.st_size;
  result.st_blocks = bytes.st_blocks;
  result.st_blksize = bytes.st_blksize;
  result.st_atim = bytes.st_atim;
  result.st_mtim = bytes.st_mtim;
  result.st_ctim = bytes.st_ctim;
  return result;
}

std::string Staging::read_link(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  const StagingInode& inode = state_->tree.get(id);
  if (!inode.is_symlink()) {
    throw PosixError(EINVAL, "read the link " + state_->tree.path_of(id));
  }
  return inode.record.target;
}

void Staging::read_directory(StagingId id, std::uint64_t offset,
                             const std::function<bool(const StagingName&)>& each) const {
  // In batches, so that `each` runs without the lock.
  for (std::vector<StagingName> part;; part.clear()) {
    {
      const std::scoped_lock lock(state_->mutex);
      const StagingInode& inode = state_->tree.get(id);
      if (!inode.is_directory()) throw PosixError(ENOTDIR, "list " + state_->tree.path_of(id));
      auto at = inode.positions.upper_bound(offset);
      for (; at != inode.positions.end() && part.size() < kNamesAtOnce; ++at) {
        const StagingId child = inode.entries.find(*at->second)->second.id;
        const mode_t type = state_->tree.get(child).record.mode & S_IFMT;
        part.push_back({*at->second, child, type, at->first});
      }
    }
    if (part.empty()) return;
    for (const StagingName& entry : part) {
      if (!each(entry)) return;
    }
    offset = part.back().next;
  }
}

StagingId Staging::parent_of(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  const StagingInode& inode = state_->tree.get(id);
  if (StagingTree::is_root(id)) return id;
  if (inode.parent == 0) throw PosixError(ENOENT, "find the directory of an unlinked file");
  return inode.parent;
}

std::string Staging::path_of(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  return state_->tree.path_of(id);
}

std::optional<Staging::Top> Staging::top_of(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  Top top;
  for (const StagingInode* inode = &state_->tree.get(id); inode->parent != 0;) {
    top.id = id;
    top.path = top.name.empty() ? top.path : top.name + (top.path.empty() ? "" : "/") + top.path;
    top.name = inode->name;
    id = top.root = inode->parent;
    inode = &state_->tree.get(id);
  }
  if (!StagingTree::is_root(top.root)) return std::nullopt;
  return top;
}

std::vector<Staging::Step> Staging::way_to(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  std::vector<Step> way;
  for (StagingId at = id;;) {
    const StagingInode& inode = state_->tree.get(at);
    way.push_back({at, inode.name});
    if (inode.parent == 0) break;
    at = inode.parent;
  }
  if (!StagingTree::is_root(way.back().id)) return {};
  std::reverse(way.begin(), way.end());
  return way;
}

std::vector<StagingId> Staging::staged_files() const {
  std::vector<StagingId> files;
  const std::scoped_lock lock(state_->mutex);
  state_->tree.walk(kStagingRoot, [&](const std::string&, StagingId id, const StagingInode& inode) {
    if (inode.is_file()) files.push_back(id);
  });
  return files;
}

StagingSummary Staging::summary() const {
  StagingSummary summary;
  std::vector<std::vector<StagingId>> files;  // by index of `tops`
  {
    const std::scoped_lock lock(state_->mutex);
    for (const StagingId root : {kStagingRoot, kPublishRoot}) {
      for (const auto& [name, entry] : state_->tree.get(root).entries) {
        StagingSummary::Top& top = summary.tops.emplace_back();
        std::vector<StagingId>& of_top = files.emplace_back();
        top.name = name;
        top.is_handed_over = root == kPublishRoot;
        const auto count = [&](const std::string&, StagingId id, const StagingInode& inode) {
          if (inode.is_file()) of_top.push_back(id);
          if (inode.is_file()) return;
          top.changed_time = std::max<std::int64_t>(top.changed_time, inode.record.mtime.tv_sec);
        };
        count("", entry.id, state_->tree.get(entry.id));
        state_->tree.walk(entry.id, count);
      }
    }
  }
  for (std::size_t i = 0; i < files.size(); i++) {
    StagingSummary::Top& top = summary.tops[i];
    for (const StagingId id : files[i]) {
      struct stat bytes {};
      const std::string name = state_->backing_name(id);
      if (::fstatat(state_->directory_file.fd(), name.c_str(), &bytes, 0) != 0) continue;
      top.files++;
      top.bytes += static_cast<std::uint64_t>(bytes.st_blocks) * 512;
      top.changed_time = std::max<std::int64_t>(top.changed_time, bytes.st_mtim.tv_sec);
    }
    summary.files += top.files;
    summary.bytes += top.bytes;
  }
  return summary;
}

// ---- changing names ----

StagingId Staging::make_file(StagingId parent, std::string_view name, mode_t mode, Caller caller) {
  StagingChange change(*state_);
  require_free(change.tree(), parent, name);
  const StagingId id = change.take_id();
  change.add(id, record_of(change, parent, S_IFREG | (mode & 07777), caller));
  change.link(parent, name, id);
  change.touch(parent);
  change.unlock();
  state_->make_backing(id);
  try {
    change.write();
  } catch (...) {
    state_->remove_backing({&id, 1});
    throw;
  }
  return id;
}

StagingId Staging::make_directory(StagingId parent, std::string_view name, mode_t mode,
                                  Caller caller) {
  StagingChange change(*state_);
  require_free(change.tree(), parent, name);
  const StagingId id = change.take_id();
  change.add(id, record_of(change, parent, S_IFDIR | (mode & 07777), caller));
  change.link(parent, name, id);
  change.touch(parent);
  change.write();
  return id;
}

StagingId Staging::make_symlink(StagingId parent, std::string_view name, std::string_view target,
                                Caller caller) {
  if (target.empty()) throw PosixError(ENOENT, "make a symlink to nothing");
  if (target.size() > kTargetBytesMax) throw PosixError(ENAMETOOLONG, "make a symlink");
  StagingChange change(*state_);
  require_free(change.tree(), parent, name);
  const StagingId id = change.take_id();
  StagingRecord record = record_of(change, parent, S_IFLNK | 0777, caller);
  record.target = target;
  change.add(id, std::move(record));
  change.link(parent, name, id);
  change.touch(parent);
  change.write();
  return id;
}

void Staging::unlink(StagingId parent, std::string_view name) {
  const auto attempt = [&] {
    StagingChange change(*state_);
    const StagingId id = get_child(change.tree(), parent, name, "remove");
    if (change.tree().get(id).is_directory()) {
      throw PosixError(EISDIR, "unlink " + change.tree().path_of(id));
    }
    change.tree().require_changeable(id, StagingTree::Change::removal);
    change.unlink(parent, name);
    change.drop(id);
    change.touch(parent);
    return change.write();
  };
  try {
    state_->remove_later(attempt());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space || !state_->empty_unused(parent, name)) throw;
    state_->remove_later(attempt());
  }
}

void Staging::remove_directory(StagingId parent, std::string_view name) {
  StagingChange change(*state_);
  const StagingId id = get_child(change.tree(), parent, name, "remove");
  const StagingInode& inode = change.tree().get(id);
  if (!inode.is_directory()) throw PosixError(ENOTDIR, "rmdir " + change.tree().path_of(id));
  change.tree().require_changeable(id, StagingTree::Change::removal);
  if (!inode.entries.empty()) throw PosixError(ENOTEMPTY, "rmdir " + change.tree().path_of(id));
  change.unlink(parent, name);
  change.drop(id);
  change.touch(parent);
  change.write();
}

namespace {

// The inodes of a rename; check_rename() throws the errors of renameat2(2).
struct Renaming {
  StagingId source = 0;
  std::optional<StagingId> target;
};

Renaming check_rename(const StagingTree& tree, StagingId parent, std::string_view name,
                      StagingId new_parent, std::string_view new_name, unsigned flags) {
  const bool exchanges = flags == RENAME_EXCHANGE;
  Renaming found;
  found.source = get_child(tree, parent, name, "rename");
  tree.directory(new_parent);
  require_entry_name(new_name);
  found.target = tree.child(new_parent, new_name);
  const auto fail = [&](int number) {
    throw PosixError(number, "rename " + tree.path_of(parent, name) + " to " +
                                 tree.path_of(new_parent, new_name));
  };
  if (flags == RENAME_NOREPLACE && found.target) fail(EEXIST);
  if (exchanges && !found.target) fail(ENOENT);
  if (tree.is_below(new_parent, found.source)) fail(EINVAL);
  if (found.target && tree.is_below(parent, *found.target)) fail(exchanges ? EINVAL : ENOTEMPTY);
  if (found.source == found.target) return found;

  constexpr auto kAttributes = StagingTree::Change::attributes;
  tree.require_changeable(found.source, kAttributes);
  tree.require_changeable(new_parent, kAttributes);
  if (found.target) tree.require_changeable(*found.target, kAttributes);
  if (exchanges || !found.target) return found;
  const StagingInode& source = tree.get(found.source);
  const StagingInode& target = tree.get(*found.target);
  if (source.is_directory() && !target.is_directory()) fail(ENOTDIR);
  if (!source.is_directory() && target.is_directory()) fail(EISDIR);
  if (!target.entries.empty()) fail(ENOTEMPTY);
  return found;
}

}  // namespace

void Staging::rename(StagingId parent, std::string_view name, StagingId new_parent,
                     std::string_view new_name, unsigned flags) {
  if (flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE) {
    throw PosixError(EINVAL, "rename with flags " + std::to_string(flags));
  }
  const bool exchanges = flags == RENAME_EXCHANGE;
  StagingChange change(*state_);
  const auto [source, target] =
      check_rename(change.tree(), parent, name, new_parent, new_name, flags);
  if (source == target) return;
  if (!exchanges) change.unlink(parent, name);
  change.link(new_parent, new_name, source);
  if (exchanges) change.link(parent, name, *target);
  if (!exchanges && target) change.drop(*target);
  change.touch(parent);
  if (new_parent != parent) change.touch(new_parent);
  change.touch_ctime(source);
  if (exchanges) change.touch_ctime(*target);
  state_->remove_later(change.write());
}

// ---- files ----

namespace {

bool changes_times(const AttributeChange& change) { return change.atime || change.mtime; }

// For a file only mode and owner are recorded.
bool changes_record(const AttributeChange& change, bool is_file) {
  return change.mode || change.uid || change.gid || (!is_file && changes_times(change));
}

StagingRecord changed(StagingRecord record, const AttributeChange& change, const timespec& now) {
  if (change.mode) record.mode = (record.mode & S_IFMT) | (*change.mode & 07777);
  if (change.uid) record.uid = *change.uid;
  if (change.gid) record.gid = *change.gid;
  if (change.atime) record.atime = *change.atime;
  if (change.mtime) record.mtime = *change.mtime;
  record.ctime = now;
  return record;
}

}  // namespace

void Staging::change(StagingId id, const AttributeChange& wanted) {
  if (wanted.size_bytes) state_->resize(id, *wanted.size_bytes);
  if (wanted.size_bytes == 0u) {
    // What is written from now on is new.
    std::unique_lock lock(state_->mutex);
    const StagingInode* const inode = state_->tree.find(id);
    const bool was_lost = inode != nullptr && inode->record.is_lost;
    lock.unlock();
    if (was_lost) {
      // First, or a power cut could bring the old bytes back without the mark.
      const File file = state_->open_backing(id, O_WRONLY);
      (void)::fsync(file.fd());  // may tell of bytes that are gone now
      fsync_file(file.fd(), state_->backing_path(id));
      state_->set_lost({&id, 1}, false);
    }
  }
  StagingChange change(*state_);
  const StagingInode& inode = change.tree().get(id);
  const bool is_file = inode.is_file();
  const bool is_recorded = changes_record(wanted, is_file);
  if (!is_recorded && !changes_times(wanted)) return;
  change.tree().require_changeable(id, StagingTree::Change::attributes);
  if (is_recorded) change.set(id, changed(inode.record, wanted, change.now()));
  change.unlock();
  if (is_recorded) change.write();
  if (!is_file) return;

  if (!changes_times(wanted)) return state_->touch_backing(id);
  constexpr timespec kAsIs{0, UTIME_OMIT};
  const timespec times[2] = {wanted.atime.value_or(kAsIs), wanted.mtime.value_or(kAsIs)};
  const std::string name = state_->backing_name(id);
  if (::utimensat(state_->directory_file.fd(), name.c_str(), times, 0) != 0) {
    throw PosixError(errno == ENOENT ? ESTALE : errno, "set the times of " + path_of(id));
  }
}

void Staging::allocate(StagingId id, int mode, std::uint64_t offset_bytes,
                       std::uint64_t size_bytes) {
  const WriterPin pin(*state_, id);
  constexpr int kFrees = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE;
  const bool takes = (mode & kFrees) == 0;
  const GrowthPin growth(state_->growing_bytes, takes ? size_bytes : 0);
  if (takes) state_->make_room(size_bytes, growth.others() + state_->lacking_bytes(id));
  const File file = state_->open_backing(id, O_WRONLY);
  int status = 0;
  do {
    status = ::fallocate(file.fd(), mode, static_cast<off_t>(offset_bytes),
                         static_cast<off_t>(size_bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0) throw PosixError(errno, "allocate space for " + path_of(id));
}

std::filesystem::path Staging::backing_path(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  state_->tree.file(id);
  return state_->backing_path(id);
}

void Staging::open(StagingId id, bool writes) { state_->open(id, writes); }

bool Staging::release(StagingId id, bool writes) noexcept { return state_->release(id, writes); }

bool Staging::has_writers(StagingId id) const noexcept { return state_->has_writers(id); }

void Staging::prepare_write(StagingId id, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tree.file(id);
    state_->tree.require_changeable(id, StagingTree::Change::bytes);
    state_->tree.get(id).generation++;
  }
  const auto size = static_cast<std::uint64_t>(attributes(id).st_size);
  const std::uint64_t end = offset_bytes + size_bytes;
  if (end > size) state_->make_room(std::min(size_bytes, end - size));
}

void Staging::prepare_file() { state_->make_room(0); }

bool Staging::has_room_for_file() const {
  return !state_->options.has_room || state_->options.has_room(0);
}

void Staging::sync_file(StagingId id, bool data_only) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tree.file(id);
  }
  const File file = state_->open_backing(id, O_RDONLY);
  const int status = data_only ? ::fdatasync(file.fd()) : ::fsync(file.fd());
  if (status != 0) {
    const int error = errno;
    if (is_lost_write(error)) state_->set_lost({&id, 1}, true);
    throw PosixError(error, "sync " + path_of(id));
  }
  sync_directory(id);
}

// On disk files are named by id, so there is only one directory to sync.
void Staging::sync_directory(StagingId id) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tree.get(id);
  }
  weightfs::fsync_file(state_->directory_file.fd(), state_->directory);
  state_->sync_records();
}

}  // namespace weightfs
