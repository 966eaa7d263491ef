#include "store/ways/path_finder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/repository/gc_log.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/small_versions.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::make_opaque_layout;

constexpr std::uint64_t kModelBytes = 40u << 20, kDeltaBytes = 190u << 10;

Sha256 hash_of(std::uint64_t number) { return sha256(as_bytes(std::to_string(number))); }

DeltaRef delta_of(std::uint64_t bytes) {
  return {{{std::string(32, 'a') + "-0", bytes, 4096, {}}}, bytes};
}

/// A run of any length, whose manifests are made when they are read.
class LongRun final : public VersionSource {
 public:
  std::shared_ptr<const Version> get(std::uint64_t number, const Context& /*context*/) override {
    {
      const std::scoped_lock lock(mutex_);
      read_.insert(number);
    }
    if (damaged_.contains(number)) throw Error(ErrorCode::corrupt, "manifest is damaged");
    auto version = std::make_shared<Version>();
    Manifest& manifest = version->manifest;
    manifest.version = number;
    manifest.parent = number - 1;
    manifest.parent_sha256 = hash_of(number - 1);
    if (number > 1) manifest.delta = delta_of(kDeltaBytes);
    const bool is_snapshot = number == 1 || (snapshots_ != 0 && number % snapshots_ == 0);
    if (is_snapshot) manifest.snapshot = SnapshotRef{};
    if (names_snapshots_) {
      const std::uint64_t last = snapshots_ == 0 ? 0 : (number - 1) / snapshots_ * snapshots_;
      manifest.snapshot_before = number == 1 ? 0 : std::max<std::uint64_t>(last, 1);
    }
    version->manifest_sha256 = hash_of(number);
    return version;
  }
  std::shared_ptr<const Layout> layout(const Version& /*version*/, const Context&) override {
    return layout_;
  }

  std::shared_ptr<const Layout> find_layout(const Version& /*version*/) override { return layout_; }

  /// How many manifests were read since forget().
  std::size_t reads() const { return read_.size(); }
  void forget() { read_.clear(); }

  std::uint64_t snapshots_ = 0;
  bool names_snapshots_ = true;
  std::set<std::uint64_t> damaged_;

 private:
  std::mutex mutex_;  // guards read_
  std::set<std::uint64_t> read_;
  const std::shared_ptr<const Layout> layout_ = make_opaque_layout({{"a.bin", kModelBytes}});
};

class PathFinderTest : public ::testing::Test {
 protected:
  void add_skip(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    SkipRecord record;
    record.repository = repository_->id();
    record.versions = {from, to};
    record.from_sha256 = hash_of(from);
    record.to_sha256 = hash_of(to);
    record.delta = delta_of(bytes);
    record.nonce = std::string(32, 'b');
    put_skip(*repository_, record, {});
    // Only its size counts, as LIST tells it; that of a test need not fill memory.
    const std::string key = keys::skip_pack(record.versions, record.delta.packs[0].name);
    bucket_->replace(key, std::string(4096, 'x'));
  }

  /// As a run of 20M parameters at 1.1 % measured them.
  void add_skips(std::uint64_t newest, std::uint64_t snapshot) {
    for (std::uint64_t to = 8; to <= newest; to += 8) {
      if (to > 8) add_skip(to - 8, to, 750u << 10);
      if (to % 64 == 0 && to > 64) add_skip(to - 64, to, 2060u << 10);
      if (to % 16 == 0 && to > snapshot + 2) add_skip(snapshot, to, 4u << 20);
    }
  }

  /// As if gc had removed deltas that these lead over.
  void need(const std::vector<VersionPair>& skips) {
    GcRecord record;
    record.repository = repository_->id();
    record.number = 1;
    for (const VersionPair& skip : skips) {
      record.needs.emplace(skip, hash_of(skip.to));
      record.head = std::max(record.head, skip.to);
    }
    record.nonce = std::string(32, 'c');
    bucket_->replace(keys::gc_record(1), record.serialize());
  }

  FoundWay find(std::uint64_t wanted, std::vector<std::uint64_t> here = {}) {
    std::vector<std::shared_ptr<const Version>> bases;
    for (const std::uint64_t number : here) bases.push_back(run_.get(number, {}));
    const auto version = run_.get(wanted, {});
    run_.forget();
    calls_ = bucket_->calls();
    SkipBook skips(*repository_);
    FoundWay way = PathFinder(run_, skips, version, bases, {}).find();
    calls_ = bucket_->calls() - calls_;
    return way;
  }

  std::shared_ptr<test::MemoryBucket> bucket_ = test::make_memory_repository();
  std::unique_ptr<Repository> repository_ =
      Repository::open(std::make_unique<test::BucketView>(bucket_), {});
  LongRun run_;
  std::uint64_t calls_ = 0;  // to the bucket, by the last find()
};

TEST_F(PathFinderTest, JoiningAThousandVersionsReadsFewManifests) {
  add_skips(1000, 1);
  for (const std::uint64_t version : {100u, 127u, 128u, 500u, 999u, 1000u}) {
    const FoundWay way = find(version);
    EXPECT_EQ(way.start->number(), 1u);
    EXPECT_LE(way.hops.size(), 12u) << version;
    EXPECT_LE(run_.reads(), way.hops.size() + 12) << version;
    EXPECT_LE(calls_, way.hops.size() + 16) << "a LIST, whose sizes are false, and records";
  }
}

TEST_F(PathFinderTest, AHostThatIsOneVersionBehindReadsNothing) {
  add_skips(200, 1);
  const FoundWay way = find(200, {199});
  EXPECT_EQ(way.start->number(), 199u);
  EXPECT_TRUE(way.is_here);
  EXPECT_EQ(way.hops.size(), 1u);
  EXPECT_EQ(run_.reads(), 0u);
  EXPECT_EQ(calls_, 0u);
}

TEST_F(PathFinderTest, AFewDeltasAreTakenWithoutALook) {
  add_skips(200, 1);
  const FoundWay way = find(200, {196});
  EXPECT_EQ(way.hops.size(), 4u);
  EXPECT_EQ(run_.reads(), 3u);
  EXPECT_EQ(calls_, 0u);
}

TEST_F(PathFinderTest, ASnapshotOnTheWayIsTakenIfThatIsCheaper) {
  run_.snapshots_ = 500;
  EXPECT_EQ(find(510, {5}).start->number(), 500u) << "96 MB of deltas";
  EXPECT_EQ(find(510, {450}).start->number(), 450u);
  run_.names_snapshots_ = false;
  EXPECT_EQ(find(510, {5}).start->number(), 500u) << "it is found on the way";
  EXPECT_EQ(find(510).start->number(), 500u);
  EXPECT_EQ(run_.reads(), 1u + 4 + 16);
}

TEST_F(PathFinderTest, AnOlderSnapshotIsTakenIfTheNewestIsOfNoUse) {
  run_.snapshots_ = 100;
  const auto wanted = run_.get(450, {});
  SkipBook skips(*repository_);
  const Context context;
  PathFinder finder(run_, skips, wanted, {}, context);
  for (const std::uint64_t start : {400u, 300u, 200u, 100u, 1u}) {
    const FoundWay way = finder.find();
    EXPECT_EQ(way.start->number(), start);
    finder.leave_out_start(way);
  }
  EXPECT_EQ(code_of([&] { finder.find(); }), ErrorCode::corrupt);
}

TEST_F(PathFinderTest, ADamagedManifestIsNoTroubleBesideTheWay) {
  add_skips(128, 1);
  run_.damaged_ = {50, 100};
  EXPECT_EQ(find(128).start->number(), 1u);
  EXPECT_EQ(find(66, {48}).hops.front().versions, (VersionPair{48, 56}));
  const FoundWay around = find(57, {49});
  EXPECT_FALSE(around.is_here) << "no delta leads from there";
  EXPECT_EQ(code_of([&] { find(101); }), ErrorCode::corrupt);
}

TEST_F(PathFinderTest, WithoutSkipsThoseThatTheLogNeedsAreLeft) {
  add_skip(1, 60, 1u << 20);
  add_skip(10, 40, 1u << 20);
  need({{1, 60}});
  const auto wanted = run_.get(62, {});
  SkipBook skips(*repository_);
  const Context context;
  PathFinder finder(run_, skips, wanted, {}, context);
  finder.leave_out_skips();
  const FoundWay deltas = finder.find();
  EXPECT_EQ(deltas.hops.size(), 61u);
  finder.leave_out(deltas.hops[20]);
  const auto expect_needed = [&] {
    const FoundWay way = finder.find();
    ASSERT_EQ(way.hops.size(), 3u);
    EXPECT_EQ(way.hops[0].versions, (VersionPair{1, 60}));
    EXPECT_TRUE(way.hops[0].skip);
  };
  expect_needed();
  finder.leave_out_skips();  // another time, now that the log is known
  expect_needed();
}

TEST_F(PathFinderTest, AHundredThousandVersionsTakeNoLongerThanTheWay) {
  run_.snapshots_ = 64;
  const FoundWay far = find(100'000, {17});
  EXPECT_EQ(far.start->number(), 99'968u);
  EXPECT_LE(run_.reads(), 32u + 4);
  const FoundWay near = find(100'000, {99'900, 17});
  EXPECT_EQ(near.start->number(), 99'900u) << "100 deltas of 190 KB and 3 requests";
}

}  // namespace
}  // namespace weightfs
