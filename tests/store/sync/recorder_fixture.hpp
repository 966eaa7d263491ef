// RecorderTest: a host with a PatchRecorder, and a publisher whose weights change a little each
// time; shared by the tests of a host's history.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/sync/patch_recorder.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

namespace stdfs = std::filesystem;

inline constexpr std::size_t kRecorderElements = 50'000;

class RecorderTest : public testing::Test {
 protected:
  [[nodiscard]] stdfs::path checkpoint(unsigned version) const {
    return dir_ / ("checkpoint-" + std::to_string(version));
  }
  /// `share`: of the weights that change; `more`: elements of another tensor, 0: there is none.
  void publish(unsigned version, double share, std::size_t more) {
    weights_ = nudged_bf16(weights_, share, random_);
    std::vector<TestTensor> tensors{{"weight", Dtype::bf16, {kRecorderElements}, weights_}};
    if (more > 0) tensors.push_back({"more", Dtype::bf16, {more}, random_bf16(more, random_)});
    write_text(checkpoint(version) / "model.safetensors",
               make_safetensors(tensors, {{"step", std::to_string(version)}}));
    write_text(checkpoint(version) / "config.json", config_);
    ASSERT_EQ(publisher_.publish(checkpoint(version)).version, version);
  }

  void open(std::unique_ptr<Repository> repository) {
    recorder_.reset();
    sync_.reset();
    reader_.reset();
    reader_.emplace(std::move(repository), dir_ / "reader", limits_, space_);
    if (is_in_memory_) reader_->store->use_memory([] { return std::optional<MemoryRoom>(); });
    SyncOptions options;
    options.follow.poll.interval = std::chrono::milliseconds(2);
    sync_.emplace(*reader_->store, reader_->history, std::move(options));
    recorder_.emplace(*reader_->store, reader_->history);
  }
  void open() { open(Repository::open(std::make_unique<BucketView>(bucket_), {})); }
  void open_without_bucket() {
    open(
        Repository::assume("file://" + (dir_ / "no-bucket").string(), publisher_.repository->id()));
  }

  /// As if the changes since the version had not been noted, so that images are compared.
  void forget_noted(std::uint64_t version) {
    const Sha256 manifest = reader_->history.get(version, {})->manifest_sha256;
    EXPECT_TRUE(reader_->store->fresh_patches().take({version, manifest}));
  }

  [[nodiscard]] PatchTable& patches() { return reader_->store->patches(); }
  [[nodiscard]] std::vector<PatchSpan> spans() {
    std::vector<PatchSpan> spans;
    for (const SpanInfo& span : patches().list()) spans.push_back(span.span());
    return spans;
  }
  static PatchSpan one(std::uint64_t first, std::uint64_t last) {
    return {PatchLevel::one, first, last};
  }

  TempDir dir_;
  Random random_ = make_rng();
  Bytes weights_ = random_bf16(kRecorderElements, random_);
  std::string config_ = R"({"model_type":"test"})";
  bool is_in_memory_ = false;  // the images of the host
  StoreLimits limits_ = kNoFloor;
  std::function<Space()> space_;  // empty: that of the file system
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
  std::optional<Host> reader_;
  std::optional<Sync> sync_;
  std::optional<PatchRecorder> recorder_;
};

}  // namespace weightfs::test
