// StagingFixture: a Staging on a database that fails on demand, and whose free space a test sets.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/staging/records.hpp"
#include "store/staging/staging.hpp"
#include "tests/support/staging_support.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

inline constexpr Caller kStagingUser{1000, 100};
inline constexpr timespec kLongAgo{1'000'000'000, 5};

inline constexpr std::uint64_t kStagingPlenty = 1ull << 40;
inline constexpr std::uint64_t kStagingTooLittle = kRecordsFloorBytes - 1;

// Forwards to a database; fails on demand, and counts.
class TestDb final : public Db {
 public:
  explicit TestDb(std::unique_ptr<Db> db) : db_(std::move(db)) {}
  [[nodiscard]] std::optional<std::string> find(ColumnFamily family,
                                                std::string_view key) const override {
    return db_->find(family, key);
  }
  void scan(ColumnFamily family, std::string_view prefix,
            const std::function<void(std::string_view, std::string_view)>& each) const override {
    db_->scan(family, prefix, each);
  }
  void read_range(
      ColumnFamily family, std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view, std::string_view)>& each) const override {
    db_->read_range(family, begin, end, each);
  }
  [[nodiscard]] SortedFile make_sorted_file(const std::filesystem::path& directory) override {
    return db_->make_sorted_file(directory);
  }
  void ingest(ColumnFamily family, std::vector<SortedFile> files,
              const std::vector<Change>& changes) override {
    db_->ingest(family, std::move(files), changes);
  }
  void remove_range(ColumnFamily family, std::string_view begin, std::string_view end,
                    const std::vector<Change>& changes) override {
    db_->remove_range(family, begin, end, changes);
  }
  void write(const std::vector<Change>& changes, Durability durability) override {
    if (fails) throw Error(ErrorCode::io, "on demand");
    db_->write(changes, durability);
    (durability == Durability::power ? synced_writes : writes)++;
  }
  [[nodiscard]] DbFacts facts() const override { return db_->facts(); }
  void sync() override {
    if (fails_to_sync) throw Error(ErrorCode::io, "on demand");
    db_->sync();
    syncs++;
  }
  std::atomic<bool> fails = false, fails_to_sync = false;
  std::atomic<unsigned> writes = 0, synced_writes = 0, syncs = 0;

 private:
  std::unique_ptr<Db> db_;
};

// A Staging on a database whose free space is set by the test.
struct StagingFixture {
  TempDir parent;
  std::atomic<std::uint64_t> free_bytes = kStagingPlenty;
  std::function<void(std::uint64_t)> make_room;
  std::unique_ptr<TestDb> db;
  std::unique_ptr<Staging> staging;

  StagingFixture() { reopen(); }
  void reopen() {
    close();
    open_db();
    StagingOptions options{make_room, {0, 0}};
    options.has_room = [this](std::uint64_t) { return !make_room; };
    staging = std::make_unique<Staging>(*db, directory(), std::move(options));
  }
  void open_db() {
    db = std::make_unique<TestDb>(Db::open(parent / "db", [this] { return free_bytes.load(); }));
  }
  void close() {
    staging.reset();
    db.reset();
  }
  [[nodiscard]] std::filesystem::path directory() const { return parent / "staging"; }
  [[nodiscard]] std::filesystem::path bytes_of(StagingId id) const {
    return directory() / std::to_string(id);
  }

  StagingId file(StagingId parent_id, std::string_view name, std::string_view bytes = "") {
    if (!staging->has_room_for_file()) staging->prepare_file();
    const StagingId id = staging->make_file(parent_id, name, 0600, kStagingUser);
    if (!bytes.empty()) write_text(bytes_of(id), bytes);
    return id;
  }
  StagingId dir(StagingId parent_id, std::string_view name) {
    return staging->make_directory(parent_id, name, 0755, kStagingUser);
  }
  // Creates a directory with a file and a nested file.
  struct Checkpoint {
    StagingId directory, weights, nested, extra;
  };
  Checkpoint checkpoint(StagingId parent_id, std::string_view name) {
    const StagingId directory = dir(parent_id, name);
    const StagingId sub = dir(directory, "sub");
    return {directory, file(directory, "model.safetensors", "weights"),
            file(sub, "adapter.safetensors", "adapter"), file(sub, "optimizer.pt", "optimizer")};
  }
  // Checks that a new process loads the same tree.
  void expect_survives() {
    const std::string before = tree_text(*staging);
    reopen();
    EXPECT_EQ(tree_text(*staging), before);
  }
};

// The ids that have bytes on disk.
inline std::vector<std::string> backing_of(const StagingFixture& at) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(at.directory())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Waits for exactly these, because removal first syncs the records.
inline void expect_backing(const StagingFixture& at, std::vector<std::string> names) {
  const auto until = Clock::now() + std::chrono::minutes(1);
  while (backing_of(at) != names && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(backing_of(at), names);
}

}  // namespace weightfs::test
