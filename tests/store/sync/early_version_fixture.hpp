// A writer that codes early and a reader that makes a head start of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/materialize/adopt.hpp"
#include "store/materialize/bases.hpp"
#include "store/publish/early_packs.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/sync/make_early.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/fresh_spans.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

/// A writer that codes early, and a reader.
class EarlyVersionTest : public testing::Test {
 protected:
  using Path = std::filesystem::path;
  static constexpr std::size_t kElements = 600'000;  // of a tensor: more than kEarlyBytesMin
  static constexpr std::uint64_t kDirectory = 17;

  explicit EarlyVersionTest(std::size_t elements_of_c = kElements) {
    for (const std::string name : {"a", "b", "c"}) {
      const std::size_t elements = name == "c" ? elements_of_c : kElements;
      tensors_[name + ".safetensors"] = {
          {name, Dtype::bf16, {elements}, random_bf16(elements, rng_)}};
    }
    EarlyOptions options;
    options.parent = [this]() -> std::optional<std::uint64_t> {
      if (handed_over_ != 0) return std::nullopt;
      return parent_;
    };
    options.is_handed_over = [this](std::uint64_t directory) {
      asked_++;
      return directory == handed_over_;
    };
    early_.emplace(writer_.history, *writer_.store, std::move(options));
    publish(save(), nullptr);
    reader_.read_version(1);
  }

  void nudge(const std::string& path) {
    Bytes& data = tensors_.at(path).front().data;
    data = nudged_bf16(data, 0.01, rng_);
  }

  Path save() {
    const Path directory = dir_ / ("checkpoint-" + std::to_string(saves_++));
    for (const auto& [path, tensors] : tensors_) {
      write_text(directory / path, make_safetensors(tensors, metadata_));
    }
    write_text(directory / "config.json", "{}");
    return directory;
  }

  /// Another step, saved.
  Path step() {
    for (const auto& [path, tensors] : tensors_) nudge(path);
    return save();
  }

  /// Has these files coded and uploaded.  Returns: the record that readers are given.
  EarlyRecord code(const Path& directory, const std::set<std::string>& paths) {
    for (const std::string& path : paths) early_->add({kDirectory, path, directory / path, 1});
    EXPECT_TRUE(eventually([&] {
      const EarlyComing coming = early_->coming();
      return coming.record && std::ranges::all_of(paths, [&](const std::string& path) {
               return std::ranges::count(coming.record->files, path, &EarlyRecord::File::path) > 0;
             });
    }));
    return early_->coming().record.value();
  }

  /// Another step of one file, in the same checkpoint.
  void save_again(const Path& directory, const std::string& path) {
    nudge(path);
    write_text(directory / path, make_safetensors(tensors_.at(path), metadata_));
    early_->drop(kDirectory, path);
  }

  [[nodiscard]] std::set<std::string> all() const {
    std::set<std::string> paths;
    for (const auto& [path, tensors] : tensors_) paths.insert(path);
    return paths;
  }

  std::shared_ptr<const PreEncoded> take() {
    return early_->take(kDirectory, [](const EarlyFile&) { return true; }, {});
  }

  /// Publishes and adopts, like a writer's mount.
  std::uint64_t publish(const Path& directory, std::shared_ptr<const PreEncoded> early) {
    PublishOptions options;
    options.directory = directory;
    if (early) options.early = [early](const Context&) { return early; };
    options.lock_images = true;
    PublishResult result = writer_.publish(options);
    adopt_images(*writer_.store, result.images, directory, result.images_lock);
    result.images_lock.unlock();
    parent_ = result.version;
    early_->parent_changed();
    return result.version;
  }

  EarlyMade make(const EarlyRecord& record) {
    return make_early(*reader_.store, reader_.history, record, kernels::make_cpu_coder(), {});
  }

  /// Bytes that the version took of what was made early.
  std::uint64_t bring(std::uint64_t version, const Path& directory) {
    const std::uint64_t before = reader_.store->early_images().taken_bytes();
    EXPECT_EQ(reader_.read_version(version), read_tree(directory)) << version;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             reader_.store->images().image_directory(version))) {
      if (!entry.is_regular_file()) continue;
      EXPECT_EQ(entry.status().permissions() & std::filesystem::perms::all,
                std::filesystem::perms(0444))
          << entry.path();
    }
    EXPECT_TRUE(unsealed_files(reader_.store->images().image_directory(version)).empty());
    EXPECT_EQ(reader_.store->early_images().size_bytes(), 0u) << "the rest went";
    return reader_.store->early_images().taken_bytes() - before;
  }

  /// What was noted on the way to version 2 is what changed.
  void expect_noted() {
    const Base from = base_of(*reader_.store, reader_.history, 1, {});
    const Base to = base_of(*reader_.store, reader_.history, 2, {});
    const auto span = reader_.store->fresh_patches().take({1, from.version->manifest_sha256});
    ASSERT_TRUE(span);
    expect_as_compared(reader_.store->patches(), from, to, *span);
  }

  static std::uint64_t bytes_of(const Path& directory, const std::set<std::string>& paths) {
    std::uint64_t bytes = 0;
    for (const std::string& path : paths) bytes += std::filesystem::file_size(directory / path);
    return bytes;
  }

  TempDir dir_;
  Random rng_ = make_rng();
  std::map<std::string, std::vector<TestTensor>> tensors_;  // by path
  std::map<std::string, std::string> metadata_;             // of all files
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host writer_{bucket_, dir_ / "writer"};
  Host reader_{bucket_, dir_ / "reader", {1u << 30, 0}};  // nobody makes room ahead here
  std::atomic<std::uint64_t> parent_{0};
  std::atomic<std::uint64_t> handed_over_{0};  // a directory; 0: none
  std::atomic<int> asked_{0};                  // whether one is handed over
  std::optional<PreEncoder> early_;            // last: its thread uses those above

 private:
  int saves_ = 0;
};

}  // namespace weightfs::test
