// SyncTest: a publisher, and hosts that follow what it publishes; shared by the tests of Sync.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {

namespace stdfs = std::filesystem;
using SyncState = SyncStatus::State;
using std::chrono::milliseconds;

inline constexpr std::size_t kSyncElements = 50'000;

/// The bytes of a snapshot's files.
inline bool is_snapshot_data(std::string_view key) {
  return key.starts_with("snapshots/") && !key.ends_with("/.hashes");
}

/// A view of a bucket whose packs, or other given objects, do not arrive while it is shut.
class GatedBucket final : public Bucket {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable_any moved;
    bool shut = true;
    int waiting = 0;
    bool (*stops)(std::string_view key) = [](std::string_view key) {
      return key.starts_with("packs/");
    };

    void open() { set_shut(false); }
    void set_shut(bool is_shut) {
      {
        const std::lock_guard lock(mutex);
        shut = is_shut;
      }
      moved.notify_all();
    }
    bool somebody_waits() {
      const std::lock_guard lock(mutex);
      return waiting > 0;
    }
  };

  GatedBucket(std::shared_ptr<MemoryBucket> bucket, std::shared_ptr<Gate> gate)
      : bucket_(std::move(bucket)), gate_(std::move(gate)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    if (gate_->stops(key)) {
      std::unique_lock lock(gate_->mutex);
      gate_->waiting++;
      gate_->moved.wait(lock, context.stop, [this] { return !gate_->shut; });
      gate_->waiting--;
    }
    context.check("reading " + std::string(key));
    return bucket_.get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    bucket_.put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    return bucket_.put_if_absent(key, bytes, context);
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    return bucket_.list_objects(prefix, after, context);
  }
  Time now(const Context& context) override { return bucket_.now(context); }
  void remove(std::string_view key, const Context& context) override {
    bucket_.remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_.url(); }

 private:
  BucketView bucket_;
  std::shared_ptr<Gate> gate_;
};

/// A host that follows a repository.
struct Reader {
  Reader(std::unique_ptr<Repository> repository, const stdfs::path& store, StoreLimits limits,
         SyncOptions options, std::function<Space()> space = {})
      : host(std::move(repository), store, limits, std::move(space)),
        sync(*host.store, host.history, std::move(options)) {}

  [[nodiscard]] std::set<std::uint64_t> versions() const {
    std::set<std::uint64_t> numbers;
    const auto catalog = sync.catalog();
    for (const auto& [number, version] : catalog->versions) numbers.insert(number);
    return numbers;
  }

  Host host;
  Sync sync;
};

/// A publisher, and readers of what it publishes.
class SyncTest : public testing::Test {
 protected:
  std::unique_ptr<Reader> reader(const std::string& name = "reader", StoreLimits limits = kNoFloor,
                                 SyncOptions options = {}) {
    return std::make_unique<Reader>(Repository::open(std::make_unique<BucketView>(bucket_), {}),
                                    dir_ / name, limits, std::move(options));
  }
  std::unique_ptr<Reader> gated_reader(const std::shared_ptr<GatedBucket::Gate>& gate,
                                       SyncOptions options = {}, StoreLimits limits = kNoFloor) {
    return std::make_unique<Reader>(
        Repository::open(std::make_unique<GatedBucket>(bucket_, gate), {}), dir_ / "reader", limits,
        std::move(options));
  }
  /// Opens the store of reader() without its bucket.
  std::unique_ptr<Reader> offline_reader(const std::string& name = "reader") {
    const std::string url = "file://" + (dir_ / "no-bucket").string();
    return std::make_unique<Reader>(Repository::assume(url, publisher_.repository->id()),
                                    dir_ / name, kNoFloor, SyncOptions{});
  }
  static SyncOptions often() {
    SyncOptions options;
    options.follow.poll.interval = milliseconds(2);
    return options;
  }

  stdfs::path checkpoint(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version, kSyncElements);
    return directory;
  }
  void publish(unsigned version, const std::string& tag = "") {
    ASSERT_EQ(publisher_.publish(checkpoint(version), tag).version, version);
  }

  std::string pack_of(std::uint64_t version) {
    for (const auto& [key, bytes] : bucket_->objects()) {
      if (key.starts_with("packs/" + std::to_string(version) + "/")) return key;
    }
    ADD_FAILURE() << "version " << version << " has no pack";
    return "";
  }
  /// Flips a bit of an object.  Returns: a function that restores it.
  std::function<void()> spoil(const std::string& key) {
    const std::string good = bucket_->find(key).value();
    std::string bad = good;
    bad.back() = static_cast<char>(bad.back() ^ 1);
    bucket_->replace(key, bad);
    return [this, key, good] { bucket_->replace(key, good); };
  }

  Error round_error(Reader& on) {
    return error_of([&] { on.sync.run_once({}); });
  }

  /// What readers see: `latest`, and every byte of it.
  void expect_latest(Reader& on, unsigned version) {
    const auto catalog = on.sync.catalog();
    ASSERT_EQ(catalog->latest, version);
    EXPECT_EQ(on.sync.status().latest, version);
    ASSERT_TRUE(catalog->versions.contains(version));
    EXPECT_EQ(read_tree(catalog->versions.at(version)->directory), read_tree(checkpoint(version)));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
};

inline void expect_names(const std::string& message, const std::string& object) {
  EXPECT_NE(message.find(object), std::string::npos) << message << "\n  does not name " << object;
}

}  // namespace weightfs::test
