#include "store/local/delta_table.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/database/record_keys.hpp"
#include "store/local/discard.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

std::string name_of(const DeltaId& id) {
  const VersionPair versions = id.versions;
  if (id.with_old) return fmt::format("{}-{}.with-old", versions.from, versions.to);
  return versions.is_step() ? std::to_string(versions.to)
                            : fmt::format("{}-{}", versions.from, versions.to);
}

bool is_recorded(const DeltaId& id) { return id.versions.is_step() && !id.with_old; }

}  // namespace

DeltaTable::DeltaTable(Db& db, fs::path directory, fs::path temporary)
    : db_(db), disk_{std::move(directory), std::move(temporary)} {
  load();
  remove_strays();
}

void DeltaTable::use_memory(fs::path directory, fs::path temporary) {
  memory_ = {std::move(directory), std::move(temporary)};
}

void DeltaTable::load() {
  std::vector<Db::Change> gone;
  db_.scan(ColumnFamily::deltas, "", [&](std::string_view key, std::string_view value) {
    const std::uint64_t version = version_of_key(key, 8, "deltas");
    if (value.size() != 8) throw_bad_record("deltas");
    std::error_code error;
    const std::uint64_t size = fs::file_size(path_of(step_to(version)), error);
    if (!error && size == load_be(value)) {
      deltas_[step_to(version)] = {size, true, Home::disk};
    } else {
      gone.push_back({ColumnFamily::deltas, std::string(key), std::nullopt});
    }
  });
  try {
    if (!gone.empty()) db_.write(gone);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

void DeltaTable::remove_strays() const {
  std::set<fs::path> known;
  for (const auto& [id, delta] : deltas_) known.insert(path_of(id));
  for (const auto& entry : fs::directory_iterator(disk_.files)) {
    if (!known.contains(entry.path())) discard(entry.path(), disk_.temporary);
  }
}

const DeltaTable::Directories& DeltaTable::directories_of(Home home) const {
  return home == Home::memory ? memory_ : disk_;
}

fs::path DeltaTable::path_of(DeltaId id, Home home) const {
  return directories_of(home).files / (name_of(id) + ".safetensors");
}

std::optional<fs::path> DeltaTable::find(DeltaId id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(id);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  return path_of(id, found->second.home);
}

std::optional<std::uint64_t> DeltaTable::find_bytes(DeltaId id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(id);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  return found->second.bytes;
}

std::optional<fs::path> DeltaTable::find_to_read(DeltaId id) {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(id);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  if (ahead_.contains(id)) counters_.served++;
  return path_of(id, found->second.home);
}

std::optional<fs::path> DeltaTable::begin(DeltaId id, std::uint64_t bytes, Home home) {
  const std::scoped_lock lock(mutex_);
  const Delta delta{std::min(bytes, kSizeBytesMax), false, home};
  if (!deltas_.try_emplace(id, delta).second) return std::nullopt;
  return directories_of(home).temporary / ("delta-" + random_hex(8));
}

void DeltaTable::set_bytes(DeltaId id, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  deltas_.at(id).bytes = std::min(bytes, kSizeBytesMax);
}

void DeltaTable::wait_begun(DeltaId id, const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  std::unique_lock lock(mutex_);
  const auto is_begun = [&] {
    const auto found = deltas_.find(id);
    return found != deltas_.end() && !found->second.is_complete;
  };
  while (!ended_.wait_until(lock, context.stop,
                            std::min(context.deadline, Clock::now() + kLookAgain),
                            [&] { return !is_begun(); })) {
    context.check("waiting for a delta that is made with its version");
  }
}

void DeltaTable::move_to_name(DeltaId id, const fs::path& file, const Delta& delta) const {
  if (const std::uint64_t size = fs::file_size(file); size != delta.bytes) {
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes, not the {} of the delta {}",
                                           file.string(), size, delta.bytes, name_of(id)));
  }
  fs::rename(file, path_of(id, delta.home));
}

void DeltaTable::record(DeltaId id, std::uint64_t bytes) {
  fsync_directory(disk_.files);
  if (!is_recorded(id)) return;
  std::string value;
  append_be64(value, bytes);
  db_.write({{ColumnFamily::deltas, version_key(id.versions.to), std::move(value)}});
}

void DeltaTable::complete(DeltaId id, const fs::path& file) {
  Delta delta;
  {
    const std::scoped_lock lock(mutex_);
    delta = deltas_.at(id);
  }
  move_to_name(id, file, delta);
  try {
    record(id, delta.bytes);
  } catch (const Error&) {
    discard(path_of(id), disk_.temporary);
    throw;
  }
  const std::scoped_lock lock(mutex_);
  deltas_[id].is_complete = true;
  counters_.on_demand++;
  ended_.notify_all();
}

void DeltaTable::complete_ahead(DeltaId id, const fs::path& file) {
  Delta delta;
  {
    const std::scoped_lock lock(mutex_);
    delta = deltas_.at(id);
  }
  move_to_name(id, file, delta);
  const std::scoped_lock lock(mutex_);
  deltas_[id].is_complete = true;
  ahead_.insert(id);
  if (delta.home == Home::disk) unsynced_.insert(id);
  counters_.ahead++;
  ended_.notify_all();
}

void DeltaTable::record_synced() {
  for (;;) {
    Delta delta;
    std::optional<DeltaId> id;
    {
      const std::scoped_lock lock(mutex_);
      if (unsynced_.empty()) return;
      id = *unsynced_.begin();
      unsynced_.erase(unsynced_.begin());
      delta = deltas_.at(*id);
    }
    const fs::path path = path_of(*id);
    try {
      const File file = File::open(path, O_RDONLY);
      fsync_file(file.fd(), path);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;  // it was removed meanwhile
      // In memory it is right, until the kernel drops it: who has it open keeps that.
      discard(take_out(*id, Home::disk), disk_.temporary);
      throw;
    }
    record(*id, delta.bytes);  // a record without its file is ignored
  }
}

void DeltaTable::abandon(DeltaId id, const fs::path& file) noexcept {
  static_cast<void>(drop_begun(id, file));
}

void DeltaTable::abandon_ahead(DeltaId id, const fs::path& file) noexcept {
  if (!drop_begun(id, file)) return;
  const std::scoped_lock lock(mutex_);
  counters_.given_up++;
}

/// Returns: false if it was completed.
bool DeltaTable::drop_begun(DeltaId id, const fs::path& file) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = deltas_.find(id);
    if (found == deltas_.end() || found->second.is_complete) return false;
  }
  std::error_code ignored;
  fs::remove(file, ignored);
  const std::scoped_lock lock(mutex_);
  deltas_.erase(id);
  ended_.notify_all();
  return true;
}

bool DeltaTable::remove(DeltaId id, RefusedLeases& refused_leases) {
  Home home = Home::disk;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = deltas_.find(id);
    if (found == deltas_.end()) return true;
    home = found->second.home;
  }
  if (!nobody_reads_file(path_of(id, home), &refused_leases)) return false;
  log_info(fmt::format("removing the delta {} to make room", name_of(id)));
  const fs::path file = take_out(id, home);
  try {
    if (home == Home::disk && is_recorded(id)) {
      db_.write({{ColumnFamily::deltas, version_key(id.versions.to), std::nullopt}});
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());  // a record without its file is ignored
  }
  discard(file, directories_of(home).temporary);
  return true;
}

/// Its name is free at once: it may be made again while this one is removed.
/// Returns: where its file lies now.
fs::path DeltaTable::take_out(DeltaId id, Home home) {
  const fs::path file = directories_of(home).temporary / ("removed-delta-" + random_hex(8));
  const std::scoped_lock lock(mutex_);
  deltas_.erase(id);
  ahead_.erase(id);
  unsynced_.erase(id);
  std::error_code ignored;  // it is not there
  fs::rename(path_of(id, home), file, ignored);
  return file;
}

std::map<DeltaId, DeltaTable::Delta> DeltaTable::list() const {
  const std::scoped_lock lock(mutex_);
  return deltas_;
}

std::uint64_t DeltaTable::total_bytes(Home home) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, delta] : list()) {
    if (delta.home == home) bytes += delta.bytes;
  }
  return bytes;
}

DeltaTable::Counters DeltaTable::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

}  // namespace weightfs
