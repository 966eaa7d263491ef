// Random publishers, collectors and kills on one bucket, whose LIST lags and whose clock jumps:
// every version that no record retired can be built at any time, and nothing is removed that no
// record names, or that may still be published.
//
// $WEIGHTFS_GC_SECONDS: how long; default: 3.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "store/base/bytes.hpp"
#include "tests/store/retention/gc_world.hpp"

namespace weightfs::test {
namespace {

class GcModel {
 public:
  explicit GcModel(Random& rng) : rng_(rng), world_(rng) { world_.publish(); }

  void step() {
    const std::uint64_t what = pick(10);
    if (what < 4) publish();
    if (what == 4) leave();
    if (what > 4 && what < 8) collect(2);
    if (what == 8) world_.bucket()->lag_list(pick(2) == 0 ? 0 : pick(30));
    if (what == 9) move_clock();
    check();
  }

  /// At the end: a healthy bucket, and two runs with time between leave nothing to remove.
  void finish() {
    world_.bucket()->heal();
    for (int i = 0; i < 2; i++) {
      world_.bucket()->advance(std::chrono::hours(100'000));  // after all times so far
      world_.gc(3);
    }
    check();
    const GcLog log = world_.log();
    for (const auto& [key, bytes] : world_.bucket()->objects()) {
      EXPECT_FALSE(log.objects.contains(key)) << key;
    }
    for (const std::string& key : above_) EXPECT_EQ(world_.has(key), is_above(key)) << key;
  }

  std::uint64_t removed() const { return removed_; }

 private:
  std::uint64_t pick(std::uint64_t count) { return rng_() % count; }

  void publish() {
    world_.publish(pick(6) == 0, pick(4) == 0 ? "t" + std::to_string(pick(3)) : "");
  }

  /// A publisher begins: its objects lie at the next number, or a later one.
  void leave() {
    const std::uint64_t version = world_.builder.newest() + 1 + pick(2);
    above_.push_back(pick(2) == 0 ? world_.leave_pack(version) : world_.leave_snapshot(version));
  }

  void move_clock() {
    const auto by = static_cast<std::int64_t>(pick(100)) - 30;
    world_.bucket()->advance(std::chrono::hours(by));
  }

  CollectOptions options() {
    CollectOptions options = GcWorld::options_for(1 + pick(8), std::chrono::hours(pick(48)));
    if (pick(2) == 0) options.keep.every = 2 + pick(5);
    if (pick(2) == 0) options.keep.tags = {"t" + std::to_string(pick(3))};
    return options;
  }

  /// A run that is killed at some call, or beside which something else happens at some call.
  void collect(int depth) {
    const CollectOptions chosen = options();
    const std::uint64_t kill_at = pick(2) == 0 ? 1 + pick(60) : 0;
    const std::uint64_t beside_at = depth > 0 && pick(2) == 0 ? 1 + pick(40) : 0;
    std::atomic<std::uint64_t> calls = 0;
    BucketHooks hooks;
    hooks.before = [&, depth](const BucketCall& call) {
      const std::uint64_t number = ++calls;
      if (call.kind == "remove") check_removal(std::string(call.key));
      if (number == kill_at) throw Error(ErrorCode::io, "killed");
      if (number == beside_at) beside(depth);
    };
    try {
      world_.gc(chosen, hooks);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    }
  }

  /// Of all threads only one gets here at a time: the others wait, or only remove.
  void beside(int depth) { pick(2) == 0 ? publish() : collect(depth - 1); }

  void check_removal(const std::string& key) {
    removed_++;
    EXPECT_FALSE(is_above(key)) << key;
    EXPECT_TRUE(world_.log().objects.contains(key)) << key;
  }

  bool is_above(const std::string& key) const {
    const auto place = find_version_key(key);
    return !place || !world_.has(keys::manifest(place->version));
  }

  void check() {
    world_.expect_sound();
    for (const std::string& key : above_) EXPECT_TRUE(!is_above(key) || world_.has(key)) << key;
  }

  Random& rng_;
  GcWorld world_;
  std::vector<std::string> above_;
  std::atomic<std::uint64_t> removed_ = 0;
};

TEST(CollectModel, NothingKeptIsLost) {
  const char* const given = std::getenv("WEIGHTFS_GC_SECONDS");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(given == nullptr ? 3 : std::atoi(given));
  std::uint64_t removed = 0, rounds = 0;
  for (std::uint64_t first = seed(); rounds < 3 || std::chrono::steady_clock::now() < end;
       rounds++) {
    SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(first + rounds));
    Random rng(first + rounds);
    GcModel model(rng);
    for (int i = 0; i < 40; i++) model.step();
    model.finish();
    removed += model.removed();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(removed, 0U) << "it proves nothing";
}

}  // namespace
}  // namespace weightfs::test
