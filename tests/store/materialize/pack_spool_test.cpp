#include "store/materialize/pack_spool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "store/repository/pieces.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs {
namespace {

using test::error_of;

/// Version 2 has a pack of several fetches: a completely new tensor.
class PackSpoolTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 5 * kPieceBytes + 1000;

  PackSpoolTest() {
    builder_.add({{"a.safetensors", test::make_safetensors({})}});
    test::TestTensor tensor{"x", Dtype::u8, {kBytes}, Bytes(kBytes)};
    for (std::byte& byte : tensor.data) byte = static_cast<std::byte>(rng_());
    builder_.add({{"a.safetensors", test::make_safetensors({tensor})}});
    auto bucket = std::make_unique<test::WatchedBucket>(builder_.bucket());
    bucket_ = bucket.get();
    repository_ = Repository::open(std::move(bucket), {});
    history_ = std::make_unique<History>(*repository_, nullptr);
    plan_ = make_plan(*history_, history_->get(2, {}), {}, {});
    key_ = builder_.key("packs/2/");
    heads_ = bucket_->gets("packs/").size();
  }

  /// The coded bytes of a chunk.
  Bytes read(const PackSpool& spool, std::uint32_t index) {
    const PackEntry place = plan_.steps[0].listed[index];
    Bytes bytes(plan_.steps[0].chunk(place).data_size_bytes);
    spool.read(0, place, bytes);
    return bytes;
  }

  /// The coded bytes of the chunk in the pack.
  Bytes expected(std::uint32_t index) {
    const Step& step = plan_.steps[0];
    const PackChunk& chunk = step.chunk(step.listed[index]);
    const std::string pack = builder_.bucket()->find(key_).value();
    const auto begin = step.packs[0]->data_offset_bytes() + chunk.data_offset_bytes;
    const auto part = as_bytes(pack).subspan(begin, chunk.data_size_bytes);
    return {part.begin(), part.end()};
  }

  [[nodiscard]] std::uint32_t chunks() const {
    return static_cast<std::uint32_t>(plan_.layout->chunk_count());
  }

  /// How often each piece of the pack's data was requested.
  std::vector<int> fetched_pieces() {
    std::vector<int> count(plan_.steps[0].packs[0]->pieces().size());
    const auto gets = bucket_->gets("packs/");
    for (std::size_t i = heads_; i < gets.size(); i++) {
      const auto begin = gets[i].offset_bytes - plan_.steps[0].packs[0]->data_offset_bytes();
      for (std::uint64_t at = begin; at < begin + gets[i].size_bytes; at += kPieceBytes) {
        count.at(at / kPieceBytes)++;
      }
    }
    return count;
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
  test::RepositoryBuilder builder_;
  test::WatchedBucket* bucket_ = nullptr;
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<History> history_;
  Plan plan_;
  std::string key_;
  std::size_t heads_ = 0;  // requests before the spool
  std::stop_source stop_;
  const Context context_{stop_.get_token(), Clock::time_point::max()};
};

TEST_F(PackSpoolTest, FetchesWhatIsReadAndNoMoreThanOneRequestOfIt) {
  ASSERT_GE(plan_.steps[0].packs[0]->pieces().size(), 6u);
  const PackSpool spool(plan_, *repository_, directory_.path(), context_);
  EXPECT_EQ(bucket_->gets("packs/").size(), heads_) << "nothing is fetched before";
  const std::uint32_t last = chunks() - 1;
  EXPECT_EQ(read(spool, last), expected(last));
  EXPECT_EQ(read(spool, 0), expected(0));
  std::vector<int> pieces = fetched_pieces();
  EXPECT_EQ(bucket_->gets("packs/").size(), heads_ + 2);
  EXPECT_EQ(std::vector<int>(pieces.begin(), pieces.begin() + 5), (std::vector{1, 1, 1, 1, 0}));
  EXPECT_EQ(pieces.back(), 1);
}

/// Its file would be made in that directory.
TEST_F(PackSpoolTest, ASmallOneLiesInMemory) {
  const PackSpool spool(plan_, *repository_, directory_ / "absent", context_);
  EXPECT_EQ(read(spool, 0), expected(0));
}

TEST_F(PackSpoolTest, EachPieceIsFetchedOnceHoweverManyThreadsReadIt) {
  const PackSpool spool(plan_, *repository_, directory_.path(), context_);
  builder_.bucket()->hang_key("packs/");
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t t = 0; t < 6; t++) {
      threads.emplace_back([&, t] {
        for (std::uint32_t i = 0; i < chunks(); i++) {
          const std::uint32_t index = (i + t / 2 * 4) % chunks();
          if (read(spool, index) != expected(index)) wrong++;
        }
      });
    }
    EXPECT_TRUE(test::eventually([&] { return builder_.bucket()->waiting() >= 2; }));
    builder_.bucket()->heal();
  }
  EXPECT_EQ(wrong, 0);
  for (const int count : fetched_pieces()) EXPECT_EQ(count, 1);
}

TEST_F(PackSpoolTest, FetchesWhatABatchNeedsManyPiecesAtATime) {
  const PackSpool spool(plan_, *repository_, directory_.path(), context_);
  EXPECT_FALSE(spool.is_whole());
  std::vector<PackSpool::Wanted> all;
  for (std::uint32_t i = 0; i < chunks(); i++) all.push_back({0, plan_.steps[0].listed[i]});
  builder_.bucket()->hang_key("packs/");
  {
    std::jthread fetching([&] { spool.fetch(all); });
    EXPECT_TRUE(test::eventually([&] { return builder_.bucket()->waiting() == 2; }));
    builder_.bucket()->heal();
  }
  EXPECT_TRUE(spool.is_whole());
  for (const int count : fetched_pieces()) EXPECT_EQ(count, 1);
  const std::size_t before = bucket_->gets("packs/").size();
  EXPECT_EQ(before, heads_ + 2) << "few requests";
  spool.fetch(all);
  for (std::uint32_t i = 0; i < chunks(); i++) EXPECT_EQ(read(spool, i), expected(i));
  EXPECT_EQ(bucket_->gets("packs/").size(), before);
}

TEST_F(PackSpoolTest, AfterFetchAllNothingIsFetched) {
  PackSpool spool(plan_, *repository_, directory_.path(), context_);
  EXPECT_EQ(read(spool, 0), expected(0));
  std::atomic<std::uint64_t> done = 0, total = 0;
  spool.fetch_all(3, [&](std::string_view phase, std::uint64_t now, std::uint64_t of) {
    EXPECT_EQ(phase, "fetching");
    for (std::uint64_t seen = done; seen < now && !done.compare_exchange_weak(seen, now);) {
    }
    total = of;
  });
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, plan_.steps[0].packs[0]->data_size_bytes());
  for (const int count : fetched_pieces()) EXPECT_EQ(count, 1);
  builder_.bucket()->fail_key("packs/", ErrorCode::unavailable);
  for (std::uint32_t i = 0; i < chunks(); i++) EXPECT_EQ(read(spool, i), expected(i));
}

TEST_F(PackSpoolTest, ADamagedPieceIsToldToAllWhoWaitForItAndFetchedAgainLater) {
  const PackSpool spool(plan_, *repository_, directory_.path(), context_);
  const std::string whole = builder_.bucket()->find(key_).value();
  builder_.flip(key_, -1);
  builder_.bucket()->hang_key("packs/");
  const std::uint32_t last = chunks() - 1;
  std::atomic<int> named = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; t++) {
      threads.emplace_back([&] {
        try {
          read(spool, last);
        } catch (const ObjectError& error) {
          if (error.key() == key_ && error.code() == ErrorCode::corrupt) named++;
        }
      });
    }
    EXPECT_TRUE(test::eventually([&] { return builder_.bucket()->waiting() == 1; }));
    builder_.bucket()->heal();
  }
  EXPECT_EQ(named, 4);
  EXPECT_EQ(read(spool, 0), expected(0)) << "other pieces are as good as before";
  builder_.bucket()->replace(key_, whole);
  EXPECT_EQ(read(spool, last), expected(last));
}

TEST_F(PackSpoolTest, WhoWaitsForAnothersFetchCanBeStopped) {
  const PackSpool spool(plan_, *repository_, directory_.path(), context_);
  builder_.bucket()->hang_key("packs/");
  std::atomic<int> cancelled = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      if (error_of([&] { read(spool, 0); }).code() == ErrorCode::cancelled) cancelled++;
    });
  }
  EXPECT_TRUE(test::eventually([&] { return builder_.bucket()->waiting() == 1; }));
  stop_.request_stop();
  EXPECT_TRUE(test::eventually([&] { return cancelled == 3; }));
}

}  // namespace
}  // namespace weightfs
