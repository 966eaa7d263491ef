// GcWorld: an in-memory repository with real, tiny versions, and what a collector must not break.
//
// Threads: one at a time, except for the bucket.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/materialize/history.hpp"
#include "store/repository/skips.hpp"
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
      // A small pack; two changes do not cancel each other for a while.
      tensors_[0].data[builder.newest() % elements_ * 2] ^= std::byte{1};
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
    const auto repository = open(hooks);
    return collect(*repository, options, skip_work(*repository), {});
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

  /// Makes and checks skips, through the collector's own view of the bucket.
  [[nodiscard]] SkipWork skip_work(Repository& repository) {
    SkipWork work;
    if (!makes_skips) return work;
    work.make = [this, &repository](const VersionPair& versions, const Context& context) {
      if (refused.contains(versions)) return false;
      const SkipRecord record = builder.put_skip_packs(versions);
      (void)put_skip(repository, record, context);
      return true;
    };
    work.check = [this, &repository](const SkipRecord& record, const Context& context) {
      checks++;
      History history(repository, nullptr);
      const auto layout = history.layout(*history.get(record.versions.to, context), context);
      for (const PackRef& ref : record.delta.packs) {
        const std::string key = keys::skip_pack(record.versions, ref.name);
        (void)repository.get_pack_index(key, ref, *layout, context);
      }
    };
    return work;
  }

  /// Another view of the repository.
  [[nodiscard]] std::unique_ptr<Repository> open(const BucketHooks& hooks) const {
    return Repository::open(
        std::make_unique<HookedBucket>(bucket(), std::make_shared<const BucketHooks>(hooks)), {});
  }

  [[nodiscard]] GcLog log() const { return read_gc_log(*builder.open(), {}); }

  /// The objects by which a host without a base builds each version, by what is there, whatever
  /// the log says it retired: whole snapshots, whole deltas, and whole skips that it needs.  Empty:
  /// there is no way.
  [[nodiscard]] std::map<std::uint64_t, std::vector<std::string>> find_ways() const {
    const GcLog now = log();
    const auto repository = builder.open();
    std::map<std::uint64_t, std::vector<std::string>> ways;
    for (std::uint64_t number = 1; number <= builder.newest(); number++) {
      const Manifest manifest = repository->find_version(number, {})->manifest;
      const auto take = [&](std::uint64_t from, const Objects& objects) {
        if (ways.contains(number) || (from != 0 && !ways.contains(from)) || !has_all(objects)) {
          return;
        }
        std::vector<std::string> way = from == 0 ? std::vector<std::string>{} : ways.at(from);
        for (const auto& [key, size] : objects) way.push_back(key);
        ways.emplace(number, std::move(way));
      };
      if (manifest.snapshot) take(0, snapshot_objects(number, *manifest.snapshot));
      if (manifest.delta) {
        take(number - 1, pack_objects(*manifest.delta, [&](const std::string& name) {
               return keys::pack(number, name);
             }));
      }
      for (const auto& [skip, sha] : now.needs) {
        if (skip.to == number) take(skip.from, skip_objects(*repository, skip, sha));
      }
    }
    return ways;
  }
  [[nodiscard]] std::set<std::uint64_t> found_versions() const {
    std::set<std::uint64_t> found;
    for (const auto& [version, way] : find_ways()) found.insert(version);
    return found;
  }

  /// Every version is there but those that the log says are retired, whatever skips it does not
  /// need.
  void expect_sound() const {
    const GcLog now = log();
    const std::set<std::uint64_t> found = found_versions();
    for (std::uint64_t version = 1; version <= builder.newest(); version++) {
      EXPECT_TRUE(bucket()->find(keys::manifest(version))) << version;
      if (!now.versions.contains(version)) {
        EXPECT_TRUE(found.contains(version)) << "version " << version;
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
  bool makes_skips = true;
  std::set<VersionPair> refused;  // that cannot be made
  std::size_t checks = 0;         // of skips

 private:
  using Objects = std::vector<std::pair<std::string, std::uint64_t>>;  // keys and sizes

  [[nodiscard]] bool has_all(const Objects& objects) const {
    return !objects.empty() && std::ranges::all_of(objects, [&](const auto& object) {
      const auto bytes = bucket()->find(object.first);
      return bytes && !bytes->empty() && bytes->size() == object.second;
    });
  }

  template <typename KeyOf>
  [[nodiscard]] static Objects pack_objects(const DeltaRef& delta, KeyOf&& key_of) {
    Objects objects;
    for (const PackRef& pack : delta.packs) {
      objects.emplace_back(key_of(pack.name), pack.size_bytes);
    }
    return objects;
  }

  /// Empty: its record is not there, or another one.
  [[nodiscard]] Objects skip_objects(Repository& repository, const VersionPair& versions,
                                     const Sha256& sha) const {
    const auto bytes = bucket()->find(keys::skip_record(versions));
    if (!bytes || sha256(as_bytes(*bytes)) != sha) return {};
    Objects objects =
        pack_objects(find_skip(repository, versions, {})->delta,
                     [&](const std::string& name) { return keys::skip_pack(versions, name); });
    objects.emplace_back(keys::skip_record(versions), bytes->size());
    return objects;
  }

  [[nodiscard]] Objects snapshot_objects(std::uint64_t version, const SnapshotRef& ref) const {
    const std::string hashes = keys::snapshot_hashes(version, ref.nonce);  // compressed
    Objects objects{{hashes, bucket()->find(hashes).value_or("").size()}};
    for (const LayoutFile& file : builder.layout(version).files()) {
      objects.emplace_back(keys::snapshot_file(version, ref.nonce, file.path), file.size_bytes);
    }
    return objects;
  }

  const std::uint64_t elements_;
  std::vector<TestTensor> tensors_;
};

}  // namespace weightfs::test
