#include "store/local/delta_table.hpp"

#include <fmt/format.h>

#include <algorithm>
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
    : db_(db), directory_(std::move(directory)), temporary_(std::move(temporary)) {
  load();
  remove_strays();
}

void DeltaTable::load() {
  std::vector<Db::Change> gone;
  db_.scan(ColumnFamily::deltas, "", [&](std::string_view key, std::string_view value) {
    const std::uint64_t version = version_of_key(key, 8, "deltas");
    if (value.size() != 8) throw_bad_record("deltas");
    std::error_code error;
    const std::uint64_t size = fs::file_size(path_of(step_to(version)), error);
    if (!error && size == load_be(value)) {
      deltas_[step_to(version)] = {size, true};
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
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (!known.contains(entry.path())) discard(entry.path(), temporary_);
  }
}

fs::path DeltaTable::path_of(DeltaId id) const {
  return directory_ / (name_of(id) + ".safetensors");
}

std::optional<fs::path> DeltaTable::find(DeltaId id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(id);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  return path_of(id);
}

fs::path DeltaTable::begin(DeltaId id, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  deltas_[id] = {std::min(bytes, kSizeBytesMax), false};
  return temporary_ / ("delta-" + random_hex(8));
}

void DeltaTable::complete(DeltaId id, const fs::path& file) {
  std::uint64_t expected = 0;
  {
    const std::scoped_lock lock(mutex_);
    expected = deltas_.at(id).bytes;
  }
  if (const std::uint64_t size = fs::file_size(file); size != expected) {
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes, not the {} of the delta {}",
                                           file.string(), size, expected, name_of(id)));
  }
  fs::rename(file, path_of(id));
  try {
    fsync_directory(directory_);
    if (is_recorded(id)) {
      std::string value;
      append_be64(value, expected);
      db_.write({{ColumnFamily::deltas, version_key(id.versions.to), std::move(value)}});
    }
  } catch (const Error&) {
    discard(path_of(id), temporary_);
    throw;
  }
  const std::scoped_lock lock(mutex_);
  deltas_[id].is_complete = true;
}

void DeltaTable::abandon(DeltaId id, const fs::path& file) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = deltas_.find(id);
    if (found == deltas_.end() || found->second.is_complete) return;
    deltas_.erase(found);
  }
  std::error_code ignored;
  fs::remove(file, ignored);
}

bool DeltaTable::remove(DeltaId id) {
  if (!nobody_reads_file(path_of(id))) return false;
  log_info(fmt::format("removing the delta {} to make room", name_of(id)));
  {
    const std::scoped_lock lock(mutex_);
    deltas_.erase(id);
  }
  try {
    if (is_recorded(id)) {
      db_.write({{ColumnFamily::deltas, version_key(id.versions.to), std::nullopt}});
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());  // a record without its file is ignored
  }
  discard(path_of(id), temporary_);
  return true;
}

std::map<DeltaId, DeltaTable::Delta> DeltaTable::list() const {
  const std::scoped_lock lock(mutex_);
  return deltas_;
}

std::uint64_t DeltaTable::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, delta] : list()) bytes += delta.bytes;
  return bytes;
}

}  // namespace weightfs
