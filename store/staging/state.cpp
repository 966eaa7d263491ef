#include "store/staging/state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"

namespace weightfs {

namespace {

// Ids are reserved in blocks, so that creating a file takes one write; a restart loses the rest of
// a block.
constexpr StagingId kIdsReserved = 4096;

timespec present_time() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now;
}

}  // namespace

Staging::State::State(Db& db_, std::filesystem::path directory_, StagingOptions options_)
    : db(db_), directory(std::move(directory_)), options(std::move(options_)) {
  make_directories(directory, 0700);
  directory_file = File::open(directory, O_RDONLY | O_DIRECTORY);
  remover_ = std::jthread([this](const std::stop_token& stop) { remove_unused_until(stop); });
}

// The backing file may have been removed by a concurrent last release: ESTALE.
File Staging::State::open_backing(StagingId id, int flags) const {
  const int fd =
      ::openat(directory_file.fd(), backing_name(id).c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    throw PosixError(errno == ENOENT ? ESTALE : errno, "open " + backing_path(id).string());
  }
  return File(fd);
}

void Staging::State::make_backing(StagingId id) const {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  const File file(::openat(directory_file.fd(), backing_name(id).c_str(), kFlags, 0600));
  if (!file) throw PosixError(errno, "make " + backing_path(id).string());
}

void Staging::State::remove_backing(std::span<const StagingId> ids) const noexcept {
  for (const StagingId id : ids) {
    if (::unlinkat(directory_file.fd(), backing_name(id).c_str(), 0) == 0 || errno == ENOENT) {
      continue;
    }
    log_if_possible(LogLevel::warning, [&, error = errno] {
      return fmt::format("cannot remove {}, which is no longer used: {}", backing_path(id).string(),
                         describe_errno(error, "unlink it"));
    });
  }
}

void Staging::State::touch_backing(StagingId id) const noexcept {
  // The file may already be gone.
  (void)!::fchmodat(directory_file.fd(), backing_name(id).c_str(), 0600, 0);
}

void Staging::State::sync_records() {
  std::unique_lock lock(mutex);
  const std::uint64_t written = records_written;
  if (records_synced >= written) return;
  lock.unlock();
  db.sync();
  lock.lock();
  records_synced = std::max(records_synced, written);
}

// ---- opens ----

void Staging::State::open(StagingId id, bool writes) {
  const std::scoped_lock lock(mutex);
  StagingInode& inode = tree.get(id);
  if (writes) {
    tree.file(id);
    tree.require_changeable(id, StagingTree::Change::attributes);
    inode.writers++;
    inode.generation++;
  }
  inode.opens++;
}

bool Staging::State::has_writers(StagingId id) noexcept {
  const std::scoped_lock lock(mutex);
  const StagingInode* inode = tree.find(id);
  return inode != nullptr && inode->writers > 0;
}

bool Staging::State::release(StagingId id, bool writes) noexcept {
  const std::scoped_lock lock(mutex);
  StagingInode* inode = tree.find(id);
  if (inode == nullptr || inode->opens == 0) return false;
  inode->opens--;
  bool is_last_writer = false;
  if (writes && inode->writers > 0) {
    inode->generation++;
    is_last_writer = --inode->writers == 0;
  }
  if (is_last_writer) unwritten.notify_all();
  const bool has_name = inode->parent != 0 || StagingTree::is_root(id);
  if (inode->opens > 0 || has_name || inode->is_directory()) return is_last_writer;
  if (inode->is_file()) {
    try {
      unused.push_back(id);
      unused_changed.notify_all();
    } catch (const std::bad_alloc&) {
      // Its bytes go when the staging area is opened again.
    }
  }
  tree.erase(id);
  return is_last_writer;
}

WriterPin::WriterPin(Staging::State& state, StagingId id) : state_(state), id_(id) {
  const std::scoped_lock lock(state.mutex);
  state.tree.file(id);
  state.tree.require_changeable(id, StagingTree::Change::bytes);
  StagingInode& inode = state.tree.get(id);
  inode.opens++;
  inode.writers++;
  inode.generation++;
}

void Staging::State::resize(StagingId id, std::uint64_t size_bytes) {
  const WriterPin pin(*this, id);
  const File file = open_backing(id, O_WRONLY);
  struct stat bytes {};
  if (::fstat(file.fd(), &bytes) != 0) throw PosixError(errno, "stat " + backing_path(id).string());
  const auto size_before = static_cast<std::uint64_t>(bytes.st_size);
  const std::uint64_t more = size_bytes - std::min(size_bytes, size_before);
  const GrowthPin growth(growing_bytes, more);
  if (more > 0) make_room(more, growth.others() + lacking_bytes());
  if (::ftruncate(file.fd(), static_cast<off_t>(size_bytes)) != 0) {
    throw PosixError(errno, "set the size of " + backing_path(id).string());
  }
}

void Staging::State::set_lost(std::span<const StagingId> files, bool is_lost) {
  StagingChange change(*this);
  bool is_changed = false;
  for (const StagingId id : files) {
    StagingInode* const inode = tree.find(id);
    // A mark is written again: there may have been no room for it.
    if (inode == nullptr || !(is_lost || inode->record.is_lost)) continue;
    inode->record.is_lost = is_lost;
    unrecorded_lost.insert(id);  // until the record is written: anything that follows may fail
    change.set(id, inode->record);
    is_changed = true;
  }
  if (!is_changed) return;
  try {
    change.write(Durability::power);
  } catch (const Error& error) {
    log_warning(fmt::format("staging: not recorded yet of which files the disk lost bytes: {}",
                            error.what()));
  }
}

bool Staging::State::empty_unused(StagingId directory_id, std::string_view name) {
  std::optional<StagingId> id;
  {
    const std::scoped_lock lock(mutex);
    tree.directory(directory_id);
    id = tree.child(directory_id, name);
    if (!id) return false;
    StagingInode& inode = tree.get(*id);
    if (!inode.is_file() || inode.opens > 0) return false;
    tree.require_changeable(*id, StagingTree::Change::removal);
    inode.opens++;
    inode.writers++;
    inode.generation++;
  }
  const int status = ::truncate(backing_path(*id).c_str(), 0);
  release(*id, true);
  return status == 0;
}

// ---- bytes without a name ----

void Staging::State::remove_later(std::vector<StagingId> ids) {
  if (ids.empty()) return;
  const std::scoped_lock lock(mutex);
  unused.insert(unused.end(), ids.begin(), ids.end());
  unused_changed.notify_all();
}

// Gathers for a moment, so that one sync serves many removals.
void Staging::State::remove_unused_until(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kGather{50}, kRetry{2000};
  std::chrono::milliseconds wait = kGather;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      unused_changed.wait(lock, stop, [&] { return !unused.empty(); });
      unused_changed.wait_for(lock, stop, wait, [] { return false; });
    }
    wait = try_to_remove_unused() ? kGather : kRetry;
  }
  try_to_remove_unused();
}

/// What is forgotten for want of memory goes when the staging area is opened again.
bool Staging::State::try_to_remove_unused() noexcept {
  try {
    return remove_unused();
  } catch (const std::exception& error) {
    log_caught("freeing the space of removed files", error);
    return false;
  }
}

bool Staging::State::remove_unused() {
  const std::scoped_lock one_at_a_time(removing);
  std::vector<StagingId> ids;
  {
    const std::scoped_lock lock(mutex);
    ids.swap(unused);
  }
  if (ids.empty()) return true;
  try {
    sync_records();
  } catch (const Error& error) {
    remove_later(std::move(ids));
    log_warning(fmt::format("cannot free the space of removed files: {}", error.what()));
    return false;
  }
  remove_backing(ids);
  return true;
}

void Staging::State::make_room(std::uint64_t bytes, std::uint64_t coming_bytes) {
  if (!options.make_room) return;
  const auto has_made = [&](std::uint64_t wanted) {
    try {
      options.make_room(wanted);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::no_space) throw;
      return false;
    }
  };
  const std::uint64_t all =
      coming_bytes > 0 ? std::min(bytes, GrowthPin::kMost) + coming_bytes : bytes;
  if (has_made(all)) return;
  remove_unused();
  // A file may stay as sparse as it is: what only may come is no reason to refuse.
  if (coming_bytes > 0 && has_made(all)) return;
  options.make_room(bytes);
}

std::uint64_t Staging::State::lacking_bytes(StagingId except) const {
  std::vector<StagingId> written;
  {
    const std::scoped_lock lock(mutex);
    for (const auto& [id, inode] : tree.inodes()) {
      if (inode.writers > 0 && id != except) written.push_back(id);
    }
  }
  std::uint64_t lacking = 0;
  for (const StagingId id : written) {
    struct stat found {};
    if (::fstatat(directory_file.fd(), backing_name(id).c_str(), &found, 0) != 0) continue;
    const auto size = std::min(static_cast<std::uint64_t>(found.st_size), GrowthPin::kMost);
    const auto there = static_cast<std::uint64_t>(found.st_blocks) * 512;
    lacking = std::min(lacking + size - std::min(size, there), GrowthPin::kMost);
  }
  return lacking;
}

// ---- removed directories ----

void Staging::State::keep_removed_directory(StagingId id) {
  constexpr std::size_t kKept = 4096;
  removed_directories.push_back(id);
  if (removed_directories.size() <= kKept) return;
  tree.erase(removed_directories.front());
  removed_directories.pop_front();
}

// ---- a change ----

StagingChange::StagingChange(Staging::State& state)
    : state_(state), order_(state.changes), lock_(state.mutex), now_(present_time()) {}

StagingId StagingChange::take_id() {
  if (state_.tree.given_out >= state_.reserved_ids) {
    const StagingId until = state_.tree.given_out + kIdsReserved;
    records_.push_back({ColumnFamily::store, "staging_ids", inode_key(until)});
    steps_.emplace_back([this, until] { state_.reserved_ids = until; });
  }
  return state_.tree.given_out++;
}

void StagingChange::add(StagingId id, StagingRecord record) {
  records_.push_back({ColumnFamily::inodes, inode_key(id), encode(record)});
  steps_.emplace_back([this, id, record = std::move(record)] { state_.tree.add(id, record); });
}

void StagingChange::set(StagingId id, StagingRecord record) {
  // An inode without a name has no record.
  if (state_.tree.get(id).parent != 0 || StagingTree::is_root(id)) {
    records_.push_back({ColumnFamily::inodes, inode_key(id), encode(record)});
  }
  steps_.emplace_back([this, id, record = std::move(record)] {
    if (StagingInode* inode = state_.tree.find(id)) inode->record = record;
  });
}

void StagingChange::link(StagingId directory, std::string_view name, StagingId id) {
  records_.push_back({ColumnFamily::names, name_key(directory, name), inode_key(id)});
  steps_.emplace_back(
      [this, directory, name = std::string(name), id] { state_.tree.link(directory, name, id); });
}

void StagingChange::unlink(StagingId directory, std::string_view name) {
  records_.push_back({ColumnFamily::names, name_key(directory, name), std::nullopt});
  steps_.emplace_back(
      [this, directory, name = std::string(name)] { state_.tree.unlink(directory, name); });
}

void StagingChange::drop(StagingId id) {
  records_.push_back({ColumnFamily::inodes, inode_key(id), std::nullopt});
  steps_.emplace_back([this, id] { forget(id); });
}

// An inode without a name lives on while it is open.
void StagingChange::forget(StagingId id) {
  StagingInode& inode = state_.tree.get(id);
  inode.record.ctime = now_;
  if (inode.is_directory()) {
    state_.keep_removed_directory(id);
  } else if (inode.opens == 0) {
    if (inode.is_file()) gone_.push_back(id);
    state_.tree.erase(id);
  } else if (inode.is_file() && !inode.is_published) {
    touched_.push_back(id);
  }
}

void StagingChange::touch(StagingId directory) {
  StagingRecord record = state_.tree.get(directory).record;
  record.mtime = record.ctime = now_;
  set(directory, std::move(record));
}

void StagingChange::touch_ctime(StagingId id) {
  StagingRecord record = state_.tree.get(id).record;
  record.ctime = now_;
  if (S_ISREG(record.mode)) return touched_.push_back(id);
  set(id, std::move(record));
}

void StagingChange::publish(StagingId id) {
  const StagingInode& inode = state_.tree.get(id);
  unlink(inode.parent, inode.name);
  steps_.emplace_back([this, id] { state_.tree.get(id).is_published = true; });
  drop(id);
}

void StagingChange::allow_removal(StagingId directory, bool is_allowed) {
  steps_.emplace_back([this, directory, is_allowed] {
    state_.tree.get(directory).is_removal_allowed = is_allowed;
  });
}

void StagingChange::also(std::vector<Db::Change> changes) {
  std::move(changes.begin(), changes.end(), std::back_inserter(records_));
}

void StagingChange::unlock() {
  if (lock_.owns_lock()) lock_.unlock();
}

// First in the batch: what the change itself says of such a file counts.
void StagingChange::add_unrecorded() {
  if (state_.unrecorded_lost.empty() && !state_.unrecorded_boot) return;
  if (!lock_.owns_lock()) lock_.lock();
  std::vector<Db::Change> marks;
  if (const auto& boot = state_.unrecorded_boot) {
    marks.push_back({ColumnFamily::store, std::string(kStagingBootKey), *boot});
  }
  for (const StagingId id : state_.unrecorded_lost) {
    const StagingInode* const inode = state_.tree.find(id);
    if (inode == nullptr || inode->parent == 0) continue;
    marks.push_back({ColumnFamily::inodes, inode_key(id), encode(inode->record)});
  }
  records_.insert(records_.begin(), marks.begin(), marks.end());
}

std::vector<StagingId> StagingChange::write(Durability durability) {
  if (!records_.empty()) {  // else it needs no room, and must not fail where there is none
    add_unrecorded();
    unlock();
    state_.db.write(records_, durability);
    state_.unrecorded_lost.clear();
    state_.unrecorded_boot.reset();
  }
  if (!lock_.owns_lock()) lock_.lock();
  state_.records_written++;
  for (const auto& step : steps_) step();
  unlock();
  for (const StagingId id : touched_) state_.touch_backing(id);
  return std::move(gone_);
}

}  // namespace weightfs
