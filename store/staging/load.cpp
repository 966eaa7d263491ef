// Loading: first the records as they are; then inconsistencies are repaired, so that one bad entry
// does not cost the whole tree:
//
//     a name without an inode, a second name   dropped
//     a file without bytes                     dropped, and named in the log
//     an inode not reachable from a root       becomes /staging/lost+found-<id>, with all below it;
//                                              in a cycle, the inode with the lowest id
//     bytes without a record                   removed
//     a safetensors file with a hole           after a restart of the machine: marked, so that it
//                                              is not handed over
//
// Repairs are written in one batch; if there is no room for it, the next process repeats them.  But
// after a restart of the machine that process could not tell a file that lost its bytes from one
// that is being written: the marks, and that they were made, go with the next change as well.

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <unordered_set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/os/file.hpp"
#include "store/os/holes.hpp"
#include "store/staging/state.hpp"

namespace weightfs {

namespace {

// The id that a file's name stands for; nullopt if it is not one of staging's files.
std::optional<StagingId> id_of_name(std::string_view name) {
  StagingId id = 0;
  const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (error != std::errc() || name != std::to_string(id)) return std::nullopt;
  return id;
}

std::set<StagingId> read_backing(const std::filesystem::path& directory) {
  std::set<StagingId> ids;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (const auto id = id_of_name(entry.path().filename().string())) ids.insert(*id);
  }
  return ids;
}

[[noreturn]] void throw_undecodable(std::string_view family, std::string_view key) {
  throw Error(ErrorCode::corrupt, fmt::format("a record of staging in family '{}' is malformed: {}",
                                              family, to_hex(as_bytes(key))));
}

}  // namespace

class StagingLoader {
 public:
  StagingLoader(Staging::State& state, std::set<StagingId> backing)
      : state_(state), tree_(state.tree), backing_(std::move(backing)) {}

  void run() {
    read_ids();
    read_inodes();
    make_roots();
    read_names();
    keep_lost();
    drop_files_without_bytes();
    mark_holes();
    write();
    remove_strays();
  }

 private:
  void read_ids();
  void read_inodes();
  void make_roots();
  void read_names();
  void keep_lost();
  void drop_files_without_bytes();
  void mark_holes();
  void write();
  void remove_strays();

  void add_name(const StagingNameRecord& record);
  [[nodiscard]] std::unordered_set<StagingId> reachable() const;
  [[nodiscard]] bool may_lack_bytes(StagingId id, const StagingInode& inode) const;
  void move_to_staging(StagingId id);

  Staging::State& state_;
  StagingTree& tree_;
  const std::set<StagingId> backing_;
  std::vector<Db::Change> repairs_;
};

void StagingLoader::read_ids() {
  const auto ids = state_.db.find(ColumnFamily::store, "staging_ids");
  if (!ids) return;
  if (ids->size() != 8) throw_undecodable("default", "staging_ids");
  state_.reserved_ids = tree_.given_out = std::max(load_be(*ids), kFirstStagingId);
}

void StagingLoader::read_inodes() {
  state_.db.scan(ColumnFamily::inodes, "", [&](std::string_view key, std::string_view value) {
    std::optional<StagingRecord> record = decode_inode(value);
    if (key.size() != 8 || !record) throw_undecodable("inodes", key);
    const StagingId id = load_be(key);
    if (id < kFirstStagingId && (!StagingTree::is_root(id) || !S_ISDIR(record->mode))) {
      throw_undecodable("inodes", key);
    }
    tree_.add(id, std::move(*record));
    // Ids are reserved in the same write as their first inode; a lost reservation is repeated.
    tree_.given_out = std::max(tree_.given_out, id + 1);
  });
  state_.reserved_ids = std::min(state_.reserved_ids, tree_.given_out);
}

void StagingLoader::make_roots() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    if (tree_.find(root) == nullptr) {
      StagingRecord record;
      record.mode = S_IFDIR | state_.options.mode;
      record.atime = record.mtime = record.ctime = now;
      repairs_.push_back({ColumnFamily::inodes, inode_key(root), encode(record)});
      tree_.add(root, std::move(record));
    }
    StagingRecord& record = tree_.get(root).record;
    record.mode = S_IFDIR | state_.options.mode;
    record.uid = state_.options.owner.uid;
    record.gid = state_.options.owner.gid;
  }
}

void StagingLoader::read_names() {
  state_.db.scan(ColumnFamily::names, "", [&](std::string_view key, std::string_view value) {
    const std::optional<StagingNameRecord> record = decode_name(key, value);
    if (!record) throw_undecodable("names", key);
    add_name(*record);
  });
}

void StagingLoader::add_name(const StagingNameRecord& record) {
  const StagingInode* directory = tree_.find(record.directory);
  const StagingInode* inode = tree_.find(record.id);
  const bool fits = directory != nullptr && directory->is_directory() && inode != nullptr &&
                    inode->parent == 0 && !StagingTree::is_root(record.id) &&
                    is_entry_name(record.name);
  if (fits) return tree_.link(record.directory, record.name, record.id);
  log_warning(
      fmt::format("staging: dropped the name '{}' in directory {}: its inode {} does not exist",
                  record.name, record.directory, record.id));
  repairs_.push_back({ColumnFamily::names, name_key(record.directory, record.name), std::nullopt});
}

std::unordered_set<StagingId> StagingLoader::reachable() const {
  std::unordered_set<StagingId> ids{kStagingRoot, kPublishRoot};
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    tree_.walk(root,
               [&](const std::string&, StagingId id, const StagingInode&) { ids.insert(id); });
  }
  return ids;
}

// First inodes without a name, then one of each remaining cycle.
void StagingLoader::keep_lost() {
  std::vector<StagingId> nameless;
  for (const auto& [id, inode] : tree_.inodes()) {
    if (inode.parent == 0 && !StagingTree::is_root(id)) nameless.push_back(id);
  }
  std::sort(nameless.begin(), nameless.end());
  for (const StagingId id : nameless) move_to_staging(id);

  for (;;) {
    const std::unordered_set<StagingId> found = reachable();
    if (found.size() == tree_.inodes().size()) return;
    StagingId lowest = UINT64_MAX;
    for (const auto& [id, inode] : tree_.inodes()) {
      if (!found.contains(id) && inode.is_directory()) lowest = std::min(lowest, id);
    }
    move_to_staging(lowest);
  }
}

void StagingLoader::move_to_staging(StagingId id) {
  const StagingInode& inode = tree_.get(id);
  if (inode.is_file() && !backing_.contains(id)) {
    repairs_.push_back({ColumnFamily::inodes, inode_key(id), std::nullopt});
    tree_.erase(id);
    return;
  }
  if (inode.parent != 0) {
    repairs_.push_back({ColumnFamily::names, name_key(inode.parent, inode.name), std::nullopt});
    tree_.unlink(inode.parent, std::string(inode.name));
  }
  const std::string wanted = "lost+found-" + std::to_string(id);
  std::string name = wanted;
  for (int i = 2; tree_.child(kStagingRoot, name); i++) name = wanted + "." + std::to_string(i);
  tree_.link(kStagingRoot, name, id);
  repairs_.push_back({ColumnFamily::names, name_key(kStagingRoot, name), inode_key(id)});
  log_warning(fmt::format("staging: inode {} had no name; it is now staging/{}", id, name));
}

void StagingLoader::drop_files_without_bytes() {
  std::vector<StagingId> missing;
  for (const auto& [id, inode] : tree_.inodes()) {
    if (inode.is_file() && !backing_.contains(id)) missing.push_back(id);
  }
  std::sort(missing.begin(), missing.end());
  for (const StagingId id : missing) {
    const StagingInode& inode = tree_.get(id);
    log_warning(fmt::format("dropped {}: its data file, {}, is missing", tree_.path_of(id),
                            state_.backing_path(id).string()));
    repairs_.push_back({ColumnFamily::names, name_key(inode.parent, inode.name), std::nullopt});
    repairs_.push_back({ColumnFamily::inodes, inode_key(id), std::nullopt});
    tree_.unlink(inode.parent, std::string(inode.name));
    tree_.erase(id);
  }
}

// A saver that does not sync may set the size first (safetensors >= 0.8).  A power cut leaves the
// size then, and holes: bytes that were not written out yet have no place on the disk (ext4 and XFS
// choose one late), or one that still counts as a hole, as SEEK_HOLE tells of extents that are
// unwritten, where no page is dirty.  The header is there and right, so nothing else shows it.
void StagingLoader::mark_holes() {
  const auto& boot = state_.options.boot;
  if (!boot) return;
  const auto before = state_.db.find(ColumnFamily::store, kStagingBootKey);
  if (before == boot) return;
  repairs_.push_back({ColumnFamily::store, std::string(kStagingBootKey), *boot});
  state_.unrecorded_boot = boot;
  if (!before) return;  // a new store, or that of an older release
  std::vector<StagingId> marked;
  tree_.walk(kStagingRoot, [&](const std::string&, StagingId id, const StagingInode& inode) {
    if (may_lack_bytes(id, inode)) marked.push_back(id);
  });
  for (const StagingId id : marked) {
    StagingRecord& record = tree_.get(id).record;
    record.is_lost = true;
    repairs_.push_back({ColumnFamily::inodes, inode_key(id), encode(record)});
    state_.unrecorded_lost.insert(id);
    log_warning(
        fmt::format("{} has holes, and the machine was restarted: its bytes may be lost, so it is "
                    "not handed over; save it again",
                    escape_name(tree_.path_of(id))));
  }
}

// What cannot be opened is refused in any case.
bool StagingLoader::may_lack_bytes(StagingId id, const StagingInode& inode) const {
  if (!inode.is_file() || inode.record.is_lost || !inode.name.ends_with(".safetensors")) {
    return false;
  }
  const File file(::open(state_.backing_path(id).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return file && has_hole(file.fd());
}

void StagingLoader::write() {
  if (repairs_.empty()) return;
  try {
    state_.db.write(repairs_, Durability::process);
    state_.unrecorded_lost.clear();
    state_.unrecorded_boot.reset();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(fmt::format("staging: repairs are not recorded yet: {}", error.what()));
  }
}

void StagingLoader::remove_strays() {
  std::vector<StagingId> strays;
  for (const StagingId id : backing_) {
    if (tree_.find(id) == nullptr) strays.push_back(id);
  }
  state_.remove_backing(strays);
}

// Does not hold `mutex`, which is never held across database calls: no other thread has the tree
// yet, and the thread that removes unused bytes does not use it.
void Staging::State::load() {
  const std::scoped_lock lock(changes);
  StagingLoader(*this, read_backing(directory)).run();
}

}  // namespace weightfs
