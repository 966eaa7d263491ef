#include "store/skips/make_skip.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/publish/upload_names.hpp"
#include "store/repository/skips.hpp"
#include "store/skips/skip_rules.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/patched_host.hpp"
#include "tests/support/skip_packs.hpp"

namespace weightfs::test {
namespace {

/// A model with every dtype, of which some tensors stay as they are.
struct SkipModel {
  explicit SkipModel(Random& rng) {
    for (const Dtype dtype :
         {Dtype::boolean, Dtype::u8, Dtype::i8, Dtype::f8_e5m2, Dtype::f8_e4m3, Dtype::i16,
          Dtype::u16, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::u32, Dtype::f32, Dtype::c64,
          Dtype::f64, Dtype::i64, Dtype::u64}) {
      tensors.push_back(random_tensor("t" + std::to_string(tensors.size()), dtype, {333, 7}, rng));
    }
    large.push_back(random_tensor("large", Dtype::bf16, {3, 1u << 20}, rng));
    large.push_back(random_tensor("empty", Dtype::f32, {0, 4}, rng));
  }

  [[nodiscard]] Tree tree() const {
    return {{"a.safetensors", make_safetensors(tensors, metadata)},
            {"b/large.safetensors", make_safetensors(large)},
            {"config.json", R"({"model_type":"test"})"}};
  }
  void step(Random& rng) {
    for (TestTensor& tensor : tensors) nudge(tensor, 0.02, rng);
    nudge(large[0], 0.001, rng);
  }

  std::vector<TestTensor> tensors, large;
  std::map<std::string, std::string> metadata;
};

class MakeSkipTest : public testing::Test {
 protected:
  void add(std::uint64_t versions) {
    for (std::uint64_t i = 0; i < versions; i++) {
      model_.step(rng_);
      host_.add(model_.tree());
    }
  }
  std::optional<MadeSkip> make(const VersionPair& versions, MakeSkipOptions options = {}) {
    return make_skip(host_.store(), host_.history(), versions, options, {}, {});
  }
  /// Makes it, and compares what it leads to.
  MadeSkip make_right(const VersionPair& versions, MakeSkipOptions options = {}) {
    auto made = make(versions, std::move(options));
    EXPECT_TRUE(made);
    if (!made) return {};
    EXPECT_EQ(made->record.versions, versions);
    expect_skip_leads(host_.builder(), made->record);
    return std::move(*made);
  }
  static MakeSkipOptions materializing() {
    MakeSkipOptions options;
    options.may_materialize = true;
    return options;
  }
  MemoryBucket& bucket() { return *host_.builder().bucket(); }
  std::vector<std::string> skip_keys() { return keys_below(keys::kSkips); }
  std::vector<std::string> keys_below(std::string_view prefix) {
    std::vector<std::string> keys;
    for (const auto& [key, bytes] : bucket().objects()) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    return keys;
  }
  /// No object below skips/ that `record` does not name.
  void expect_only(const SkipRecord& record) {
    std::set<std::string> expected{keys::skip_record(record.versions)};
    for (const PackRef& pack : record.delta.packs) {
      expected.insert(keys::skip_pack(record.versions, pack.name));
    }
    const std::vector<std::string> found = skip_keys();
    EXPECT_EQ(std::set(found.begin(), found.end()), expected);
  }

  Random rng_ = make_rng();
  SkipModel model_{rng_};
  PatchedHost host_;
};

TEST_F(MakeSkipTest, OfImagesOnThisHost) {
  add(3);
  const MadeSkip made = make_right({1, 3});
  EXPECT_TRUE(made.is_new);
  EXPECT_FALSE(made.record.delta.packs.empty());
  EXPECT_EQ(made.record.serialize(), find_skip(*host_.builder().open(), {1, 3}, {})->serialize());
  std::uint64_t bytes = 0;
  for (const std::string& key : skip_keys()) bytes += bucket().find(key)->size();
  EXPECT_EQ(made.uploaded_bytes, bytes);
  expect_only(made.record);
}

TEST_F(MakeSkipTest, WherePatchesLeadToBothNeitherIsWrittenAndNothingIsRead) {
  add(9);
  host_.keep_only(9);
  host_.lose_packs();
  make_right({1, 9});
  EXPECT_EQ(host_.store().images().complete_versions(), std::vector<std::uint64_t>{9});
  for (const char* prefix : {"versions/", "layouts/", "snapshots/", "packs/", "blobs/"}) {
    bucket().fail_key(prefix, ErrorCode::unavailable);
  }
  EXPECT_TRUE(make({2, 8})->is_new) << "both are patched";
  EXPECT_TRUE(make({3, 5})->is_new);
  EXPECT_EQ(host_.store().images().complete_versions(), std::vector<std::uint64_t>{9});
  bucket().heal();
  for (const VersionPair& versions : {VersionPair{2, 8}, VersionPair{3, 5}}) {
    expect_skip_leads(host_.builder(), *find_skip(*host_.builder().open(), versions, {}));
  }
}

TEST_F(MakeSkipTest, ForwardsFromAnOldImage) {
  add(6);
  host_.keep_only(2);
  host_.lose_packs();
  make_right({3, 6});
  make_right({2, 5});
  EXPECT_EQ(host_.store().images().complete_versions(), std::vector<std::uint64_t>{2});
}

TEST_F(MakeSkipTest, ChunksThatAreEqualAreNotInPacks) {
  model_.step(rng_);
  host_.add(model_.tree());
  const Tree first = model_.tree();
  for (int i = 0; i < 2; i++) {
    nudge(model_.tensors[0], 0.05, rng_);
    host_.add(model_.tree());
  }
  const MadeSkip made = make_right({1, 3});
  ASSERT_EQ(made.record.delta.packs.size(), 1u);
  const auto index = host_.builder().open()->get_pack_index(
      keys::skip_pack({1, 3}, made.record.delta.packs[0].name), made.record.delta.packs[0],
      host_.builder().layout(3), {});
  EXPECT_EQ(index->chunks().size(), 1u);
  host_.add(first);  // and back
  host_.keep_only(4);
  EXPECT_TRUE(make_right({1, 4}).record.delta.packs.empty());
}

TEST_F(MakeSkipTest, OfABareStoreOneVersionIsMaterialised) {
  add(5);
  TempDir elsewhere;
  Host bare(host_.builder().bucket(), elsewhere / "store");
  const Error error = error_of([&] { make_skip(*bare.store, bare.history, {2, 5}, {}, {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
  EXPECT_TRUE(skip_keys().empty());
  const auto made = make_skip(*bare.store, bare.history, {2, 5}, materializing(), {}, {});
  ASSERT_TRUE(made);
  expect_skip_leads(host_.builder(), made->record);
  EXPECT_EQ(bare.store->images().complete_versions(), std::vector<std::uint64_t>{2});
}

TEST_F(MakeSkipTest, HeadersMayDiffer) {
  for (int i = 0; i < 4; i++) {
    model_.metadata["step"] = std::string(static_cast<std::size_t>(3 * i), 'x');
    add(1);
  }
  host_.keep_only(4);
  make_right({1, 4});
  make_right({1, 3});
}

TEST_F(MakeSkipTest, NoneLeadsOverAChangeOfTheTensorTable) {
  add(2);
  model_.tensors.push_back(random_tensor("new", Dtype::bf16, {10}, rng_));
  add(2);
  EXPECT_FALSE(make({1, 3}, materializing()));
  EXPECT_FALSE(make({2, 4}, materializing()));
  EXPECT_TRUE(skip_keys().empty());
}

TEST_F(MakeSkipTest, WhatIsNoSkipIsRefused) {
  add(3);
  for (const VersionPair& versions : {VersionPair{1, 2}, VersionPair{2, 1}, VersionPair{0, 2}}) {
    EXPECT_EQ(error_of([&] { make(versions); }).code(), ErrorCode::invalid);
  }
  EXPECT_EQ(error_of([&] { make({2, 4}); }).code(), ErrorCode::not_found);
}

TEST_F(MakeSkipTest, WhatIsThereIsNotMadeAgain) {
  add(4);
  const MadeSkip made = make_right({1, 4});
  for (const std::string& key : skip_keys()) {
    if (key.ends_with(".safetensors")) bucket().erase(key);
  }
  const std::uint64_t puts = bucket().calls("put") + bucket().calls("put_if_absent");
  const auto again = make({1, 4});
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(again->record.serialize(), made.record.serialize());
  EXPECT_EQ(again->uploaded_bytes, 0u);
  EXPECT_EQ(bucket().calls("put") + bucket().calls("put_if_absent"), puts);
  bucket().replace(keys::skip_record({1, 4}), "{}");
  EXPECT_EQ(error_of([&] { make({1, 4}); }).code(), ErrorCode::corrupt);
}

/// Another host makes it meanwhile: its record stays, and our packs go.
TEST_F(MakeSkipTest, WhoIsSlowerRemovesItsPacks) {
  add(4);
  TempDir elsewhere;
  Host other(host_.builder().bucket(), elsewhere / "store");
  std::optional<MadeSkip> theirs;
  const Progress race = [&](std::string_view phase, std::uint64_t, std::uint64_t) {
    if (phase != "uploading" || theirs) return;
    theirs = make_skip(*other.store, other.history, {1, 4}, materializing(), {}, {});
  };
  const auto ours = make_skip(host_.store(), host_.history(), {1, 4}, {}, {}, race);
  ASSERT_TRUE(ours && theirs);
  EXPECT_FALSE(ours->is_new);
  EXPECT_TRUE(theirs->is_new);
  EXPECT_EQ(ours->record.serialize(), theirs->record.serialize());
  expect_only(theirs->record);
  expect_skip_leads(host_.builder(), theirs->record);
}

/// The same while it is being coded: nothing is uploaded twice.
TEST_F(MakeSkipTest, WhatCameMeanwhileIsNotUploaded) {
  add(4);
  TempDir elsewhere;
  Host other(host_.builder().bucket(), elsewhere / "store");
  std::optional<MadeSkip> theirs;
  MakeSkipOptions options;
  options.threads = 1;
  options.before_batch = [&](const Context& context) {
    if (theirs) return;
    theirs = make_skip(*other.store, other.history, {1, 4}, materializing(), context, {});
  };
  const std::uint64_t puts = bucket().calls("put");
  const auto ours = make({1, 4}, options);
  ASSERT_TRUE(ours && theirs);
  EXPECT_FALSE(ours->is_new);
  EXPECT_EQ(ours->uploaded_bytes, 0u);
  EXPECT_EQ(bucket().calls("put") - puts, theirs->record.delta.packs.size());
  expect_only(theirs->record);
}

/// A hand-over that comes while packs are uploaded waits for one of them, not for all.
TEST_F(MakeSkipTest, APublishGoesFirstBetweenTwoPacks) {
  add(4);
  const auto uploaded = [&] { return skip_keys().size(); };
  MakeSkipOptions options;
  options.pack_bytes = 1;  // many packs
  options.threads = 1;
  options.before_batch = [&](const Context&) {
    if (uploaded() == 1) throw Error(ErrorCode::cancelled, "it would wait here");
  };
  EXPECT_EQ(error_of([&] { make({1, 4}, options); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(uploaded(), 1u);
  // Nor is the record put meanwhile.
  options.before_batch = {};
  const std::size_t packs = make_right({1, 4}, options).record.delta.packs.size();
  EXPECT_GT(packs, 1u);
  for (const std::string& key : skip_keys()) bucket().erase(key);
  options.before_batch = [&](const Context&) {
    if (uploaded() == packs) throw Error(ErrorCode::cancelled, "it would wait here");
  };
  EXPECT_EQ(error_of([&] { make({1, 4}, options); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(uploaded(), packs);
}

/// Every request fails once, as if the process were killed there; then it is done again.
TEST_F(MakeSkipTest, AfterAFailureAtAnyRequestNothingIsDoubled) {
  add(4);
  host_.keep_only(4);
  for (std::uint64_t call = 1;; call++) {
    for (const std::string& key : skip_keys()) bucket().erase(key);
    const std::uint64_t failures = bucket().failures();
    bucket().fail_call(call, ErrorCode::cancelled);
    MakeSkipOptions options;
    options.pack_bytes = 1;  // many packs
    options.threads = 1;
    const Error error = error_of([&] { make({1, 4}, options); });
    bucket().heal();
    if (bucket().failures() == failures) break;
    EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
    set_uploader(host_.store(), random_hex(16), Durability::process);  // as a publish meanwhile
    const MadeSkip made = make_right({1, 4}, options);
    EXPECT_GT(made.record.delta.packs.size(), 1u);
    expect_only(made.record);
    ASSERT_LT(call, 100u);
  }
}

/// The record arrived, but not the answer.
TEST_F(MakeSkipTest, ALostReplyIsSettledByTheNextAttempt) {
  add(4);
  bucket().lose_reply(std::string(keys::kSkips));
  EXPECT_EQ(error_of([&] { make({1, 4}); }).code(), ErrorCode::unavailable);
  const auto made = make({1, 4});
  ASSERT_TRUE(made);
  EXPECT_FALSE(made->is_new);
  expect_skip_leads(host_.builder(), made->record);
  expect_only(made->record);
}

TEST_F(MakeSkipTest, DamagedPatchesAreNotBelieved) {
  add(4);
  host_.keep_only(4);
  host_.damage({PatchLevel::one, 2, 3});
  make_right({1, 4}, materializing());  // of packs, since no other patches lead there
}

TEST_F(MakeSkipTest, WithoutAnotherWayDamageEndsIt) {
  add(4);
  host_.keep_only(4);
  host_.damage({PatchLevel::one, 2, 3});
  EXPECT_EQ(error_of([&] { make({1, 4}); }).code(), ErrorCode::not_found);
  EXPECT_TRUE(skip_keys().empty());
}

TEST_F(MakeSkipTest, DamagedImagesAreNotBelieved) {
  add(4);
  host_.keep_only(1);
  const auto image = host_.store().images().image_directory(1) / "a.safetensors";
  std::filesystem::permissions(image, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::string bytes = read_text(image);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(image, bytes);
  make_right({1, 4}, materializing());
  EXPECT_FALSE(host_.store().images().complete_versions().empty());
}

/// What is uploaded was decoded and compared; a coder that is wrong has nothing published.
TEST_F(MakeSkipTest, ACoderThatIsWrongLeavesNothing) {
  add(3);
  MakeSkipOptions options;
  const auto coder = std::make_shared<MeddlingCoder>();
  coder->after_encode = [](kernels::EncodeJob& job) { job.is_verified = false; };
  options.coder = coder;
  EXPECT_EQ(error_of([&] { make({1, 3}, options); }).code(), ErrorCode::io);
  EXPECT_TRUE(skip_keys().empty());
}

TEST_F(MakeSkipTest, ItEndsWhenItIsTold) {
  add(4);
  host_.keep_only(4);
  std::stop_source source;
  MakeSkipOptions options;
  options.before_batch = [&](const Context&) { source.request_stop(); };
  const Context context{source.get_token()};
  const Error error = error_of([&] {
    make_skip(host_.store(), host_.history(), {1, 4}, options, context, {});
  });
  EXPECT_EQ(error.code(), ErrorCode::cancelled);
  EXPECT_TRUE(skip_keys().empty());
  host_.keep_only(4);
  EXPECT_TRUE(host_.store().evictor().evict(4)) << "nothing is reserved any more";
}

// ---- where nothing is here ----

/// What making these skips fetches into a store that has nothing.
std::uint64_t fetched_bytes(const RepositoryBuilder& builder, const std::vector<VersionPair>& skips,
                            std::uint64_t& gets) {
  TempDir directory;
  Host host(builder.bucket(), directory / "store");
  const std::uint64_t bytes = builder.bucket()->bytes_read();
  gets = builder.bucket()->calls("get");
  MakeSkipOptions options;
  options.may_materialize = true;
  for (const VersionPair& skip : skips) {
    EXPECT_TRUE(make_skip(*host.store, host.history, skip, options, {}, {}));
  }
  gets = builder.bucket()->calls("get") - gets;
  for (const auto& [key, object] : builder.bucket()->objects()) {
    if (key.starts_with(keys::kSkips)) builder.bucket()->erase(key);
  }
  return builder.bucket()->bytes_read() - bytes;
}

TEST(MissingSkips, InTheirOrderABareStoreFetchesTheLeast) {
  Random rng = make_rng();
  TestTensor tensor = random_tensor("w", Dtype::bf16, {1000, 300}, rng);
  RepositoryBuilder builder;
  for (int version = 1; version <= 33; version++) {
    builder.add({{"m.safetensors", make_safetensors({tensor})}});
    nudge(tensor, 0.01, rng);
  }
  const auto repository = builder.open();
  History history(*repository, nullptr);
  std::vector<VersionPair> skips = missing_skips(history, 33, 33, {}, {});
  ASSERT_EQ(skips.size(), 5u);
  std::uint64_t gets = 0, other_gets = 0;
  const std::uint64_t bytes = fetched_bytes(builder, skips, gets);
  std::ranges::reverse(skips);
  const std::uint64_t other_bytes = fetched_bytes(builder, skips, other_gets);
  fmt::print("oldest first: {} gets, {} bytes; newest first: {}, {}\n", gets, bytes, other_gets,
             other_bytes);
  EXPECT_LT(bytes, other_bytes);
}

}  // namespace
}  // namespace weightfs::test
