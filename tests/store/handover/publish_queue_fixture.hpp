// PublishQueueTest: one writer on a repository in memory; shared by the tests of the publish queue.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/handover/handover_record.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/os/file.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {

namespace stdfs = std::filesystem;
using Files = std::map<std::string, std::string>;

inline constexpr std::size_t kQueueElements = 20'000;

inline HandOverRecord find_record(Writer& writer, std::uint64_t order) {
  HandOverRecord record;
  record.order = order;
  const std::string key = record.key();
  return HandOverRecord::parse(key, writer.store->db().find(ColumnFamily::handovers, key).value());
}

/// Stops the queue.  The records are those of another run of the machine then, in which nothing was
/// synced, and the staged bytes are zeros.
inline void spoil_by_power_cut(Writer& writer) {
  writer.queue.stop();
  for (const HandOver& item : writer.queue.list()) {
    HandOverRecord record = find_record(writer, item.order);
    record.unsynced_boot = "another run of the machine";
    writer.store->db().write({{ColumnFamily::handovers, record.key(), record.serialize()}});
    for (const StagedFile& file : writer.staging.list(item.directory)) {
      if (!S_ISREG(file.type)) continue;
      const stdfs::path path = writer.staging.backing_path(file.id);
      const std::string zeros(stdfs::file_size(path), '\0');
      write_at(File::open(path, O_WRONLY).fd(), 0, as_bytes(zeros), path);
    }
  }
}

/// A repository in memory with hooks, and one writer at a time, which can be stopped and restarted
/// like a new process.
class PublishQueueTest : public testing::Test {
 protected:
  using State = HandOver::State;
  using How = HandOverEnd::How;

  Writer& writer() {
    if (!writer_) {
      QueueOptions options = options_;
      options.show = [this](std::uint64_t version) {
        EXPECT_TRUE(writer_->store->images().is_complete(version));
        shown_ = version;
      };
      writer_ = std::make_unique<Writer>(open(), dir_ / "writer", options, space_);
    }
    return *writer_;
  }

  Writer& started() {
    writer().start();
    return writer();
  }

  Writer& restarted() {
    writer_.reset();
    return writer();
  }

  std::unique_ptr<Repository> open() {
    return Repository::open(std::make_unique<HookedBucket>(bucket_, hooks_), {});
  }

  Files checkpoint(unsigned version, std::size_t elements = kQueueElements) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version, elements);
    return read_tree(directory);
  }

  /// Stages a checkpoint and hands it over as step-N.
  std::uint64_t hand_over(unsigned version, const HandOverOptions& options = {}) {
    const std::string name = "step-" + std::to_string(version);
    return writer().hand_over(writer().stage(name, checkpoint(version)), name, options);
  }

  /// Publishes from another host.
  std::uint64_t publish_elsewhere(unsigned version) {
    checkpoint(version);
    Host other(bucket_, dir_ / "other");
    return other.publish(dir_ / ("checkpoint-" + std::to_string(version))).version;
  }

  Manifest manifest_of(std::uint64_t version) {
    return Manifest::parse(bucket_->find(keys::manifest(version)).value(), "manifest");
  }

  std::uint64_t versions_in_bucket() {
    std::uint64_t count = 0;
    while (bucket_->find(keys::manifest(count + 1))) count++;
    return count;
  }

  void expect_version(std::uint64_t version, const Files& files) {
    Host reader(bucket_, dir_ / ("reader-" + std::to_string(readers_++)));
    EXPECT_EQ(reader.read_version(version), files) << version;
  }

  bool is_staged(const std::string& name) { return writer().find(kStagingRoot, name).has_value(); }
  bool is_queued(const std::string& name) { return writer().find(kPublishRoot, name).has_value(); }

  bool has_links() {
    const stdfs::path root = writer().store->path() / "handover";
    return stdfs::exists(root) && !stdfs::is_empty(root);
  }

  /// The last outcome of the hand-over.
  HandOverEnd end_of(std::uint64_t order) {
    HandOverEnd result;
    for (HandOverEnd& end : writer().queue.ended()) {
      if (end.order == order) result = std::move(end);
    }
    return result;
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  std::shared_ptr<BucketHooks> hooks_ = std::make_shared<BucketHooks>();
  QueueOptions options_;
  std::function<Space()> space_;
  std::atomic<std::uint64_t> shown_{0};

  // Used by hooks, which may run until the writer is destroyed.
  Gate gate_;
  std::atomic<std::uint64_t> free_{std::uint64_t{1} << 40};
  std::atomic<int> races_{0}, reads_{0};
  std::atomic<bool> is_broken_{false}, is_flaky_{false};

 private:
  std::unique_ptr<Writer> writer_;
  int readers_ = 0;
};

}  // namespace weightfs::test
