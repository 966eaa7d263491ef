// Fresh patches: what is noted while a version is written is byte for byte what a comparison of the
// two versions finds.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/patches/fresh_patches.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/fresh_spans.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

constexpr Dtype kDtypes[] = {Dtype::bf16,    Dtype::f16,     Dtype::f32, Dtype::u8,
                             Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::i64};

FreshEnd end_of(const Base& base) {
  return {{base.version->number(), base.version->manifest_sha256}, base.layout};
}

class FreshPatchesMade : public Materialize {
 protected:
  /// As write(), and notes what changes.
  std::pair<Base, std::unique_ptr<FreshSpan>> write_noted(const Plan& plan, const Base& from,
                                                          unsigned threads) {
    const auto chunks = std::make_shared<FreshChunks>(1u << 30);
    auto span = std::make_unique<FreshSpan>(
        end_of(from),
        FreshEnd{{plan.version->number(), plan.version->manifest_sha256}, plan.layout},
        std::vector<FreshPart>{{chunks, 0}});
    WriteOptions options;
    options.directory = directory_ / ("noted-" + std::to_string(++written_));
    options.spool = directory_.path();
    options.sync = false;
    options.threads = threads;
    options.noted.fresh = chunks.get();
    stdfs::create_directories(options.directory);
    write_version(plan, *repository_, options, {}, {});
    return {Base{plan.version, plan.layout, options.directory, plan.hashes}, std::move(span)};
  }

  void expect_what_is_taken(const Base& from, const Base& to, FreshSpan& span) {
    expect_as_compared(host_.store->patches(), from, to, span);
  }

  Host host_{builder_.bucket(), directory_ / "store", StoreLimits{1u << 30, 0}};
};

/// Some files change and some do not, changes come back, and elements change in several steps.
TEST_F(FreshPatchesMade, AreThoseOfAComparison) {
  Model model;
  std::size_t count = 0;
  for (const Dtype dtype : kDtypes) {
    const std::string name = "t" + std::to_string(count);
    model.files["f" + std::to_string(count++ % 3) + ".safetensors"].push_back(
        random_tensor(name, dtype, {count * 70'001}, rng_));
  }
  model.files["big.safetensors"] = {random_tensor("big", Dtype::bf16, {9'000, 1024}, rng_),
                                    random_tensor("tiny", Dtype::f32, {3}, rng_)};
  model.files["still.safetensors"] = {random_tensor("x", Dtype::u8, {5000}, rng_)};
  builder_.add(model.tree());
  std::vector<Base> bases = {write(plan(1))};
  const Model first = model;
  for (std::uint64_t version = 2; version <= 9; version++) {
    if (version == 6) {
      model = first;  // all of it comes back
    } else {
      for (auto& [path, tensors] : model.files) {
        if (path == "still.safetensors" || rng_() % 3 == 0) continue;
        const double share = version == 8 ? 0.6 : 0.01;
        for (TestTensor& tensor : tensors) nudge(tensor, share, rng_);
      }
    }
    builder_.add(model.tree());
    const Base& from = bases[rng_() % bases.size()];
    SCOPED_TRACE(testing::Message() << from.version->number() << " to " << version);
    auto [to, span] = write_noted(plan(version, {from}), from, 1 + rng_() % 4);
    expect_version(to);
    expect_what_is_taken(from, to, *span);
    bases.push_back(std::move(to));
  }
}

/// What is noted is the difference of the two ends, whatever the steps between them are.
TEST_F(FreshPatchesMade, ThroughASkipDeltaTheyAreThoseOfAComparison) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {900, 1024}, rng_),
                                  random_tensor("y", Dtype::f32, {70'001}, rng_)};
  for (int i = 0; i < 12; i++) {
    builder_.add(model.tree());
    model.nudge_all(0.01, rng_);
  }
  builder_.add_skip({2, 10});
  const Base from = write(plan(1));
  const Plan way = plan(11, {from});
  ASSERT_EQ(way.steps.size(), 3u);
  ASSERT_TRUE(way.steps[1].skip);
  auto [to, span] = write_noted(way, from, 2);
  expect_version(to);
  expect_what_is_taken(from, to, *span);
}

TEST_F(FreshPatchesMade, NothingLeadsOverAnotherTensorTable) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  const Base from = write(plan(1));
  model.files["a.safetensors"].push_back(random_tensor("new", Dtype::bf16, {1000}, rng_));
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree());
  auto [to, span] = write_noted(plan(2, {from}), from, 2);
  expect_version(to);
  EXPECT_FALSE(span->find_ends());
}

TEST_F(FreshPatchesMade, ADamagedBaseGivesNoneEvenWhereTheVersionIsRight) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {100}, rng_)};
  builder_.add(model.tree());
  const Base from = write(plan(1));
  model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {100}, rng_)};  // replaced
  builder_.add(model.tree());
  const stdfs::path image = from.directory / "a.safetensors";
  flip_byte(image, stdfs::file_size(image) - 3);
  auto [to, span] = write_noted(plan(2, {from}), from, 1);
  expect_version(to);
  EXPECT_FALSE(span->is_wanted());
}

/// A store's own: they wait when the version is complete, and a build that fails leaves nothing.
TEST_F(FreshPatchesMade, WaitInTheStoreUntilTheyAreTaken) {
  Model model = small_model(rng_);
  builder_.add(model.tree());
  Store& store = *host_.store;
  const auto bring = [&](std::uint64_t version, const kernels::SharedCoder& coder) {
    materialize(store, host_.history, version, {}, {}, coder);
  };
  bring(1, kernels::make_cpu_coder());
  store.fresh_patches().add_taker();
  for (std::uint64_t version = 2; version <= 3; version++) {
    model.nudge_all(0.01, rng_);
    builder_.add(model.tree());
    bring(version, kernels::make_cpu_coder());
  }
  for (std::uint64_t version = 1; version <= 2; version++) {
    const Base from = base_of(store, host_.history, version, {});
    const Base to = base_of(store, host_.history, version + 1, {});
    const auto span = store.fresh_patches().take(end_of(from).version);
    ASSERT_TRUE(span);
    expect_what_is_taken(from, to, *span);
  }
  EXPECT_TRUE(stdfs::is_empty(store.temporary_directory()));

  // One that fails, one by a coder that writes no logs, and what is there already.
  model.nudge_all(0.01, rng_);
  builder_.add(model.tree());
  const PatchVersion third = end_of(base_of(store, host_.history, 3, {})).version;
  builder_.bucket()->fail_key("packs/4/", ErrorCode::unavailable);
  EXPECT_ANY_THROW(bring(4, kernels::make_cpu_coder()));
  EXPECT_EQ(store.fresh_patches().take(third), nullptr);
  builder_.bucket()->heal();
  bring(4, std::make_shared<MeddlingCoder>());
  bring(4, kernels::make_cpu_coder());
  EXPECT_EQ(store.fresh_patches().take(third), nullptr);
  EXPECT_EQ(store.fresh_patches().counters(), FreshCounters{});
}

}  // namespace
}  // namespace weightfs::test
