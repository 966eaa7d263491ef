#include "store/staging/tree.hpp"

#include <cerrno>
#include <utility>
#include <vector>

namespace weightfs {

namespace {

std::string inode_text(StagingId id) { return "find inode " + std::to_string(id) + " of staging"; }

}  // namespace

const StagingInode* StagingTree::find(StagingId id) const {
  const auto at = inodes_.find(id);
  return at == inodes_.end() ? nullptr : &at->second;
}

StagingInode* StagingTree::find(StagingId id) {
  return const_cast<StagingInode*>(std::as_const(*this).find(id));
}

const StagingInode& StagingTree::get(StagingId id) const {
  const StagingInode* inode = find(id);
  if (inode == nullptr) throw PosixError(ESTALE, inode_text(id));
  return *inode;
}

StagingInode& StagingTree::get(StagingId id) {
  return const_cast<StagingInode&>(std::as_const(*this).get(id));
}

const StagingInode& StagingTree::directory(StagingId id) const {
  const StagingInode* inode = find(id);
  const bool was_removed = inode == nullptr ? id >= kFirstStagingId && id < given_out
                                            : inode->parent == 0 && !is_root(id);
  if (inode != nullptr && !inode->is_directory()) throw PosixError(ENOTDIR, inode_text(id));
  if (was_removed) throw PosixError(ENOENT, inode_text(id));
  return get(id);
}

const StagingInode& StagingTree::file(StagingId id) const {
  const StagingInode& inode = get(id);
  if (inode.is_directory()) throw PosixError(EISDIR, "use the bytes of " + path_of(id));
  if (!inode.is_file()) throw PosixError(EINVAL, "use the bytes of " + path_of(id));
  return inode;
}

std::optional<StagingId> StagingTree::child(StagingId directory, std::string_view name) const {
  const StagingInode& inode = get(directory);
  const auto at = inode.entries.find(name);
  return at == inode.entries.end() ? std::nullopt : std::optional(at->second.id);
}

StagingId StagingTree::root_of(StagingId id) const {
  while (const StagingId parent = get(id).parent) id = parent;
  return id;
}

bool StagingTree::is_below(StagingId id, StagingId ancestor) const {
  for (; id != 0; id = get(id).parent) {
    if (id == ancestor) return true;
  }
  return false;
}

std::string StagingTree::path_of(StagingId id) const {
  std::string path;
  for (const StagingInode* inode = &get(id); inode->parent != 0; inode = &get(id)) {
    path.insert(0, "/" + inode->name);
    id = inode->parent;
  }
  if (!is_root(id)) return "";
  return (id == kStagingRoot ? "staging" : "publish") + path;
}

std::string StagingTree::path_of(StagingId directory, std::string_view name) const {
  return path_of(directory) + "/" + std::string(name);
}

void StagingTree::walk(
    StagingId directory,
    const std::function<void(const std::string&, StagingId, const StagingInode&)>& each) const {
  std::vector<std::pair<std::string, StagingId>> pending{{"", directory}};
  while (!pending.empty()) {
    const auto [prefix, at] = std::move(pending.back());
    pending.pop_back();
    for (const auto& [name, entry] : get(at).entries) {
      const StagingInode& inode = get(entry.id);
      const std::string path = prefix + name;
      each(path, entry.id, inode);
      if (inode.is_directory()) pending.emplace_back(path + "/", entry.id);
    }
  }
}

void StagingTree::require_changeable(StagingId id, Change change) const {
  const StagingInode& inode = get(id);
  bool is_removal_allowed = false;
  for (StagingId at = id; at != 0;) {
    const StagingInode& ancestor = get(at);
    is_removal_allowed |= ancestor.is_removal_allowed;
    if (ancestor.is_being_sealed && !(change == Change::bytes && inode.writers > 0)) {
      throw PosixError(EBUSY, "change " + path_of(id) + ", which is being handed over");
    }
    const bool is_sealed = at == kPublishRoot || ancestor.is_published;
    if (is_sealed && !(change == Change::removal && is_removal_allowed)) {
      throw PosixError(EROFS, "change " + path_of(id) + ", which was handed over");
    }
    at = ancestor.parent;
  }
}

bool StagingTree::is_changeable(StagingId id) const {
  try {
    require_changeable(id, Change::attributes);
    return true;
  } catch (const PosixError&) {
    return false;
  }
}

StagingInode& StagingTree::add(StagingId id, StagingRecord record) {
  StagingInode inode;
  inode.record = std::move(record);
  return inodes_.insert_or_assign(id, std::move(inode)).first->second;
}

void StagingTree::erase(StagingId id) { inodes_.erase(id); }

void StagingTree::link(StagingId directory, const std::string& name, StagingId id) {
  StagingInode& parent = get(directory);
  StagingInode& inode = get(id);
  const auto [at, is_new] = parent.entries.try_emplace(name);
  if (is_new) {
    at->second.position = next_position_++;
    parent.positions.emplace(at->second.position, &at->first);
  } else if (StagingInode* old = find(at->second.id)) {
    // Unless an exchange has already given it another name.
    if (old->parent == directory && old->name == name) {
      old->parent = 0;
      old->name.clear();
    }
    if (old->is_directory()) parent.subdirectories--;
  }
  at->second.id = id;
  inode.parent = directory;
  inode.name = name;
  if (inode.is_directory()) parent.subdirectories++;
}

void StagingTree::unlink(StagingId directory, const std::string& name) {
  StagingInode& parent = get(directory);
  const auto at = parent.entries.find(name);
  StagingInode& inode = get(at->second.id);
  if (inode.is_directory()) parent.subdirectories--;
  if (inode.parent == directory && inode.name == name) {
    inode.parent = 0;
    inode.name.clear();
  }
  parent.positions.erase(at->second.position);
  parent.entries.erase(at);
}

}  // namespace weightfs
