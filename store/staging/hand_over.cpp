// Handing over: a seal is a mark on a directory; every change checks the directories above it for
// one. The move itself moves a single entry.

#include <algorithm>
#include <cerrno>
#include <unordered_set>
#include <utility>

#include "store/staging/state.hpp"

namespace weightfs {

// ---- the seal ----

// Every change holds `changes`, so none is in progress when the mark is set.
Staging::Seal::Seal(Staging& staging, StagingId directory)
    : staging_(staging), directory_(directory) {
  State& state = *staging.state_;
  const std::scoped_lock lock(state.changes, state.mutex);
  state.tree.directory(directory);
  state.tree.require_changeable(directory, StagingTree::Change::attributes);
  bool is_busy = StagingTree::is_root(directory);
  state.tree.walk(directory, [&](const std::string&, StagingId, const StagingInode& inode) {
    is_busy |= inode.is_being_sealed;
  });
  if (is_busy) throw PosixError(EBUSY, "seal " + state.tree.path_of(directory));
  state.tree.get(directory).is_being_sealed = true;
}

Staging::Seal::~Seal() {
  const std::scoped_lock lock(staging_.state_->mutex);
  if (StagingInode* inode = staging_.state_->tree.find(directory_)) {
    inode->is_being_sealed = false;
  }
}

std::vector<StagedFile> Staging::list(StagingId directory) const {
  std::vector<StagedFile> files;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tree.directory(directory);
    state_->tree.walk(directory,
                      [&](const std::string& path, StagingId id, const StagingInode& inode) {
                        files.push_back({path, id, inode.record.mode & S_IFMT, inode.generation,
                                         inode.writers, inode.record.uid});
                      });
  }
  std::sort(files.begin(), files.end(),
            [](const StagedFile& a, const StagedFile& b) { return a.path < b.path; });
  return files;
}

bool Staging::wait_unwritten(StagingId directory, const Context& context,
                             Clock::time_point until) const {
  std::unique_lock lock(state_->mutex);
  const auto is_unwritten = [&] {
    bool is_written = false;
    state_->tree.directory(directory);
    state_->tree.walk(directory, [&](const std::string&, StagingId, const StagingInode& inode) {
      is_written |= inode.writers > 0;
    });
    return !is_written;
  };
  const Clock::time_point end = std::min(until, context.deadline);
  if (state_->unwritten.wait_until(lock, context.stop, end, is_unwritten)) return true;
  if (context.stop.stop_requested() || end < until) context.check("waiting for writers to close");
  return false;
}

std::uint64_t Staging::generation(StagingId id) const {
  const std::scoped_lock lock(state_->mutex);
  return state_->tree.get(id).generation;
}

std::optional<std::string> Staging::find_lost(StagingId directory) const {
  const std::scoped_lock lock(state_->mutex);
  std::optional<std::string> lost;
  state_->tree.walk(directory, [&](const std::string& path, StagingId, const StagingInode& inode) {
    if (inode.record.is_lost) lost = path;
  });
  return lost;
}

bool Staging::is_lost(StagingId file) const {
  const std::scoped_lock lock(state_->mutex);
  return state_->tree.get(file).record.is_lost;
}

void Staging::note_lost(StagingId directory) {
  std::vector<StagingId> files;
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->tree.find(directory) == nullptr) return;
    state_->tree.walk(directory, [&](const std::string&, StagingId id, const StagingInode& inode) {
      if (inode.is_file()) files.push_back(id);
    });
  }
  state_->set_lost(files, true);
}

void Staging::note_lost_file(StagingId file) { state_->set_lost({&file, 1}, true); }

// ---- moving ----

void Staging::hand_over(StagingId directory, std::string_view new_name,
                        std::vector<Db::Change> also) {
  StagingChange change(*state_);
  const StagingInode& inode = change.tree().directory(directory);
  if (StagingTree::is_root(directory)) throw PosixError(EBUSY, "hand over a root");
  if (change.tree().root_of(directory) != kStagingRoot) {
    throw PosixError(EROFS, "hand over " + change.tree().path_of(directory));
  }
  if (!is_entry_name(new_name)) throw PosixError(EINVAL, "hand over under that name");
  if (change.tree().child(kPublishRoot, new_name)) {
    throw PosixError(EBUSY, "hand over " + change.tree().path_of(directory) + " as " +
                                change.tree().path_of(kPublishRoot, new_name));
  }
  change.touch(inode.parent);
  change.unlink(inode.parent, inode.name);
  change.link(kPublishRoot, new_name, directory);
  change.touch(kPublishRoot);
  change.touch_ctime(directory);
  change.also(std::move(also));
  change.write(Durability::power);
}

namespace {

void require_handed_over(const StagingTree& tree, StagingId directory) {
  if (tree.directory(directory).parent != kPublishRoot) {
    throw PosixError(EINVAL, "find " + tree.path_of(directory) + " in publish");
  }
}

}  // namespace

void Staging::take_back(StagingId directory, StagingId new_parent, std::string_view new_name,
                        std::vector<Db::Change> also) {
  StagingChange change(*state_);
  const StagingTree& tree = change.tree();
  require_handed_over(tree, directory);
  tree.directory(new_parent);
  if (new_name.size() > kNameBytesMax) throw PosixError(ENAMETOOLONG, "take back");
  if (!is_entry_name(new_name)) throw PosixError(EINVAL, "take back under that name");
  if (tree.child(new_parent, new_name)) {
    throw PosixError(EEXIST, "take back as " + tree.path_of(new_parent, new_name));
  }
  tree.require_changeable(new_parent, StagingTree::Change::attributes);
  change.unlink(kPublishRoot, tree.get(directory).name);
  change.link(new_parent, new_name, directory);
  change.touch(kPublishRoot);
  change.touch(new_parent);
  change.touch_ctime(directory);
  change.allow_removal(directory, false);
  // There may have been no room for the marks, and the record of the hand-over goes now.
  tree.walk(directory, [&](const std::string&, StagingId id, const StagingInode& inode) {
    if (inode.record.is_lost) change.set(id, inode.record);
  });
  change.also(std::move(also));
  change.write(Durability::power);
}

void Staging::allow_removal(StagingId directory) {
  StagingChange change(*state_);
  require_handed_over(change.tree(), directory);
  change.allow_removal(directory, true);
  change.write();
}

// ---- the end ----

namespace {

// Where the unpublished rest goes.
StagingOrigin find_place(const StagingTree& tree, const StagingOrigin& origin,
                         std::uint64_t number) {
  StagingOrigin place{kStagingRoot, origin.name};
  const StagingInode* parent = tree.find(origin.parent);
  if (parent != nullptr && parent->is_directory() && tree.root_of(origin.parent) == kStagingRoot &&
      tree.is_changeable(origin.parent)) {
    place.parent = origin.parent;
  }
  for (unsigned attempt = 1; tree.child(place.parent, place.name); attempt++) {
    std::string suffix = ".unpublished-" + std::to_string(number);
    if (attempt > 1) suffix += "." + std::to_string(attempt);
    // Do not cut within a UTF-8 character.
    std::size_t size = std::min(origin.name.size(), kNameBytesMax - suffix.size());
    while (size > 0 && size < origin.name.size() && (origin.name[size] & 0xC0) == 0x80) size--;
    place.name = origin.name.substr(0, size) + suffix;
  }
  return place;
}

}  // namespace

std::string Staging::finish(StagingId directory, std::span<const StagingId> published,
                            const StagingOrigin& origin, std::uint64_t number,
                            std::vector<Db::Change> also) {
  StagingChange change(*state_);
  const StagingTree& tree = change.tree();
  require_handed_over(tree, directory);
  if (!is_entry_name(origin.name)) throw PosixError(EINVAL, "put back under that name");

  // Children first: a directory stays if anything in it does.
  std::vector<StagingId> below;
  tree.walk(directory,
            [&](const std::string&, StagingId id, const StagingInode&) { below.push_back(id); });
  const std::unordered_set<StagingId> leaves(published.begin(), published.end());
  std::unordered_set<StagingId> stays;
  for (auto id = below.rbegin(); id != below.rend(); ++id) {
    const StagingInode& inode = tree.get(*id);
    const bool is_left = inode.is_directory() ? stays.contains(*id) : !leaves.contains(*id);
    if (is_left) {
      stays.insert(inode.parent);
      if (inode.record.is_lost) change.set(*id, inode.record);  // as in take_back()
    } else {
      change.publish(*id);
    }
  }
  std::string left;
  if (stays.contains(directory)) {
    const StagingOrigin place = find_place(tree, origin, number);
    left = tree.path_of(place.parent, place.name).substr(sizeof "staging/" - 1);
    change.unlink(kPublishRoot, tree.get(directory).name);
    change.link(place.parent, place.name, directory);
    change.touch(place.parent);
    change.touch_ctime(directory);
    change.allow_removal(directory, false);
  } else {
    change.publish(directory);
  }
  change.touch(kPublishRoot);
  change.also(std::move(also));
  state_->remove_backing(change.write(Durability::power));
  return left;
}

}  // namespace weightfs
