// Writer: a writer's process without the mount: store, history, staging and publish queue.  Files
// are written as through passthrough: into the backing file.
//
// Threads: as its parts; the helpers one thread at a time.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/handover/publish_queue.hpp"
#include "store/materialize/check_images.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {

struct Writer {
  Writer(std::unique_ptr<Repository> opened, const std::filesystem::path& store_path,
         QueueOptions options = {}, std::function<Space()> space = {})
      : repository(std::move(opened)),
        store(Store::open(store_path, repository->id(), repository->url(), kNoFloor,
                          std::move(space))),
        history(*repository, store.get()),
        staging(store->db(), store->path() / "staging", {}),
        queue(staging, *store, history, std::move(options)) {
    check_images(*store, history, {});  // like a mount, before the queue starts
  }

  /// Starts publishing, like a mount: with the newest version known now.
  void start() { queue.start(history.refresh(store->manifests().newest().version, {})); }

  /// Stages a directory in `parent` with these files; '/' in a path makes directories.
  StagingId stage(const std::string& name, const std::map<std::string, std::string>& files,
                  StagingId parent = kStagingRoot) {
    const StagingId directory = staging.make_directory(parent, name, 0755, {});
    for (const auto& [path, bytes] : files) write(directory, path, bytes);
    return directory;
  }

  StagingId write(StagingId directory, std::string path, std::string_view bytes) {
    for (std::size_t slash = path.find('/'); slash != path.npos; slash = path.find('/')) {
      directory = child(directory, path.substr(0, slash));
      path.erase(0, slash + 1);
    }
    const StagingId id = find(directory, path) ? *find(directory, path)
                                               : staging.make_file(directory, path, 0644, {});
    staging.open(id, true);
    {
      const auto backing = staging.backing_path(id);
      const File file = File::open(backing, O_WRONLY | O_TRUNC);
      write_at(file.fd(), 0, as_bytes(bytes), backing);
    }
    if (staging.release(id, true)) queue.look_at(id);
    return id;
  }

  std::optional<StagingId> find(StagingId parent, std::string_view name) const {
    try {
      return staging.lookup(parent, name);
    } catch (const PosixError& error) {
      if (error.number() != ENOENT) throw;
      return std::nullopt;
    }
  }

  /// path -> bytes of every file below a staged directory.
  std::map<std::string, std::string> read(StagingId directory) const {
    std::map<std::string, std::string> files;
    for (const StagedFile& file : staging.list(directory)) {
      if (S_ISREG(file.type)) files.emplace(file.path, read_text(staging.backing_path(file.id)));
    }
    return files;
  }

  std::uint64_t hand_over(StagingId directory, const std::string& tag,
                          HandOverOptions options = {}) {
    options.wishes.tag = tag;
    return queue.hand_over(directory, tag, options, {});
  }

  /// Waits until no hand-over is in progress.
  bool settles() {
    return eventually([&] {
      for (const HandOver& item : queue.list()) {
        if (item.state != HandOver::State::conflict && item.state != HandOver::State::failed)
          return false;
      }
      return true;
    });
  }

  HandOver get(std::uint64_t order) const {
    for (HandOver& item : queue.list()) {
      if (item.order == order) return std::move(item);
    }
    return {};
  }

  /// Waits for a state.  Returns: false if the hand-over ends first, or after a generous limit.
  bool reaches(std::uint64_t order, HandOver::State state) const {
    return eventually([&] { return get(order).order == 0 || get(order).state == state; }) &&
           get(order).order == order;
  }

  std::unique_ptr<Repository> repository;
  std::unique_ptr<Store> store;
  History history;
  Staging staging;
  PublishQueue queue;

 private:
  StagingId child(StagingId parent, const std::string& name) {
    if (const auto found = find(parent, name)) return *found;
    return staging.make_directory(parent, name, 0755, {});
  }
};

/// A call on a bucket that is about to be made, or has been made.
struct BucketCall {
  std::string_view kind;  // "get", "put", "put_if_absent", "list", "remove", "now"
  std::string_view key;
  const Context& context;

  [[nodiscard]] bool is_manifest_put() const {
    return kind == "put_if_absent" && key.starts_with("versions/");
  }
};

/// Called before and after every call on a HookedBucket; may wait, and throw an error for the call.
/// Set them while no call runs, or keep their state in atomics.
struct BucketHooks {
  std::function<void(const BucketCall&call)> before, after;
};

/// A view of an in-memory bucket with hooks.
class HookedBucket final : public Bucket {
 public:
  HookedBucket(std::shared_ptr<MemoryBucket> bucket, std::shared_ptr<const BucketHooks> hooks)
      : bucket_(std::move(bucket)), hooks_(std::move(hooks)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    const Around around(*this, {"get", key, context});
    const std::size_t size = bucket_->get(key, offset_bytes, into, context);
    around.done();
    return size;
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    const Around around(*this, {"put", key, context});
    bucket_->put(key, source, context);
    around.done();
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    const Around around(*this, {"put_if_absent", key, context});
    const Put result = bucket_->put_if_absent(key, bytes, context);
    around.done();
    return result;
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    const Around around(*this, {"list", prefix, context});
    std::vector<ObjectInfo> objects = bucket_->list_objects(prefix, after, context);
    around.done();
    return objects;
  }
  Time now(const Context& context) override {
    const Around around(*this, {"now", "", context});
    const Time time = bucket_->now(context);
    around.done();
    return time;
  }
  void remove(std::string_view key, const Context& context) override {
    const Around around(*this, {"remove", key, context});
    bucket_->remove(key, context);
    around.done();
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_->url(); }

 private:
  struct Around {
    Around(const HookedBucket& bucket, const BucketCall& a_call)
        : hooks(*bucket.hooks_), call(a_call) {
      if (hooks.before) hooks.before(call);
    }
    void done() const {
      if (hooks.after) hooks.after(call);
    }
    const BucketHooks& hooks;
    const BucketCall call;
  };

  std::shared_ptr<MemoryBucket> bucket_;
  std::shared_ptr<const BucketHooks> hooks_;
};

/// Blocks callers while it is closed.
class Gate {
 public:
  void close() { is_closed_ = true; }
  void open() { is_closed_ = false; }

  /// Waits until it is open.
  /// Throws Error: as Context::check.
  void pass(const Context& context) {
    if (!is_closed_) return;
    waiting_++;
    try {
      while (is_closed_) context.pause(std::chrono::milliseconds(1), "waiting at a gate");
    } catch (...) {
      waiting_--;
      throw;
    }
    waiting_--;
  }

  /// Waits until a caller is waiting.
  bool is_reached() {
    return eventually([&] { return waiting_ > 0; });
  }

 private:
  std::atomic<bool> is_closed_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace weightfs::test
