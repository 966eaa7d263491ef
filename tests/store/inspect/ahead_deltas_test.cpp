// Deltas that are made with their version: the same bytes as on demand, or none.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "store/inspect/delta_files.hpp"
#include "store/materialize/materialize.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sparse_deltas.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::apply_sparse_delta;
using test::Host;
using test::make_safetensors;
using test::nudge;
using test::random_tensor;
using test::read_text;
using test::RepositoryBuilder;
using test::TempDir;
using test::TestTensor;
using Counters = DeltaTable::Counters;

/// Ends the process when it is to decode.
class LastCoder final : public kernels::ChunkCoder {
 public:
  void encode(std::span<kernels::EncodeJob> /*jobs*/) override {}
  void decode(std::span<kernels::DecodeJob> /*jobs*/) override {
    ::_exit(9);  // no destructor runs
  }
  [[nodiscard]] bool writes_logs() const noexcept override { return true; }
  void fold(std::span<kernels::FoldJob> /*jobs*/) override {}
  [[nodiscard]] std::string name() const override { return "last"; }
  [[nodiscard]] std::size_t decode_batch_bytes() const noexcept override { return 1; }
};

class AheadDeltasTest : public ::testing::Test {
 protected:
  AheadDeltasTest() {
    set_tensors({random_tensor("x", Dtype::bf16, {1100, 1000}, rng_),
                 random_tensor("wide", Dtype::f64, {50'000}, rng_),
                 random_tensor("small", Dtype::f32, {3000}, rng_)});
  }

  void set_tensors(std::vector<TestTensor> tensors) { tensors_ = std::move(tensors); }

  /// Publishes another version.  Returns: its number.
  std::uint64_t publish(double share = 0.01) {
    for (TestTensor& tensor : tensors_) nudge(tensor, share, rng_);
    return builder_.add(tree());
  }
  [[nodiscard]] test::Tree tree() const {
    test::Tree tree{{"m.safetensors", make_safetensors(tensors_)}, {"config.json", "{}"}};
    if (other_) tree["other.safetensors"] = make_safetensors({*other_});
    return tree;
  }

  Host& host() {
    if (!host_) {
      host_.emplace(builder_.open(), path_, limits_);
      if (is_wanted_) want();
    }
    return *host_;
  }
  void restart() { host_.reset(); }

  /// An engine will read every change from here, in both forms.
  void want() {
    is_wanted_ = true;
    host().store->wanted_deltas().set_engines([this](std::uint64_t version) {
      const VersionPair span{host_->store->images().complete_versions().back(), version};
      return std::vector<DeltaId>{{span, false}, {span, true}};
    });
  }

  void bring(std::uint64_t version) {
    materialize(*host().store, host().history, version, {}, {});
    EXPECT_TRUE(test::read_tree(host().store->images().image_directory(version)) ==
                builder_.tree(version));
  }
  void finish() {
    for (const auto& delta : host().store->wanted_deltas().take_unfinished()) delta->finish({});
    host().store->deltas().record_synced();
  }

  Counters counters() { return host().store->deltas().counters(); }
  DeltaFiles files() { return {*host().store, host().history, {}}; }

  /// What a host makes of the two versions that was not asked before.
  std::string on_demand(const DeltaId& id) {
    const TempDir directory;
    Host other(builder_.open(), directory / "store", test::kNoFloor);
    for (const std::uint64_t version : {id.versions.from, id.versions.to}) {
      materialize(*other.store, other.history, version, {}, {});
    }
    std::string bytes = read_text(DeltaFiles(*other.store, other.history, {}).build(id, {}));
    EXPECT_EQ(other.store->deltas().counters(), (Counters{0, 1, 0, 0}));
    return bytes;
  }

  /// Both forms are there, and are what is made on demand.
  void expect_ahead(VersionPair span) {
    DeltaFiles deltas = files();
    for (const bool with_old : {false, true}) {
      SCOPED_TRACE(with_old ? "with old values" : "without old values");
      const DeltaId id{span, with_old};
      const Counters before = counters();
      ASSERT_TRUE(host().store->deltas().find(id));
      const std::uint64_t size = deltas.facts(id, {}).size_bytes;
      const filesystem::path file = deltas.build(id, {});
      EXPECT_EQ(counters(),
                (Counters{before.ahead, before.on_demand, before.given_up, before.served + 1}));
      const std::string bytes = read_text(file);
      EXPECT_EQ(bytes.size(), size);
      EXPECT_TRUE(bytes == on_demand(id));
      EXPECT_TRUE(apply_sparse_delta(bytes, builder_.tree(span.from)) == builder_.tree(span.to));
      if (with_old) {
        EXPECT_TRUE(apply_sparse_delta(bytes, builder_.tree(span.to), ".old") ==
                    builder_.tree(span.from));
      }
      struct stat seen {};
      ASSERT_EQ(::stat(file.c_str(), &seen), 0);
      EXPECT_EQ(seen.st_mode & 07777, 0444u);
      EXPECT_EQ(seen.st_mtime, host().history.get(span.to, {})->manifest.time);
    }
  }
  /// The version is right, and its delta is made on demand.
  void expect_on_demand(VersionPair span) {
    const Counters before = counters();
    for (const bool with_old : {false, true}) {
      const DeltaId id{span, with_old};
      EXPECT_FALSE(host().store->deltas().find(id));
      const std::string bytes = read_text(files().build(id, {}));
      EXPECT_TRUE(apply_sparse_delta(bytes, builder_.tree(span.from)) == builder_.tree(span.to));
    }
    EXPECT_EQ(counters().on_demand, before.on_demand + 2);
    EXPECT_EQ(counters().served, before.served);
  }
  void expect_no_spools() {
    EXPECT_TRUE(filesystem::is_empty(host().store->temporary_directory()));
  }

  test::Random rng_ = test::make_rng();
  std::vector<TestTensor> tensors_;
  std::optional<TestTensor> other_;  // in a file of its own
  RepositoryBuilder builder_;
  StoreLimits limits_ = test::kNoFloor;
  bool is_wanted_ = false;
  TempDir directory_;
  filesystem::path path_ = directory_ / "store";
  std::optional<Host> host_;
};

TEST_F(AheadDeltasTest, OfOneStepAreThereWithTheVersionAndTheSameBytes) {
  bring(publish());
  want();
  for (int i = 0; i < 3; i++) {
    const std::uint64_t version = publish(i == 0 ? 0.0 : 0.01 * i);
    bring(version);
    expect_ahead(step_to(version));
  }
  EXPECT_EQ(counters(), (Counters{6, 0, 0, 6}));
  expect_no_spools();
}

TEST_F(AheadDeltasTest, OfEveryDtype) {
  std::vector<TestTensor> tensors = test::tensors_of_all_dtypes(rng_);
  set_tensors(tensors);
  bring(publish());
  want();
  for (const double share : {0.002, 0.05, 0.2}) {
    const std::uint64_t version = publish(share);
    bring(version);
    if (host().store->deltas().find({step_to(version), true})) {
      expect_ahead(step_to(version));
    } else {
      expect_on_demand(step_to(version));  // more than a quarter of the version
    }
  }
  EXPECT_GE(counters().ahead, 2u);
}

TEST_F(AheadDeltasTest, OfSeveralStepsAreTheirSum) {
  bring(publish());
  want();
  for (int i = 0; i < 3; i++) publish(0.005);
  bring(4);
  EXPECT_EQ(counters(), Counters());
  finish();
  EXPECT_EQ(counters(), (Counters{2, 0, 0, 0}));
  expect_ahead({1, 4});
  expect_no_spools();
}

TEST_F(AheadDeltasTest, ASkipDeltaIsOneStep) {
  bring(publish());
  want();
  for (int i = 0; i < 8; i++) publish(0.002);
  builder_.add_skip({1, 9});
  bring(9);
  finish();
  expect_ahead({1, 9});
}

TEST_F(AheadDeltasTest, OfAThousandTensors) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 1000; i++) {
    tensors.push_back(random_tensor("t" + std::to_string(i), Dtype::bf16, {5000}, rng_));
  }
  set_tensors(std::move(tensors));
  bring(publish());
  want();
  bring(publish());
  expect_ahead({1, 2});
}

TEST_F(AheadDeltasTest, WhatCameBackIsNoChange) {
  bring(publish());
  const std::vector<TestTensor> published = tensors_;
  want();
  publish();
  set_tensors(published);
  nudge(tensors_[2], 0.01, rng_);
  builder_.add(tree());  // else as version 1
  bring(3);
  finish();
  expect_ahead({1, 3});
}

TEST_F(AheadDeltasTest, UnchangedFilesAreLinkedAndHaveNoEntries) {
  other_ = random_tensor("y", Dtype::bf16, {9000}, rng_);
  bring(publish());
  want();
  bring(publish());
  EXPECT_EQ(counters().ahead, 2u);
  expect_ahead({1, 2});
}

TEST_F(AheadDeltasTest, WithoutAWishNothingIsMade) {
  for (int i = 0; i < 3; i++) bring(publish());
  EXPECT_EQ(counters(), Counters());
  EXPECT_EQ(host().store->deltas().list().size(), 0u);
}

TEST_F(AheadDeltasTest, WhoOpensOneGetsTheNextOnesAheadUntilNobodyOpensThem) {
  const auto is_ahead = [&](std::uint64_t version) {
    return host().store->deltas().find({step_to(version), true}).has_value();
  };
  for (int i = 0; i < 2; i++) bring(publish());
  EXPECT_FALSE(is_ahead(2));
  files().build({step_to(2), true}, {});
  bring(publish());
  EXPECT_TRUE(is_ahead(3));
  bring(publish());
  EXPECT_TRUE(is_ahead(4)) << "a reader may be a version behind";
  bring(publish());
  EXPECT_FALSE(is_ahead(5));
  EXPECT_EQ(counters(), (Counters{2, 1, 0, 0}));
}

TEST_F(AheadDeltasTest, OtherTensorsHaveNone) {
  bring(publish());
  want();
  tensors_.push_back(random_tensor("new", Dtype::bf16, {5000}, rng_));
  const std::uint64_t version = publish();
  bring(version);
  finish();
  EXPECT_EQ(counters(), Counters());
  EXPECT_EQ(host().store->deltas().list().size(), 0u);
  bring(publish());
  expect_ahead({2, 3});
}

TEST_F(AheadDeltasTest, AHostThatKeepsAPartHasNone) {
  other_ = random_tensor("y", Dtype::bf16, {9000}, rng_);
  const std::vector<std::string> only{"other.safetensors"};
  const std::uint64_t first = publish();
  materialize(*host().store, host().history, first, {}, {}, kernels::make_cpu_coder(), only);
  want();
  nudge(*other_, 0.01, rng_);
  const std::uint64_t second = publish();
  materialize(*host().store, host().history, second, {}, {}, kernels::make_cpu_coder(), only);
  EXPECT_EQ(counters(), Counters());
  expect_on_demand({first, second});
}

TEST_F(AheadDeltasTest, ALargeChangeIsMadeOnDemand) {
  bring(publish());
  want();
  bring(publish(0.7));
  EXPECT_EQ(counters().ahead, 0u);
  expect_on_demand({1, 2});
}

TEST_F(AheadDeltasTest, NoRoomForTheDeltaDoesNotFailTheVersion) {
  std::atomic<std::uint64_t> free_bytes = 1u << 30;
  limits_ = {std::nullopt, 0};
  const std::uint64_t first = publish();
  host_.emplace(builder_.open(), path_, limits_, [&] {
    return Space{.free_bytes = free_bytes, .total_bytes = std::uint64_t{1} << 40};
  });
  bring(first);
  want();
  const std::uint64_t second = publish();
  // As much as the version needs.
  free_bytes = kRecordsFloorBytes + host().store->images().newest_bytes() + 1000;
  bring(second);
  EXPECT_EQ(counters().ahead, 0u);
  free_bytes = 1u << 30;
  expect_on_demand({1, 2});
}

TEST_F(AheadDeltasTest, AFileThatCannotBeWrittenDoesNotFailTheVersion) {
  bring(publish());
  want();
  // Instead of the directory of deltas, in which root may write whatever its mode is.
  filesystem::remove_all(path_ / "deltas");
  test::write_text(path_ / "deltas", "");
  bring(publish());
  EXPECT_EQ(counters(), (Counters{0, 0, 2, 0}));
  expect_no_spools();
  filesystem::remove(path_ / "deltas");
  filesystem::create_directory(path_ / "deltas");
  expect_on_demand({1, 2});
}

TEST_F(AheadDeltasTest, ADamagedBaseLeavesNothing) {
  bring(publish());
  want();
  const filesystem::path image = host().store->images().image_directory(1) / "m.safetensors";
  std::string bytes = read_text(image);
  for (std::size_t at = bytes.size() / 4; at < bytes.size(); at += 40'000) bytes[at] ^= 1;
  filesystem::remove(image);
  test::write_text(image, bytes);
  bring(publish());
  finish();
  EXPECT_EQ(counters().ahead, 0u);
  EXPECT_EQ(counters().given_up, 2u);
  EXPECT_EQ(host().store->deltas().list().size(), 0u);
  expect_no_spools();
}

TEST_F(AheadDeltasTest, ThatOfAStepSurvivesARestartAndTheOthersLeaveNothing) {
  bring(publish());
  want();
  bring(publish());
  finish();
  const std::string bytes = read_text(*host().store->deltas().find(step_to(2)));
  restart();
  EXPECT_TRUE(read_text(*host().store->deltas().find(step_to(2))) == bytes);
  EXPECT_FALSE(host().store->deltas().find({step_to(2), true}));
  bring(publish());  // whose process ends before it is recorded
  restart();
  EXPECT_FALSE(host().store->deltas().find(step_to(3)));
  EXPECT_EQ(std::distance(filesystem::directory_iterator(path_ / "deltas"), {}), 1);
}

TEST_F(AheadDeltasTest, OneThatTheDiskDidNotTakeGoes) {
  bring(publish());
  want();
  bring(publish());
  {
    const test::SyncWatch watch("/deltas/");
    EXPECT_EQ(test::code_of([&] { finish(); }), ErrorCode::io);
  }
  EXPECT_FALSE(host().store->deltas().find(step_to(2)));
  finish();
}

TEST_F(AheadDeltasTest, NothingIsLeftOfOneThatWasKilledWhileItWasMade) {
  bring(publish());
  const std::uint64_t second = publish();
  restart();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bring(1);  // what was not synced is no base
    want();
    materialize(*host().store, host().history, second, {}, {}, std::make_shared<LastCoder>());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 9);
  const auto left = std::distance(filesystem::directory_iterator(path_ / "tmp"), {});
  EXPECT_GE(left, 2) << "it was not being made";
  EXPECT_EQ(host().store->deltas().list().size(), 0u);
  EXPECT_TRUE(filesystem::is_empty(path_ / "deltas"));
  expect_no_spools();
  bring(1);
  want();
  bring(second);
  expect_ahead({1, 2});
}

TEST_F(AheadDeltasTest, ReadersWaitForTheOneThatIsBeingMade) {
  bring(publish());
  want();
  for (int i = 0; i < 2; i++) publish();
  bring(3);
  const DeltaId id{{1, 3}, true};
  std::atomic<int> built = 0;
  {
    DeltaFiles deltas = files();
    std::vector<std::jthread> readers;
    for (int i = 0; i < 4; i++) {
      readers.emplace_back([&] {
        const auto size = deltas.facts(id, {}).size_bytes;
        EXPECT_EQ(filesystem::file_size(deltas.build(id, {})), size);
        built++;
      });
    }
    EXPECT_EQ(built, 0);
    const Error error =
        test::error_of([&] { deltas.build(id, Context{}.within(std::chrono::milliseconds(1))); });
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    finish();
  }
  EXPECT_EQ(counters(), (Counters{2, 0, 0, 4}));
}

TEST_F(AheadDeltasTest, WhoWaitedMakesTheOneThatWasGivenUp) {
  bring(publish());
  want();
  for (int i = 0; i < 2; i++) publish();
  bring(3);
  {
    DeltaFiles deltas = files();
    const std::jthread reader([&] {
      const std::string bytes = read_text(deltas.build({1, 3}, {}));
      EXPECT_TRUE(apply_sparse_delta(bytes, builder_.tree(1)) == builder_.tree(3));
    });
    host().store->wanted_deltas().take_unfinished().clear();
  }
  EXPECT_EQ(counters(), (Counters{0, 1, 2, 0}));
}

}  // namespace
}  // namespace weightfs
