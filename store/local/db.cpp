#include "store/local/db.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstdarg>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
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

std::vector<rocksdb::ColumnFamilyDescriptor> make_families(const rocksdb::Options& options) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const ColumnFamilyInfo& info : kColumnFamilies)
    families.emplace_back(std::string(info.name), options);
  return families;
}

rocksdb::Slice slice_of(std::string_view text) { return {text.data(), text.size()}; }

std::string_view view_of(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// An open RocksDB with its families; closed together.
class Handle {
 public:
  static std::unique_ptr<Handle> open(const fs::path& directory, bool writable) {
    auto handle = std::make_unique<Handle>();
    const rocksdb::Options options = make_options();
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status =
        writable
            ? rocksdb::DB::Open(options, directory.string(), make_families(options), &families, &db)
            : rocksdb::DB::OpenForReadOnly(options, directory.string(), make_families(options),
                                           &families, &db);
    check(status, directory, "open");
    handle->db_.reset(db);
    handle->families_ = std::move(families);
    return handle;
  }

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    for (auto* family : families_) (void)db_->DestroyColumnFamilyHandle(family);
  }

  [[nodiscard]] rocksdb::DB& db() const { return *db_; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* family(ColumnFamily family) const {
    return families_.at(static_cast<std::size_t>(family));
  }

 private:
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

// True if every family exists, so that the database can be opened without writing.
bool is_database(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory / "CURRENT", ignored)) return false;
  std::vector<std::string> names;
  const auto status =
      rocksdb::DB::ListColumnFamilies(rocksdb::Options(), directory.string(), &names);
  check(status, directory, "open");
  return names.size() >= kColumnFamilies.size();
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
    handle_ = Handle::open(directory_, writable_);
  }

  [[nodiscard]] std::optional<std::string> find(ColumnFamily family,
                                                std::string_view key) const override {
    const std::shared_lock lock(mutex_);
    std::string value;
    const rocksdb::Status status =
        handle().db().Get(rocksdb::ReadOptions(), handle().family(family), slice_of(key), &value);
    if (status.IsNotFound()) return std::nullopt;
    check(status, directory_, "read");
    return value;
  }

  void scan(ColumnFamily family, std::string_view prefix,
            const std::function<void(std::string_view, std::string_view)>& each) const override {
    const std::shared_lock lock(mutex_);
    const std::unique_ptr<rocksdb::Iterator> at(
        handle().db().NewIterator(rocksdb::ReadOptions(), handle().family(family)));
    for (at->Seek(slice_of(prefix)); at->Valid() && view_of(at->key()).starts_with(prefix);
         at->Next()) {
      each(view_of(at->key()), view_of(at->value()));
    }
    check(at->status(), directory_, "read");
  }

  void write(const std::vector<Change>& changes, Durability durability) override {
    std::uint64_t batch_bytes = 0;
    for (const Change& change : changes) {
      batch_bytes += change.key.size() + (change.value ? change.value->size() : 0);
    }
    if (free_bytes_() < kRecordsFloorBytes + batch_bytes) throw below_floor();
    if (!writable_) reopen();
    const std::shared_lock lock(mutex_);
    apply(changes, durability);
  }

  void sync() override {
    if (!writable_) throw below_floor();
    const std::shared_lock lock(mutex_);
    const rocksdb::Status status = handle().db().SyncWAL();
    if (!status.ok()) writable_ = false;  // as after a failed write
    check(status, directory_, "sync");
  }

 private:
  [[nodiscard]] const Handle& handle() const {
    if (handle_) return *handle_;
    throw Error(ErrorCode::io,
                fmt::format("the database {} is closed: it could not be reopened after an error",
                            directory_.string()));
  }

  // Requires: mutex_ is held, shared.
  void apply(const std::vector<Change>& changes, Durability durability) {
    rocksdb::WriteBatch batch;
    for (const Change& change : changes) {
      auto* family = handle().family(change.family);
      const rocksdb::Status status = change.value
                                         ? batch.Put(family, slice_of(change.key), *change.value)
                                         : batch.Delete(family, slice_of(change.key));
      check(status, directory_, "write to");
    }
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::power;
    const rocksdb::Status status = handle().db().Write(options, &batch);
    // After a failed write RocksDB rejects all others until it is reopened.
    if (!status.ok()) writable_ = false;
    check(status, directory_, "write to");
  }

  // Reopens for writing.  If that fails, the records can still be read.
  void reopen() {
    const std::scoped_lock lock(mutex_);
    if (writable_) return;
    handle_.reset();
    try {
      handle_ = Handle::open(directory_, true);
      writable_ = true;
    } catch (const Error&) {
      handle_ = Handle::open(directory_, false);
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
