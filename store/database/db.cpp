#include "store/database/db.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"

namespace weightfs {

namespace {

namespace fs = std::filesystem;

// RocksDB's own log would be written even on a full disk, and is of no use to users.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, std::va_list) override {}
};

// The only place where a status becomes an Error.
void check(const rocksdb::Status& status, const fs::path& directory, std::string_view action) {
  if (status.ok()) return;
  const std::string what =
      fmt::format("cannot {} the database {}: {}", action, directory.string(), status.ToString());
  if (status.IsNoSpace()) throw Error(ErrorCode::no_space, what);
  // A missing file, or one written by a newer release, counts as damage.
  if (status.IsCorruption() || status.IsPathNotFound() || status.IsInvalidArgument() ||
      status.IsNotSupported()) {
    throw Error(ErrorCode::corrupt, what);
  }
  throw Error(ErrorCode::io, what);
}

// Records are few and small: use little memory, few files, and no background writes.
rocksdb::Options make_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.write_buffer_size = 4u << 20;
  options.db_write_buffer_size = 8u << 20;
  options.max_total_wal_size = 8u << 20;
  options.max_open_files = 64;
  options.max_manifest_file_size = 1u << 20;
  options.compression = rocksdb::kNoCompression;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = std::make_shared<NoLog>();
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(4u << 20);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// Bulk families are written as whole files, and read once in a while, and are never compacted: a
// span of patches is removed with its files, and versions are folded by fold_spans().  A merge
// operator would fold them too, but leave no way to a single version.
rocksdb::ColumnFamilyOptions options_of(const ColumnFamilyInfo& info,
                                        const rocksdb::Options& options) {
  rocksdb::ColumnFamilyOptions chosen(options);
  if (!info.is_bulk) return chosen;
  chosen.disable_auto_compactions = true;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  chosen.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return chosen;
}

using FamilyNames = std::vector<std::string>;

bool has_family(const FamilyNames& names, const ColumnFamilyInfo& info) {
  return std::find(names.begin(), names.end(), info.name) != names.end();
}

// Empty if there is no database.
FamilyNames families_of(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory / "CURRENT", ignored)) return {};
  FamilyNames names;
  check(rocksdb::DB::ListColumnFamilies(rocksdb::Options(), directory.string(), &names), directory,
        "open");
  return names;
}

rocksdb::Slice slice_of(std::string_view text) { return {text.data(), text.size()}; }

std::string_view view_of(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Whether RocksDB looks at all files when it is opened, and refuses where it cannot read one.  What
// is `lax` finds out when it reads; of a damaged log it then leaves out single records.
enum class Opening { strict, lax };

// An open RocksDB with its families; closed together.
class Handle {
 public:
  static std::unique_ptr<Handle> open(const fs::path& directory, bool writable,
                                      Opening opening = Opening::strict) {
    auto handle = std::make_unique<Handle>(opening);
    const rocksdb::Options& options = handle->options_;
    const FamilyNames names = families_of(directory);
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    std::vector<ColumnFamily> opened;
    for (const ColumnFamilyInfo& info : kColumnFamilies) {
      if (info.is_lazy && !has_family(names, info)) continue;
      families.emplace_back(std::string(info.name), options_of(info, options));
      opened.push_back(info.family);
    }
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    check(writable
              ? rocksdb::DB::Open(options, directory.string(), families, &handles, &db)
              : rocksdb::DB::OpenForReadOnly(options, directory.string(), families, &handles, &db),
          directory, "open");
    handle->db_.reset(db);
    for (std::size_t i = 0; i < opened.size(); ++i) handle->at(opened[i]) = handles[i];
    return handle;
  }

  explicit Handle(Opening opening) { options_.paranoid_checks = opening == Opening::strict; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    for (auto* family : families_) {
      if (family != nullptr) (void)db_->DestroyColumnFamilyHandle(family);
    }
  }

  [[nodiscard]] rocksdb::DB& db() const { return *db_; }
  /// nullptr: a lazy family that nothing was written to.
  [[nodiscard]] rocksdb::ColumnFamilyHandle* family(ColumnFamily family) const {
    return families_.at(static_cast<std::size_t>(family));
  }
  /// Requires: nobody uses the handle meanwhile.
  [[nodiscard]] rocksdb::Status make(ColumnFamily family) {
    const ColumnFamilyInfo& info = kColumnFamilies.at(static_cast<std::size_t>(family));
    return db_->CreateColumnFamily(options_of(info, options_), std::string(info.name), &at(family));
  }
  /// Requires: nobody uses the handle meanwhile.
  [[nodiscard]] rocksdb::Status drop(ColumnFamily family) {
    rocksdb::ColumnFamilyHandle*& dropped = at(family);
    if (dropped == nullptr) return {};
    rocksdb::Status status = db_->DropColumnFamily(dropped);
    if (!status.ok()) return status;
    (void)db_->DestroyColumnFamilyHandle(std::exchange(dropped, nullptr));
    return status;
  }
  /// What is wrong with the files of a family: each is opened, and its first pair read.
  [[nodiscard]] rocksdb::Status look_at(ColumnFamily family) const {
    auto* const from = this->family(family);
    if (from == nullptr) return {};
    rocksdb::ColumnFamilyMetaData about;
    db_->GetColumnFamilyMetaData(from, &about);
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), from));
    for (const auto& level : about.levels) {
      for (const auto& file : level.files) {
        at->Seek(file.smallestkey);
        if (!at->status().ok()) return at->status();
      }
    }
    return {};
  }

 private:
  rocksdb::ColumnFamilyHandle*& at(ColumnFamily family) {
    return families_.at(static_cast<std::size_t>(family));
  }

  rocksdb::Options options_ = make_options();
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kColumnFamilies.size()> families_{};
};

// True if every family exists that is not lazy, so that the database can be opened without writing.
bool is_database(const fs::path& directory) {
  const FamilyNames names = families_of(directory);
  return std::all_of(
      kColumnFamilies.begin(), kColumnFamilies.end(),
      [&](const ColumnFamilyInfo& info) { return info.is_lazy || has_family(names, info); });
}

// Those that cannot be read and are made again; none if another cannot be read either, or if they
// are not what is wrong.  Nothing is written.
std::vector<ColumnFamilyInfo> find_lost_families(const fs::path& directory) {
  std::unique_ptr<const Handle> handle;
  try {
    handle = Handle::open(directory, false, Opening::lax);
  } catch (const Error&) {
    return {};
  }
  std::vector<ColumnFamilyInfo> lost;
  for (const ColumnFamilyInfo& info : kColumnFamilies) {
    const rocksdb::Status status = handle->look_at(info.family);
    if (status.ok()) continue;
    // All else may pass: no descriptor is left, say, or a disk does not answer.
    const bool is_lost = status.IsCorruption() || status.IsPathNotFound();
    if (!is_lost || !info.is_renewable) return {};
    lost.push_back(info);
  }
  return lost;
}

void empty_families(const fs::path& directory, const std::vector<ColumnFamilyInfo>& families) {
  const auto handle = Handle::open(directory, true, Opening::lax);
  for (const ColumnFamilyInfo& info : families) {
    log_warning(fmt::format("files of the {} in {} cannot be read; all {} are removed", info.name,
                            directory.string(), info.name));
    check(handle->drop(info.family), directory, "write to");
    if (!info.is_lazy) check(handle->make(info.family), directory, "write to");
  }
}

// As Handle::open(), but what is wrong with a family that is made again costs no other: RocksDB
// opens all families or none.  Where nothing may be written, reading that family fails.
std::unique_ptr<Handle> open_without_lost(const fs::path& directory, bool writable) {
  std::vector<ColumnFamilyInfo> lost;
  try {
    return Handle::open(directory, writable);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt && error.code() != ErrorCode::io) throw;
    lost = find_lost_families(directory);
    if (lost.empty()) throw;
  }
  if (!writable) return Handle::open(directory, false, Opening::lax);
  empty_families(directory, lost);
  return Handle::open(directory, true);
}

class RocksDb final : public Db {
 public:
  /// For reading.
  explicit RocksDb(fs::path directory)
      : directory_(std::move(directory)), handle_(Handle::open(directory_, false)) {}

  RocksDb(fs::path directory, std::function<std::uint64_t()> free_bytes)
      : directory_(std::move(directory)), free_bytes_(std::move(free_bytes)) {
    writable_ = free_bytes_() >= kRecordsFloorBytes;
    if (!writable_ && !is_database(directory_)) throw below_floor();
    handle_ = open_without_lost(directory_, writable_);
  }

  [[nodiscard]] std::optional<std::string> find(ColumnFamily family,
                                                std::string_view key) const override {
    const std::shared_lock lock(mutex_);
    auto* const from = handle().family(family);
    if (from == nullptr) return std::nullopt;
    std::string value;
    const rocksdb::Status status =
        handle().db().Get(rocksdb::ReadOptions(), from, slice_of(key), &value);
    if (status.IsNotFound()) return std::nullopt;
    check(status, directory_, "read");
    return value;
  }

  void scan(ColumnFamily family, std::string_view prefix,
            const std::function<void(std::string_view, std::string_view)>& each) const override {
    read_range(family, prefix, {}, [&](std::string_view key, std::string_view value) {
      if (!key.starts_with(prefix)) return false;
      each(key, value);
      return true;
    });
  }

  void read_range(
      ColumnFamily family, std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view, std::string_view)>& each) const override {
    const std::shared_lock lock(mutex_);
    auto* const from = handle().family(family);
    if (from == nullptr) return;
    const rocksdb::Slice bound = slice_of(end);
    rocksdb::ReadOptions options;
    if (!end.empty()) options.iterate_upper_bound = &bound;
    const std::unique_ptr<rocksdb::Iterator> at(handle().db().NewIterator(options, from));
    for (at->Seek(slice_of(begin)); at->Valid(); at->Next()) {
      if (!each(view_of(at->key()), view_of(at->value()))) break;
    }
    check(at->status(), directory_, "read");
  }

  void write(const std::vector<Change>& changes, Durability durability) override {
    std::uint64_t batch_bytes = 0;
    for (const Change& change : changes) {
      batch_bytes += change.key.size() + (change.value ? change.value->size() : 0);
    }
    prepare_to_write(batch_bytes);
    for (const Change& change : changes) {
      if (change.value) make_family(change.family);
    }
    try {
      const std::shared_lock lock(mutex_);
      apply(changes, durability);
    } catch (const Error&) {
      reopen_early();
      throw;
    }
  }

  void sync() override {
    if (!writable_) prepare_to_write(0);
    const std::shared_lock lock(mutex_);
    const rocksdb::Status status = handle().db().SyncWAL();
    if (!status.ok()) writable_ = false;  // as after a failed write
    check(status, directory_, "sync");
  }

  [[nodiscard]] SortedFile make_sorted_file(const fs::path& directory) override {
    if (free_bytes_() < kRecordsFloorBytes + kSortedFileBytesMax) throw below_floor();
    return SortedFile(directory);
  }

  void ingest(ColumnFamily family, std::vector<SortedFile> files,
              const std::vector<Change>& changes) override {
    prepare_to_write(0);
    if (!files.empty()) {
      make_family(family);
      const std::shared_lock lock(mutex_);
      take_in(family, files);
    }
    if (!changes.empty()) write(changes, Durability::power);
  }

  void remove_range(ColumnFamily family, std::string_view begin, std::string_view end,
                    const std::vector<Change>& changes) override {
    prepare_to_write(0);
    if (!changes.empty()) write(changes, Durability::power);
    if (begin.empty() && end.empty()) return empty_family(family);
    const std::shared_lock lock(mutex_);
    auto* const from = handle().family(family);
    if (from == nullptr) return;
    const rocksdb::Slice first = slice_of(begin), last = slice_of(end);
    const auto limit = [&](const rocksdb::Slice& slice) {
      return slice.empty() ? nullptr : &slice;
    };
    accept(rocksdb::DeleteFilesInRange(&handle().db(), from, limit(first), limit(last), false));
    remove_rest(from, begin, end);
  }

  [[nodiscard]] DbFacts facts() const override {
    using P = rocksdb::DB::Properties;
    const std::shared_lock lock(mutex_);
    if (!handle_) return {};
    rocksdb::DB& db = handle_->db();
    const auto one = [&](const std::string& property) {
      std::uint64_t value = 0;
      return db.GetIntProperty(property, &value) ? value : 0;
    };
    const auto all = [&](const std::string& property) {  // of all families together
      std::uint64_t value = 0;
      return db.GetAggregatedIntProperty(property, &value) ? value : 0;
    };
    return {.memtable_bytes = all(P::kCurSizeAllMemTables),
            .file_bytes = all(P::kTotalSstFilesSize),
            .cache_bytes = one(P::kBlockCacheUsage),  // they share it
            .pending_compaction_bytes = all(P::kEstimatePendingCompactionBytes),
            .running_compactions = one(P::kNumRunningCompactions),
            .running_flushes = one(P::kNumRunningFlushes),
            .background_errors = one(P::kBackgroundErrors),
            .is_writable = writable_ && free_bytes_() >= kRecordsFloorBytes};
  }

 private:
  [[nodiscard]] const Handle& handle() const {
    if (handle_) return *handle_;
    throw Error(ErrorCode::io,
                fmt::format("the database {} is closed: it could not be reopened after an error",
                            directory_.string()));
  }

  void prepare_to_write(std::uint64_t batch_bytes) {
    if (free_bytes_() < kRecordsFloorBytes + batch_bytes) throw below_floor();
    if (!writable_) reopen();
  }

  void make_family(ColumnFamily family) {
    if (!kColumnFamilies.at(static_cast<std::size_t>(family)).is_lazy) return;
    {
      const std::shared_lock lock(mutex_);
      if (handle().family(family) != nullptr) return;
    }
    const std::scoped_lock lock(mutex_);
    (void)handle();
    if (handle_->family(family) == nullptr) accept(handle_->make(family));
  }

  // After a failed write RocksDB rejects all others until it is reopened.
  void accept(const rocksdb::Status& status) {
    if (!status.ok()) writable_ = false;
    check(status, directory_, "write to");
  }

  // Requires: mutex_ is held, shared.
  void take_in(ColumnFamily family, const std::vector<SortedFile>& files) {
    std::vector<std::string> paths;
    for (const SortedFile& file : files) paths.push_back(file.path().string());
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;
    options.write_global_seqno = false;
    accept(handle().db().IngestExternalFile(handle().family(family), paths, options));
  }

  // Reads nothing, so files that cannot be read are unlinked too.
  void empty_family(ColumnFamily family) {
    const std::scoped_lock lock(mutex_);
    (void)handle();
    accept(handle_->drop(family));
    if (!kColumnFamilies.at(static_cast<std::size_t>(family)).is_lazy) {
      accept(handle_->make(family));
    }
  }

  // Pairs in files that have others too, and in the log.  Requires: mutex_ is held, shared.
  void remove_rest(rocksdb::ColumnFamilyHandle* from, std::string_view begin,
                   std::string_view end) {
    const rocksdb::Slice bound = slice_of(end);
    rocksdb::ReadOptions options;
    if (!end.empty()) options.iterate_upper_bound = &bound;
    const std::unique_ptr<rocksdb::Iterator> at(handle().db().NewIterator(options, from));
    rocksdb::WriteBatch batch;
    for (at->Seek(slice_of(begin)); at->Valid(); at->Next()) {
      check(batch.Delete(from, at->key()), directory_, "write to");
    }
    if (at->status().IsCorruption()) {
      // Of what is removed, or of what comes after it: removed without a look.
      batch.Clear();
      const std::string after_all(64, '\xFF');  // no key is of so many such bytes
      const rocksdb::Slice last = end.empty() ? rocksdb::Slice(after_all) : bound;
      check(batch.DeleteRange(from, slice_of(begin), last), directory_, "write to");
    } else {
      check(at->status(), directory_, "read");
    }
    if (batch.Count() != 0) accept(handle().db().Write(rocksdb::WriteOptions(), &batch));
  }

  // Requires: mutex_ is held, shared.
  void apply(const std::vector<Change>& changes, Durability durability) {
    rocksdb::WriteBatch batch;
    for (const Change& change : changes) {
      auto* family = handle().family(change.family);
      if (family == nullptr) continue;  // nothing to delete
      const rocksdb::Status status = change.value
                                         ? batch.Put(family, slice_of(change.key), *change.value)
                                         : batch.Delete(family, slice_of(change.key));
      check(status, directory_, "write to");
    }
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::power;
    const rocksdb::Status status = handle().db().Write(options, &batch);
    if (!status.ok()) note_failed(changes);
    accept(status);
  }

  // What a failed write was to change may be in the log all the same, where only its sync failed,
  // and is then replayed when the database is opened.  So what was there before is written again.
  // Requires: mutex_ is held, shared.
  void note_failed(const std::vector<Change>& changes) {
    const std::scoped_lock lock(failed_mutex_);
    for (const Change& change : changes) {
      auto* const family = handle().family(change.family);
      if (family == nullptr) continue;
      std::string value;
      const rocksdb::Status status =
          handle().db().Get(rocksdb::ReadOptions(), family, slice_of(change.key), &value);
      if (status.ok()) failed_.try_emplace({change.family, change.key}, std::move(value));
      if (status.IsNotFound()) failed_.try_emplace({change.family, change.key}, std::nullopt);
    }
  }

  // Requires: mutex_ is held, exclusively, and the database was just opened.
  void undo_failed() {
    const std::scoped_lock lock(failed_mutex_);
    if (failed_.empty()) return;
    rocksdb::WriteBatch batch;
    for (const auto& [key, value] : failed_) {
      auto* const family = handle_->family(key.first);
      if (family == nullptr) continue;  // nothing to delete
      check(value ? batch.Put(family, slice_of(key.second), *value)
                  : batch.Delete(family, slice_of(key.second)),
            directory_, "write to");
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    check(handle_->db().Write(options, &batch), directory_, "write to");
    failed_.clear();
  }

  // At once, not before the next write: the process may end, and the next one knows nothing of it.
  void reopen_early() noexcept {
    try {
      if (!writable_ && free_bytes_() >= kRecordsFloorBytes) reopen();
    } catch (const std::exception&) {  // the next write tries it again, and says why
    }
  }

  // Reopens for writing.  If that fails, the records can still be read.
  void reopen() {
    const std::scoped_lock lock(mutex_);
    if (writable_) return;
    handle_.reset();
    try {
      // Nothing is emptied now: who uses the database knows what is in it.
      handle_ = Handle::open(directory_, true);
      undo_failed();
      writable_ = true;
    } catch (const Error&) {
      handle_.reset();
      handle_ = open_without_lost(directory_, false);
      throw;
    }
  }

  [[nodiscard]] Error below_floor() const {
    return {ErrorCode::no_space,
            fmt::format(
                "the file system of {} has {} free; at least {} is needed to record anything: free "
                "some space",
                directory_.string(), human_bytes(free_bytes_()), human_bytes(kRecordsFloorBytes))};
  }

  const fs::path directory_;
  const std::function<std::uint64_t()> free_bytes_;
  // Guards handle_: shared to use it, exclusive to replace it.
  mutable RankedSharedMutex mutex_{LockRank::database, "RocksDb::mutex_"};
  std::unique_ptr<Handle> handle_;
  std::atomic<bool> writable_ = false;
  // Guards failed_: what the keys of failed writes had before.
  RankedMutex failed_mutex_{LockRank::leaf, "RocksDb::failed_mutex_"};
  std::map<std::pair<ColumnFamily, std::string>, std::optional<std::string>> failed_;
};

}  // namespace

std::unique_ptr<Db> Db::open(const fs::path& directory, std::function<std::uint64_t()> free_bytes) {
  make_directories(directory, 0700);
  if (!free_bytes) free_bytes = [directory] { return space_of(directory).free_bytes; };
  return std::make_unique<RocksDb>(directory, std::move(free_bytes));
}

std::unique_ptr<const Db> Db::open_for_reading(const fs::path& directory) {
  // Says more of what is missing, or not permitted, than RocksDB does.
  const File marker = File::open(directory / "CURRENT", O_RDONLY);
  return std::make_unique<const RocksDb>(directory);
}

}  // namespace weightfs
