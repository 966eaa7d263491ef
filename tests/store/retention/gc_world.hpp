// GcWorld: an in-memory repository with real, tiny versions, and what a collector must not break.
//
// Threads: one at a time, except for the bucket.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "store/materialize/plan.hpp"
#include "store/retention/collect.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {

class GcWorld {
 public:
  explicit GcWorld(Random& random, std::uint64_t elements = 64)
      : rng(random), elements_(elements) {}

  /// Publishes a version.
  std::uint64_t publish(bool snapshot = false, const std::string& tag = "") {
    if (tensors_.empty()) {
      tensors_.push_back(random_tensor("w", Dtype::bf16, {elements_}, rng));
    } else {
      tensors_[0].data[rng() % elements_ * 2] ^= std::byte{1};  // a small pack
    }
    BuildOptions options;
    options.snapshot = snapshot;
    options.edit = [&](Manifest& manifest) { manifest.tag = tag; };
    return builder.add({{"model.safetensors", make_safetensors(tensors_)}}, options);
  }
  void publish_many(std::uint64_t count, std::uint64_t snapshot_every = 0) {
    for (std::uint64_t i = 0; i < count; i++) {
      publish(snapshot_every != 0 && (builder.newest() + 1) % snapshot_every == 0);
    }
  }

  /// What a publisher leaves that was killed, or lost the race for a number.
  std::string leave_pack(std::uint64_t version) {
    std::string key = keys::pack(version, random_hex(16) + "-0");
    bucket()->replace(key, "left behind");
    return key;
  }
  std::string leave_snapshot(std::uint64_t version) {
    std::string key = keys::snapshot_file(version, random_hex(16), "model.safetensors");
    bucket()->replace(key, "left behind");
    return key;
  }

  CollectReport gc(const CollectOptions& options, const BucketHooks& hooks = {}) {
    return collect(*open(hooks), options, {});
  }
  CollectReport gc(std::uint64_t keep, std::chrono::seconds grace = std::chrono::hours(24)) {
    return gc(options_for(keep, grace));
  }
  static CollectOptions options_for(std::uint64_t keep,
                                    std::chrono::seconds grace = std::chrono::hours(24)) {
    CollectOptions options;
    options.keep.newest = keep;
    options.keep.tags = {};
    options.grace = grace;
    return options;
  }

  /// Another view of the repository.
  [[nodiscard]] std::unique_ptr<Repository> open(const BucketHooks& hooks) const {
    return Repository::open(
        std::make_unique<HookedBucket>(bucket(), std::make_shared<const BucketHooks>(hooks)), {});
  }

  [[nodiscard]] GcLog log() const { return read_gc_log(*builder.open(), {}); }

  /// Why a host without a base cannot build the version from the bucket; empty: it can.
  [[nodiscard]] std::string problem_of(std::uint64_t version) const {
    try {
      const auto repository = builder.open();
      History history(*repository, nullptr);
      const Plan plan = make_plan(history, history.get(version, {}), {}, {});
      if (plan.snapshot) {
        const Version& start = *plan.snapshot->version;
        for (const LayoutFile& file : plan.snapshot->layout->files()) {
          read_whole(keys::snapshot_file(start.number(), start.manifest.snapshot->nonce, file.path),
                     file.size_bytes);
        }
      }
      for (const Step& step : plan.steps) {
        for (std::size_t i = 0; i < step.packs.size(); i++) {
          read_whole(step.pack_key(i), step.version->manifest.delta->packs[i].size_bytes);
        }
      }
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  /// Every version is there but those that the log says are retired.
  void expect_sound() const {
    const GcLog now = log();
    for (std::uint64_t version = 1; version <= builder.newest(); version++) {
      EXPECT_TRUE(bucket()->find(keys::manifest(version))) << version;
      if (!now.versions.contains(version)) {
        EXPECT_EQ(problem_of(version), "") << "version " << version;
      }
    }
    EXPECT_FALSE(now.versions.contains(builder.newest()));
  }

  [[nodiscard]] const std::shared_ptr<MemoryBucket>& bucket() const { return builder.bucket(); }
  [[nodiscard]] bool has(const std::string& key) const { return bucket()->find(key).has_value(); }
  [[nodiscard]] std::size_t count(std::string_view prefix) const {
    std::size_t found = 0;
    for (const auto& [key, bytes] : bucket()->objects()) found += key.starts_with(prefix) ? 1 : 0;
    return found;
  }

  RepositoryBuilder builder;
  Random& rng;

 private:
  void read_whole(const std::string& key, std::uint64_t size) const {
    const auto bytes = bucket()->find(key);
    if (!bytes) throw Error(ErrorCode::not_found, key + " is gone");
    if (bytes->size() != size) throw Error(ErrorCode::corrupt, key + " has another size");
  }

  const std::uint64_t elements_;
  std::vector<TestTensor> tensors_;
};

}  // namespace weightfs::test
