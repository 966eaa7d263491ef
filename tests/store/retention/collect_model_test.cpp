// Random publishers, collectors, makers of skips, joining readers and kills on one bucket, whose
// LIST lags and whose clock jumps: every version that no record retired can be built at any time by
// snapshots, deltas, and skips that a record needs, and readers, which decode it, get its bytes;
// nothing is removed that no record names, that may still be published, or that a skip's maker may
// still need.
//
// $WEIGHTFS_GC_SECONDS: how long; default: 3.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "store/base/bytes.hpp"
#include "store/inspect/export.hpp"
#include "tests/store/retention/gc_world.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs::test {
namespace {

class GcModel {
 public:
  explicit GcModel(Random& rng) : rng_(rng), world_(rng) { world_.publish(); }

  void step() {
    const std::uint64_t what = pick(14);
    if (what < 5) publish();
    if (what == 5) leave();
    if (what > 5 && what < 9) collect(2);
    if (what == 9) world_.bucket()->lag_list(pick(2) == 0 ? 0 : pick(30));
    if (what == 10) move_clock();
    if (what == 11 || what == 12) make_skip();
    if (what == 13) join();
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
      EXPECT_TRUE(!log.objects.contains(key) || is_of_unread_skip(key, log)) << key;
    }
    for (const std::string& key : above_) EXPECT_EQ(world_.has(key), is_above(key)) << key;
    read(world_.builder.newest());
    for (int sample = 0; sample < 2; sample++) read(1 + pick(world_.builder.newest()));
  }

  std::uint64_t removed() const { return removed_; }
  std::uint64_t needed() const { return needed_; }
  std::uint64_t removed_of_skips() const { return removed_of_skips_; }
  std::uint64_t versions_read() const { return read_; }

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

  /// Some makers look at the log first, some die before the record; some records are damaged.
  void make_skip() {
    const std::uint64_t newest = world_.builder.newest();
    if (newest < 3) return;
    const std::uint64_t from = 1 + pick(newest - 2), to = from + 2 + pick(newest - from - 1);
    if (pick(2) == 0 && world_.log().skips.contains({from, to})) return;
    const std::uint64_t how = pick(4);
    if (how == 0) return (void)world_.builder.put_skip_packs({from, to});
    try {
      (void)world_.builder.add_skip({from, to});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();  // a damaged one is there
    }
    const bool is_needed = world_.log().needs.contains({from, to});
    if (how == 1 && !is_needed) world_.builder.flip(keys::skip_record({from, to}), 30);
  }

  /// A reader without anything, beside whose requests collectors run, writes the version as files.
  void join() {
    const std::uint64_t first = 1 + pick(30), second = first + 1 + pick(30);
    std::atomic<std::uint64_t> calls = 0;
    BucketHooks hooks;
    hooks.before = [&](const BucketCall&) {
      const std::uint64_t number = ++calls;
      if (number == first || number == second) collect_beside();
    };
    read(1 + pick(world_.builder.newest()), hooks);
  }

  /// Threads: the one that gets there; another one waits for its turn.
  void collect_beside() {
    const std::scoped_lock lock(mutex_);
    collect(1);
  }

  /// What no record retired can be read, and its bytes are right.
  void read(std::uint64_t version, const BucketHooks& hooks = {}) {
    TempDir directory;
    try {
      const auto repository = world_.open(hooks);
      History history(*repository, nullptr);
      export_version(history, version, directory / "out", {}, {});
    } catch (const Error& error) {
      EXPECT_TRUE(world_.log().versions.contains(version)) << error.what();
      return;
    }
    EXPECT_EQ(read_tree(directory / "out"), world_.builder.tree(version)) << version;
    read_++;
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
    if (pick(3) == 0) world_.refused.insert({1 + pick(10), 4 + pick(20)});
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
      check_kept(world_.gc(chosen, hooks), chosen.keep);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    }
  }

  /// A run retires nothing that it is to keep.
  static void check_kept(const CollectReport& report, const KeepPolicy& policy) {
    for (const VersionFacts& version : report.inventory.versions) {
      if (reason_to_keep(version, report.inventory.head(), policy) == KeepReason::none) continue;
      EXPECT_FALSE(report.retired.versions.contains(version.number)) << version.number;
    }
  }

  /// Of all threads only one gets here at a time: the others wait, or only remove.
  void beside(int depth) {
    const std::uint64_t what = pick(3);
    what == 0 ? publish() : what == 1 ? make_skip() : collect(depth - 1);
  }

  void check_removal(const std::string& key) {
    removed_++;
    EXPECT_FALSE(is_above(key)) << key;
    const GcLog log = world_.log();
    EXPECT_TRUE(is_due(key, log)) << key;
    if (const auto skip = find_skip_key(key)) check_skip_removal(*skip, log);
  }

  /// Whether a record names it whose grace is over, by the bucket's clock.
  bool is_due(const std::string& key, const GcLog& log) const {
    const auto now = world_.bucket()->now({});
    for (const ObjectInfo& object : world_.bucket()->list_objects(keys::kGc, "", {})) {
      for (const GcRecord& record : log.records) {
        const bool names_it = keys::gc_record(record.number) == object.key &&
                              std::ranges::binary_search(record.objects, key);
        const bool is_over =
            object.written <= now && now - object.written >= std::chrono::seconds(record.grace_s);
        if (names_it && is_over) return true;
      }
    }
    return false;
  }

  /// All of a retired skip may go, else only what its record does not name.
  void check_skip_removal(const SkipKey& key, const GcLog& log) {
    removed_of_skips_++;
    if (log.skips.contains(key.versions)) return;
    EXPECT_FALSE(key.pack.empty());
    const auto record = find_skip(*world_.builder.open(), key.versions, {});
    ASSERT_TRUE(record) << "its maker may be at work";
    for (const PackRef& pack : record->delta.packs) EXPECT_NE(pack.name, key.pack);
  }

  /// A pack of a skip whose record was damaged after the log had named it: only that record tells
  /// whether it is an orphan.
  bool is_of_unread_skip(const std::string& key, const GcLog& log) {
    const auto skip = find_skip_key(key);
    if (!skip || skip->pack.empty() || log.skips.contains(skip->versions)) return false;
    return code_of([&] { (void)find_skip(*world_.builder.open(), skip->versions, {}); }) ==
           ErrorCode::corrupt;
  }

  bool is_above(const std::string& key) const {
    if (const auto skip = find_skip_key(key)) {
      return !world_.has(keys::manifest(skip->versions.to));
    }
    const auto place = find_version_key(key);
    return !place || !world_.has(keys::manifest(place->version));
  }

  void check() {
    world_.expect_sound();
    needed_ = std::max<std::uint64_t>(needed_, world_.log().needs.size());
    for (const std::string& key : above_) EXPECT_TRUE(!is_above(key) || world_.has(key)) << key;
  }

  Random& rng_;
  GcWorld world_;
  std::vector<std::string> above_;
  std::atomic<std::uint64_t> removed_ = 0, removed_of_skips_ = 0;
  std::uint64_t needed_ = 0;  // skips that the log needed, at most at a time
  std::uint64_t read_ = 0;    // versions, by decoding
  std::mutex mutex_;          // one collector beside a reader at a time
};

TEST(CollectModel, NothingKeptIsLost) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(number_from("WEIGHTFS_GC_SECONDS", 3));
  std::uint64_t removed = 0, removed_of_skips = 0, needed = 0, read = 0, rounds = 0;
  const auto shows_nothing = [&] { return removed == 0 || removed_of_skips == 0 || needed == 0; };
  for (std::uint64_t first = seed();
       rounds < 3 || std::chrono::steady_clock::now() < end || (shows_nothing() && rounds < 100);
       rounds++) {
    SCOPED_TRACE("WEIGHTFS_TEST_SEED=" + std::to_string(first + rounds));
    Random rng(first + rounds);
    GcModel model(rng);
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); i++) model.step();
    model.finish();
    removed += model.removed();
    removed_of_skips += model.removed_of_skips();
    needed += model.needed();
    read += model.versions_read();
    if (testing::Test::HasFailure()) break;
  }
  fmt::print("{} rounds: {} objects removed, {} of skips; {} skips needed; {} versions read\n",
             rounds, removed, removed_of_skips, needed, read);
  EXPECT_GT(removed, 0U) << "it proves nothing";
  EXPECT_GT(removed_of_skips, 0U) << "it proves nothing of skips";
  EXPECT_GT(needed, 0U) << "it proves nothing of skips";
  EXPECT_GT(read, 0U) << "it proves nothing of readers";
}

}  // namespace
}  // namespace weightfs::test
