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
    const std::uint64_t size = fs::file_size(path_of(version), error);
    if (!error && size == load_be(value)) {
      deltas_[version] = {size, true};
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
  for (const auto& [version, delta] : deltas_) known.insert(path_of(version));
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (!known.contains(entry.path())) discard(entry.path(), temporary_);
  }
}

fs::path DeltaTable::path_of(std::uint64_t version) const {
  return directory_ / (std::to_string(version) + ".safetensors");
}

std::optional<fs::path> DeltaTable::find(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(version);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  return path_of(version);
}

fs::path DeltaTable::begin(std::uint64_t version, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  deltas_[version] = {std::min(bytes, kSizeBytesMax), false};
  return temporary_ / ("delta-" + random_hex(8));
}

void DeltaTable::complete(std::uint64_t version, const fs::path& file) {
  std::uint64_t expected = 0;
  {
    const std::scoped_lock lock(mutex_);
    expected = deltas_.at(version).bytes;
  }
  if (const std::uint64_t size = fs::file_size(file); size != expected) {
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes, not the {} of the delta of version {}",
                                           file.string(), size, expected, version));
  }
  fs::rename(file, path_of(version));
  try {
    fsync_directory(directory_);
    std::string value;
    append_be64(value, expected);
    db_.write({{ColumnFamily::deltas, version_key(version), std::move(value)}});
  } catch (const Error&) {
    discard(path_of(version), temporary_);
    throw;
  }
  const std::scoped_lock lock(mutex_);
  deltas_[version].is_complete = true;
}

void DeltaTable::abandon(std::uint64_t version, const fs::path& file) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = deltas_.find(version);
    if (found == deltas_.end() || found->second.is_complete) return;
    deltas_.erase(found);
  }
  std::error_code ignored;
  fs::remove(file, ignored);
}

bool DeltaTable::remove(std::uint64_t version) {
  if (!nobody_reads_file(path_of(version))) return false;
  log_info(fmt::format("removing the delta of version {} to make room", version));
  {
    const std::scoped_lock lock(mutex_);
    deltas_.erase(version);
  }
  try {
    db_.write({{ColumnFamily::deltas, version_key(version), std::nullopt}});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());  // a record without its file is ignored
  }
  discard(path_of(version), temporary_);
  return true;
}

std::map<std::uint64_t, DeltaTable::Delta> DeltaTable::list() const {
  const std::scoped_lock lock(mutex_);
  return deltas_;
}

std::uint64_t DeltaTable::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [version, delta] : list()) bytes += delta.bytes;
  return bytes;
}

}  // namespace weightfs
