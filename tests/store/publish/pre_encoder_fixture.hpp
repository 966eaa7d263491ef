// For tests of PreEncoder: a publisher that has one, and checkpoints that are coded before they are
// published.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/inspect/verify.hpp"
#include "store/materialize/adopt.hpp"
#include "store/materialize/bases.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/pre_encoder.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/fresh_spans.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

/// A repository, a publisher with a PreEncoder, and a second repository that gets the same
/// checkpoints without early work.
class PreEncoderTest : public testing::Test {
 protected:
  using TensorFiles = std::map<std::string, std::vector<TestTensor>>;

  static constexpr std::size_t kEarlyElements = 600'000;  // of a tensor: more than kEarlyBytesMin
  static constexpr std::uint64_t kDirectory = 17;

  static TestTensor make_weights(std::string name, Random& rng,
                                 std::size_t elements = kEarlyElements) {
    return {std::move(name), Dtype::bf16, {elements}, random_bf16(elements, rng)};
  }

  static void nudge_all(TensorFiles& files, Random& rng) {
    for (auto& [path, tensors] : files) {
      for (TestTensor& tensor : tensors) tensor.data = nudged_bf16(tensor.data, 0.01, rng);
    }
  }

  PreEncoderTest() {
    files_["m-1.safetensors"] = {make_weights("a", rng_), make_weights("b", rng_)};
    files_["m-2.safetensors"] = {make_weights("c", rng_, 3 * kEarlyElements)};
    files_["sub/m.safetensors"] = {make_weights("d", rng_)};
  }

  /// Writes files_ and a blob into a new directory.
  std::filesystem::path save() {
    const std::filesystem::path directory = dir_ / ("checkpoint-" + std::to_string(saves_++));
    for (const auto& [path, tensors] : files_) {
      write_text(directory / path, make_safetensors(tensors));
    }
    write_text(directory / "config.json", "{}");
    return directory;
  }

  void start(const std::function<void(EarlyOptions&)>& change = {}) {
    EarlyOptions options;
    options.parent = [this]() -> std::optional<std::uint64_t> {
      if (parent_ < 0) return std::nullopt;
      return static_cast<std::uint64_t>(parent_.load());
    };
    options.at = [this](std::string_view point, const std::string& path) {
      const std::lock_guard lock(mutex_);
      reached_.emplace(std::string(point), path);
    };
    if (change) change(options);
    early_ = std::make_unique<PreEncoder>(host_.history, *host_.store, std::move(options));
  }

  void add(const std::filesystem::path& directory, const std::string& path,
           std::uint64_t generation = 1) {
    early_->add({kDirectory, path, directory / path, generation});
  }

  bool has_reached(const std::string& point, const std::string& path) {
    const std::lock_guard lock(mutex_);
    return reached_.contains({point, path});
  }
  std::size_t count_of(const std::string& point) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(reached_.begin(), reached_.end(),
                      [&](const auto& reached) { return reached.first == point; }));
  }
  /// Adds files, and waits until they have reached `point`.
  void code(const std::filesystem::path& directory, const std::set<std::string>& paths,
            const std::string& point = "uploaded") {
    {
      const std::lock_guard lock(mutex_);
      reached_.clear();
    }
    for (const std::string& path : paths) add(directory, path);
    for (const std::string& path : paths) {
      ASSERT_TRUE(eventually([&] { return has_reached(point, path); })) << path;
    }
  }

  std::shared_ptr<const PreEncoded> take(std::uint64_t generation = 1) {
    return early_->take(kDirectory,
                        [=](const EarlyFile& file) { return file.generation == generation; }, {});
  }

  /// Publishes and adopts, like a writer's mount, so that the version is the next one's parent.
  PublishResult publish(const std::filesystem::path& directory,
                        std::shared_ptr<const PreEncoded> early,
                        const std::function<void(PublishOptions&)>& change = {}) {
    PublishOptions options;
    options.directory = directory;
    if (early) options.early = [early](const Context&) { return early; };
    options.lock_images = true;
    if (change) change(options);
    PublishResult result = host_.publish(options);
    adopt_images(*host_.store, result.images, directory, result.images_lock);
    result.images_lock.unlock();
    check_noted(result, options);
    parent_ = static_cast<std::int64_t>(result.version);
    early_->parent_changed();
    return result;
  }

  /// What was noted while files were coded, early and by the publish, is what changed.
  void check_noted(const PublishResult& result, const PublishOptions& options) {
    if (!is_noted_) {
      EXPECT_FALSE(result.fresh) << "nobody asked";
      return;
    }
    if (result.version == 1) return;
    const auto base = [&](std::uint64_t version) {
      return base_of(*host_.store, host_.history, version, {});
    };
    const Base from = base(result.parent), to = base(result.version);
    const bool can_be = result.delta && span_between(from, to);
    ASSERT_EQ(result.fresh != nullptr, can_be) << options.directory;
    if (!result.fresh) return;
    noted_++;
    expect_as_compared(host_.store->patches(), from, to, *result.fresh);
  }

  PublishResult publish_plainly(const std::filesystem::path& directory) {
    return plain_host_.publish(directory);
  }

  /// A version equals that of the plain repository, and is restored byte for byte.
  void expect_same(std::uint64_t version, const std::filesystem::path& directory) {
    const Manifest mine = manifest_of(*bucket_, version), plain = manifest_of(*plain_, version);
    EXPECT_EQ(to_hex(mine.root), to_hex(plain.root)) << version;
    EXPECT_EQ(mine.features, plain.features) << version;
    EXPECT_EQ(mine.layout.sha256, plain.layout.sha256) << version;
    EXPECT_EQ(mine.blobs.size(), plain.blobs.size()) << version;
    ASSERT_EQ(mine.delta.has_value(), plain.delta.has_value()) << version;
    ASSERT_EQ(mine.snapshot.has_value(), plain.snapshot.has_value()) << version;
    if (mine.delta) {
      EXPECT_EQ(mine.delta->changed_elements, plain.delta->changed_elements) << version;
    }
    if (mine.snapshot) {
      EXPECT_EQ(mine.snapshot->hashes.sha256, plain.snapshot->hashes.sha256) << version;
    }
    Host reader(bucket_, dir_ / ("reader-" + std::to_string(readers_++)));
    EXPECT_EQ(reader.read_version(version), read_tree(directory)) << version;
  }

  void expect_sound() {
    Host reader(bucket_, dir_ / ("reader-" + std::to_string(readers_++)));
    const VerifyReport report =
        verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
    for (const Problem& problem : report.problems) {
      ADD_FAILURE() << problem.object << ": " << problem.message;
    }
  }

  static Manifest manifest_of(const MemoryBucket& bucket, std::uint64_t version) {
    return Manifest::parse(bucket.find(keys::manifest(version)).value(), "manifest");
  }

  std::vector<std::string> keys_below(std::string_view prefix) {
    std::vector<std::string> keys;
    for (const auto& [key, object] : bucket_->objects()) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    return keys;
  }

  [[nodiscard]] std::set<std::string> paths() const {
    std::set<std::string> all;
    for (const auto& [path, tensors] : files_) all.insert(path);
    return all;
  }

  void note() {
    host_.store->fresh_patches().add_taker();
    is_noted_ = true;
  }

  /// Version 1 in both repositories, without early work.
  void publish_first() {
    start();
    note();
    const auto directory = save();
    publish(directory, nullptr);
    publish_plainly(directory);
    nudge_all(files_, rng_);
  }

  TempDir dir_;
  Random rng_ = make_rng();
  TensorFiles files_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  std::shared_ptr<MemoryBucket> plain_ = make_memory_repository();
  Host host_{bucket_, dir_ / "store"}, plain_host_{plain_, dir_ / "plain-store"};
  std::atomic<std::int64_t> parent_{0};  // -1: unknown
  std::mutex mutex_;                     // guards reached_
  std::set<std::pair<std::string, std::string>> reached_;
  std::unique_ptr<PreEncoder> early_;
  bool is_noted_ = false;  // somebody takes what changed
  int noted_ = 0;          // versions of which it was noted

 private:
  int saves_ = 0, readers_ = 0;
};

}  // namespace weightfs::test
