// ModelHost: a host composed as in the daemon, except for the mount: store, sync, partial versions,
// manual pins, staging and the publish queue.  It uses an in-memory bucket whose answers to the
// threads that fill versions are released one at a time.
//
// Threads: one thread at a time; TricklingBucket's calls may run in parallel.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/handover/publish_queue.hpp"
#include "store/local/manual_pins.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/support.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs::test {

/// A view of an in-memory bucket.  A reader without a deadline, such as the threads that fill a
/// version, waits for each answer until one is released; other readers never wait.
class TricklingBucket final : public BucketView {
 public:
  /// Shared by the successive views of a host.
  class Tap {
   public:
    /// Called by readers with a deadline.  Set it while nothing reads.
    std::function<void()> on_get;

    /// Releases this many more answers.
    void give(unsigned answers) {
      change([&] { answers_ += answers; });
    }
    /// true: all answers are released from now on; false: only those that give() releases.
    void set_open(bool is_open) {
      change([&] {
        is_open_ = is_open;
        answers_ = 0;
      });
    }
    /// Readers with a deadline get the error that the bucket is out of reach.
    void set_away(bool is_away) {
      change([&] { is_away_ = is_away; });
    }

    /// Answers that have not been taken yet.
    [[nodiscard]] unsigned left() const {
      const std::lock_guard lock(mutex_);
      return answers_;
    }

    void pass(std::string_view key, const Context& context) {
      const bool has_deadline = context.deadline != Clock::time_point::max();
      if (has_deadline && on_get) on_get();
      std::unique_lock lock(mutex_);
      if (has_deadline && !is_away_) return;
      if (has_deadline) {
        throw Error(ErrorCode::unavailable, "object " + std::string(key) + ": out of reach");
      }
      changed_.wait(lock, context.stop, [&] { return is_open_ || answers_ > 0; });
      if (!is_open_ && answers_ > 0) answers_--;
    }

   private:
    template <typename Change>
    void change(Change&& changes) {
      const std::lock_guard lock(mutex_);
      changes();
      changed_.notify_all();
    }

    mutable std::mutex mutex_;  // guards the fields below
    std::condition_variable_any changed_;
    bool is_open_ = true, is_away_ = false;
    unsigned answers_ = 0;
  };

  TricklingBucket(std::shared_ptr<MemoryBucket> bucket, std::shared_ptr<Tap> tap)
      : BucketView(std::move(bucket)), tap_(std::move(tap)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    tap_->pass(key, context);
    context.check("reading " + std::string(key));
    return BucketView::get(key, offset_bytes, into, context);
  }

 private:
  std::shared_ptr<Tap> tap_;
};

struct ModelHost {
  ModelHost(std::unique_ptr<Repository> opened, const std::filesystem::path& store_path,
            StoreLimits limits, std::function<Space()> space, GuardAnswers guard_answers,
            SyncOptions sync_options, CatalogListener listener, QueueOptions queue_options)
      : repository(std::move(opened)),
        store(
            Store::open(store_path, repository->id(), repository->url(), limits, std::move(space))),
        history(*repository, store.get()),
        guard(store->eviction(), std::move(guard_answers)),
        sync(*store, history, std::move(sync_options)),
        listening(sync.listen(std::move(listener))),
        pins(store->db()),
        staging(store->db(), store->path() / "staging", {}),
        queue(staging, *store, history, std::move(queue_options)) {}
  ~ModelHost() { queue.stop(); }

  /// Stages files, none of them in a subdirectory, and hands them over.
  void hand_over(const std::string& name, const std::map<std::string, std::string>& files) {
    const StagingId directory = staging.make_directory(kStagingRoot, name, 0755, {});
    for (const auto& [path, bytes] : files) {
      const StagingId id = staging.make_file(directory, path, 0644, {});
      staging.open(id, true);
      {
        const auto backing = staging.backing_path(id);
        const File file = File::open(backing, O_WRONLY | O_TRUNC);
        write_at(file.fd(), 0, as_bytes(bytes), backing);
      }
      static_cast<void>(staging.release(id, true));
    }
    queue.hand_over(directory, name, {.wishes = {.tag = name}}, {});
  }

  std::unique_ptr<Repository> repository;
  std::unique_ptr<Store> store;
  History history;
  ToldGuard guard;
  Sync sync;
  CatalogListeners::Listening listening;
  ManualPins pins;
  Staging staging;
  PublishQueue queue;
};

/// Small checkpoints of one run: a file that always changes, one that sometimes does, one that
/// never does, and a text.
class ModelCheckpoints {
 public:
  static constexpr std::size_t kElements = 12'000;
  /// An upper bound of a version's size, and close to it.
  static constexpr std::uint64_t kVersionBytes = 2 * (kElements + 2 * kElements / 2) + 4096;

  explicit ModelCheckpoints(Random& rng) : rng_(rng) {}

  std::map<std::string, std::string> next() {
    count_++;
    often_ = nudged_bf16(often_, 0.01, rng_);
    if (count_ % 3 == 0) seldom_ = nudged_bf16(seldom_, 0.01, rng_);
    return {{"a.safetensors", file("a", often_)},
            {"b.safetensors", file("b", seldom_)},
            {"c.safetensors", file("c", never_)},
            {"config.json", "{\"step\": " + std::to_string(count_ / 2) + "}"}};
  }

 private:
  static std::string file(const std::string& name, const Bytes& data) {
    return make_safetensors({{name, Dtype::bf16, {data.size() / 2}, data}});
  }

  Random& rng_;
  unsigned count_ = 0;
  Bytes often_ = random_bf16(kElements, rng_), seldom_ = random_bf16(kElements / 2, rng_),
        never_ = random_bf16(kElements / 2, rng_);
};

/// The size of the files below these directories; hard links to the same file count once.
inline std::uint64_t bytes_below(const std::vector<std::filesystem::path>& directories) {
  std::set<ino_t> inodes;
  std::uint64_t bytes = 0;
  for (const auto& directory : directories) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      struct stat found {};
      const bool is_there = ::lstat(entry.path().c_str(), &found) == 0;
      if (!is_there || !S_ISREG(found.st_mode) || !inodes.insert(found.st_ino).second) continue;
      bytes += static_cast<std::uint64_t>(found.st_size);
    }
  }
  return bytes;
}

}  // namespace weightfs::test
