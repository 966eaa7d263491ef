// Hosts: the parts of a publisher's or reader's process, so that one test can have several.
//
// Threads: one thread at a time, unless stated otherwise.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/materialize.hpp"
#include "store/publish/publish.hpp"
#include "store/repository/repository.hpp"
#include "tests/support/memory_bucket.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

/// One of several views of a bucket in memory.
class BucketView : public Bucket {
 public:
  explicit BucketView(std::shared_ptr<MemoryBucket> bucket) : bucket_(std::move(bucket)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    return bucket_->get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    bucket_->put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    return bucket_->put_if_absent(key, bytes, context);
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    return bucket_->list_objects(prefix, after, context);
  }
  Time now(const Context& context) override { return bucket_->now(context); }
  void remove(std::string_view key, const Context& context) override {
    bucket_->remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_->url(); }

 private:
  std::shared_ptr<MemoryBucket> bucket_;
};

/// An empty in-memory repository.
inline std::shared_ptr<MemoryBucket> make_memory_repository() {
  auto bucket = std::make_shared<MemoryBucket>();
  bucket->replace(keys::kRecord,
                  R"({"created":1790000000,"format":1,"id":"0123456789abcdef0123456789abcdef",)"
                  R"("public_keys":[],"required_features":[]})");
  return bucket;
}

/// The record of a repository that was begun anew where that of `id` was: its id is of letters a.
inline std::string record_of_another(std::string record, const std::string& id) {
  return record.replace(record.find(id), id.size(), id.size(), 'a');
}

/// No minimum of free space: the test machine may be nearly full.
inline constexpr StoreLimits kNoFloor{std::nullopt, 0};

struct Host {
  Host(std::unique_ptr<Repository> opened, const std::filesystem::path& store_path,
       StoreLimits limits = kNoFloor, std::function<Space()> space = {})
      : repository(std::move(opened)),
        store(
            Store::open(store_path, repository->id(), repository->url(), limits, std::move(space))),
        history(*repository, store.get()) {}

  Host(const std::shared_ptr<MemoryBucket>& bucket, const std::filesystem::path& store_path,
       StoreLimits limits = kNoFloor)
      : Host(Repository::open(std::make_unique<BucketView>(bucket), {}), store_path, limits) {}

  PublishResult publish(PublishOptions options, const Context& context = {},
                        const Progress& progress = {}) {
    return weightfs::publish(history, *store, options, context, progress);
  }
  PublishResult publish(const std::filesystem::path& directory, const std::string& tag = "") {
    PublishOptions options;
    options.directory = directory;
    options.wishes.tag = tag;
    return publish(std::move(options));
  }

  /// The files of a version, as materialized in this host's store.
  std::map<std::string, std::string> read_version(std::uint64_t version) {
    materialize(*store, history, version, {}, {});
    return read_tree(store->images().image_directory(version));
  }

  std::unique_ptr<Repository> repository;
  std::unique_ptr<Store> store;
  History history;
};

/// Calls `body`, which must throw an Error; returns it.
template <typename Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::io, "nothing was thrown");
}

}  // namespace weightfs::test
