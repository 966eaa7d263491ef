// Open addressing with linear probing.  Invariant: there is no free slot between a record's home
// and its slot, so a search ends at the first free slot.  Erasing preserves it by moving later
// records of the same run back into the hole; there are no tombstones.
#include "fs/fuse/open_table.hpp"

#include <algorithm>

namespace weightfs::fs {

std::size_t OpenTable::home_of(Inode inode) const noexcept {
  constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // spreads neighbouring numbers
  return static_cast<std::size_t>((inode * kGoldenRatio >> 32) % records_.size());
}

std::size_t OpenTable::slot_of(Inode inode) const noexcept {
  if (records_.empty()) return 0;
  std::size_t slot = home_of(inode);
  for (std::size_t tried = 0; tried < records_.size(); tried++, slot = next(slot)) {
    if (records_[slot].inode == inode || records_[slot].inode == 0) return slot;
  }
  return records_.size();
}

void OpenTable::erase(std::size_t hole) noexcept {
  const std::size_t size = records_.size();
  std::size_t slot = next(hole);
  for (std::size_t tried = 1; tried < size && records_[slot].inode != 0; tried++) {
    // A record may move into the hole unless its home lies after the hole.
    const std::size_t from_home = (slot + size - home_of(records_[slot].inode)) % size;
    const std::size_t from_hole = (slot + size - hole) % size;
    if (from_home >= from_hole) {
      records_[hole] = records_[slot];
      hole = slot;
    }
    slot = next(slot);
  }
  records_[hole] = OpenRecord{};
}

std::optional<OpenTable::Opened> OpenTable::join(Inode inode) {
  const std::size_t slot = slot_of(inode);
  if (slot == records_.size() || records_[slot].inode != inode) return std::nullopt;
  OpenRecord& record = records_[slot];
  record.opens++;
  return Opened{record.serving, record.backing_id, record.image};
}

std::optional<OpenTable::Opened> OpenTable::acquire(Inode inode, const Register& register_backing,
                                                    const Unregister& unregister,
                                                    std::uint64_t image) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto joined = join(inode)) return joined;
  }
  const std::int32_t backing_id = register_backing();
  const Opened mine{backing_id > 0 ? Serving::passthrough : Serving::daemon, backing_id, image};
  std::optional<Opened> decided;
  {
    const std::lock_guard lock(mutex_);
    decided = join(inode);
    const std::size_t slot = slot_of(inode);
    if (!decided && slot < records_.size()) {
      records_[slot] = {inode, 1, mine.serving, backing_id, 0, image};
      return mine;
    }
  }
  unregister(backing_id);  // another open came first, or the table is full
  return decided;
}

std::optional<OpenTable::Opened> OpenTable::release(Inode inode, const Unregister& unregister) {
  Opened ended;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t slot = slot_of(inode);
    if (slot == records_.size() || records_[slot].inode != inode) return std::nullopt;
    if (--records_[slot].opens > 0) return std::nullopt;
    ended = {records_[slot].serving, records_[slot].backing_id, records_[slot].image};
    erase(slot);
  }
  unregister(ended.backing_id);
  return ended;
}

bool OpenTable::is_open(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(records_.begin(), records_.end(), [&](const OpenRecord& record) {
    const InodeParts parts = parts_of(record.inode);
    return parts.kind == InodeKind::version && parts.version == version;
  });
}

std::uint64_t OpenTable::open_count(Serving serving) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t opens = 0;
  for (const OpenRecord& record : records_) {
    if (record.inode != 0 && record.serving == serving) opens += record.opens;
  }
  return opens;
}

}  // namespace weightfs::fs
