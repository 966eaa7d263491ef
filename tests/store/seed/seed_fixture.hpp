// Seeds: a history in memory, a directory that may have what its snapshot has, and the two ways in
// which a host is filled.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/streaming/partial_version.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs::test {

class Seeded : public ::testing::Test {
 protected:
  Seeded() {
    auto bucket = std::make_unique<WatchedBucket>(builder_.bucket());
    watched_ = bucket.get();
    repository_ = Repository::open(std::move(bucket), {});
    big_ = random_tensor("big", Dtype::u8, {5 * kPieceBytes + 77}, rng_);
    x_ = random_tensor("x", Dtype::bf16, {300, 100}, rng_);
    y_ = random_tensor("y", Dtype::f16, {700'000}, rng_);
    other_x_ = random_tensor("x", Dtype::bf16, {70'000}, rng_);
    empty_ = random_tensor("empty", Dtype::f32, {0, 4}, rng_);
  }

  [[nodiscard]] Tree tree() const {
    return {{"a.safetensors", make_safetensors({big_, x_, empty_}, {{"format", "pt"}})},
            {"b.safetensors", make_safetensors({y_, other_x_}, {{"notes", notes_}})},
            {"none.safetensors", make_safetensors({})},
            {"config.json", "{}"}};
  }

  [[nodiscard]] std::filesystem::path seed_path() const { return directory_ / "seed"; }
  void write_seed(const std::string& name, const std::vector<TestTensor>& tensors) {
    write_text(seed_path() / name, make_safetensors(tensors));
  }
  /// All tensors of the version, in files of other names.
  void write_whole_seed() {
    write_seed("1.safetensors", {other_x_, big_, empty_});
    write_seed("sub/2.safetensors", {x_, y_});
  }
  void open_seed() { seed_ = SeedDirectory::open(seed_path()); }

  Plan plan(std::uint64_t version = 1) {
    history_.emplace(*repository_, nullptr, seed_);
    return make_plan(*history_, history_->get(version, {}), {}, {});
  }

  std::filesystem::path new_directory() {
    auto path = directory_ / ("version-" + std::to_string(++made_));
    std::filesystem::create_directories(path);
    return path;
  }

  /// The two ways: returns how many bytes of the snapshot were fetched.
  std::uint64_t write(std::uint64_t version = 1) {
    const Plan way = plan(version);
    fetched_before_ = fetched();
    WriteOptions options;
    options.directory = new_directory();
    options.spool = directory_.path();
    options.sync = false;
    options.meter = &meter_;
    std::uint64_t told = 0;
    write_version(way, *repository_, options, {},
                  [&](std::string_view phase, std::uint64_t done, std::uint64_t) {
                    if (phase.starts_with("fetching what")) told = done;
                  });
    EXPECT_EQ(read_tree(options.directory), builder_.tree(version));
    EXPECT_EQ(told, fetched() - fetched_before_);
    return fetched() - fetched_before_;
  }
  std::uint64_t stream(std::uint64_t version = 1, unsigned threads = 3) {
    Plan way = plan(version);
    fetched_before_ = fetched();
    PartialVersionOptions options;
    options.directory = new_directory();
    options.spool = directory_.path();
    options.threads = threads;
    PartialVersion filled(std::move(way), *repository_, options, Context{});
    filled.wait_complete({});
    EXPECT_EQ(read_tree(options.directory), builder_.tree(version));
    const std::uint64_t count = fetched() - fetched_before_;
    if (filled.plan().steps.empty()) {
      EXPECT_EQ(filled.progress().fetched_bytes, count);
    }
    return count;
  }

  /// Bytes of the snapshot's files.
  [[nodiscard]] std::uint64_t fetched() const {
    std::uint64_t bytes = 0;
    for (const auto& get : watched_->gets("snapshots/")) {
      if (!get.key.ends_with(".hashes")) bytes += get.size_bytes;
    }
    return bytes;
  }
  [[nodiscard]] std::uint64_t taken() const { return seed_->state().taken_bytes; }
  [[nodiscard]] std::uint64_t weights_bytes() const { return builder_.layout(1).size_bytes(); }
  /// Of a file without tensors: the layout has all of it.
  [[nodiscard]] std::uint64_t none_bytes() const {
    return builder_.tree(1).at("none.safetensors").size();
  }

  TempDir directory_;
  Random rng_ = make_rng();
  RepositoryBuilder builder_;
  WatchedBucket* watched_ = nullptr;
  std::unique_ptr<Repository> repository_;
  std::shared_ptr<const SeedDirectory> seed_;
  std::optional<History> history_;
  BuildMeter meter_;
  TestTensor big_, x_, y_, other_x_, empty_;
  std::string notes_;  // in a header

 private:
  std::uint64_t fetched_before_ = 0;
  int made_ = 0;
};

}  // namespace weightfs::test
