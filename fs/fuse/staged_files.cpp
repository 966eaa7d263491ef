#include "fs/fuse/staged_files.hpp"

#include <fcntl.h>

#include <utility>

namespace weightfs::fs {
namespace {

using FilePtr = std::shared_ptr<const File>;

FilePtr open_shared(const std::filesystem::path& path, int flags) {
  return std::make_shared<const File>(File::open(path, flags));
}

}  // namespace

bool StagedFiles::join(StagingId id, bool writes) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end() || (writes && found->second.writer == nullptr)) return false;
  found->second.opens++;
  if (writes) found->second.writers++;
  return true;
}

void StagedFiles::hold(StagingId id, const std::filesystem::path& path, bool writes) {
  if (join(id, writes)) return;
  DescriptorClaim reader_claim(share_, 1, path), writer_claim;
  if (writes) writer_claim = DescriptorClaim(share_, 1, path);
  FilePtr reader = open_shared(path, O_RDONLY);  // system calls: not under the lock
  FilePtr writer = writes ? open_shared(path, O_RDWR) : nullptr;
  const std::lock_guard lock(mutex_);
  Held& held = held_[id];
  if (held.reader == nullptr) {
    held.reader = std::move(reader);
    held.reader_claim = std::move(reader_claim);
  }
  if (writes && held.writer == nullptr) {
    held.writer = std::move(writer);
    held.writer_claim = std::move(writer_claim);
  }
  held.opens++;
  if (writes) held.writers++;
}

void StagedFiles::release(StagingId id, bool writes) noexcept {
  Held last;  // closed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  Held& held = found->second;
  if (writes && held.writers > 0 && --held.writers == 0) {
    last.writer = std::move(held.writer);
    last.writer_claim = std::move(held.writer_claim);
  }
  if (--held.opens > 0) return;
  last = std::move(held);
  held_.erase(found);
}

FilePtr StagedFiles::find_reader(StagingId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  return found == held_.end() ? nullptr : found->second.reader;
}

FilePtr StagedFiles::find_writer(StagingId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  return found == held_.end() ? nullptr : found->second.writer;
}

}  // namespace weightfs::fs
