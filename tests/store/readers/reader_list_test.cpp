#include "store/readers/reader_list.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/readers/reader_gate.hpp"
#include "store/retention/collect.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

class ReaderListTest : public testing::Test {
 protected:
  ReaderRecord record(const std::string& host, std::uint64_t version = 1) {
    ReaderRecord record;
    record.id = id_of(host);
    record.repository = repository_->id();
    record.host = host;
    record.place = "/mnt/w";
    record.follow = "latest";
    record.health = "healthy";
    record.version = record.newest = version;
    record.is_whole = true;
    record.time = static_cast<std::uint64_t>(seconds_now());
    return record;
  }

  static std::string id_of(const std::string& host) {
    return to_hex(sha256(as_bytes(host))).substr(0, 32);
  }

  void put(const ReaderRecord& record) {
    bucket_->replace(keys::reader(record.id), record.serialize());
  }

  ReaderList list() { return lister_.list({}); }

  Presence presence_of(const std::string& host) {
    for (const ListedReader& one : list().readers) {
      if (one.record.host == host) return one.presence;
    }
    ADD_FAILURE() << host << " is not listed";
    return Presence::gone;
  }

  RepositoryBuilder builder_;
  std::shared_ptr<MemoryBucket> bucket_ = builder_.bucket();
  std::unique_ptr<Repository> repository_ = builder_.open();
  ReaderLister lister_{*repository_};
};

TEST_F(ReaderListTest, ListsByHost) {
  EXPECT_TRUE(list().readers.empty());
  put(record("b"));
  put(record("a", 7));
  const ReaderList found = list();
  ASSERT_EQ(found.readers.size(), 2u);
  EXPECT_EQ(found.readers[0].record.host, "a");
  EXPECT_EQ(found.readers[0].record.version, 7u);
  EXPECT_EQ(found.readers[0].presence, Presence::live);
  EXPECT_TRUE(found.by_bucket_clock);
}

TEST_F(ReaderListTest, AReaderIsGoneAfterThreeIntervalsOfTheBucketsClock) {
  ReaderRecord lies = record("a");
  lies.time = 1;  // its own clock does not matter
  put(lies);
  bucket_->advance(seconds(90));
  EXPECT_EQ(presence_of("a"), Presence::live);
  bucket_->advance(seconds(1));
  EXPECT_EQ(presence_of("a"), Presence::gone);
  put(lies);
  EXPECT_EQ(presence_of("a"), Presence::live);
}

TEST_F(ReaderListTest, WithoutTheBucketsClockTheRecordsTimeCounts) {
  class Clockless final : public Bucket {
   public:
    explicit Clockless(std::shared_ptr<MemoryBucket> bucket) : bucket_(std::move(bucket)) {}
    std::size_t get(std::string_view key, std::uint64_t offset, std::span<std::byte> into,
                    const Context& context) override {
      return bucket_->get(key, offset, into, context);
    }
    void put(std::string_view, const Source&, const Context&) override {}
    Put put_if_absent(std::string_view, std::string_view, const Context&) override {
      return Put::exists;
    }
    std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                         const Context& context) override {
      return bucket_->list_objects(prefix, after, context);
    }
    Time now(const Context&) override { throw Error(ErrorCode::permission, "read-only"); }
    void remove(std::string_view, const Context&) override {}
    [[nodiscard]] const std::string& url() const noexcept override { return bucket_->url(); }

   private:
    std::shared_ptr<MemoryBucket> bucket_;
  };
  put(record("now"));
  ReaderRecord other = record("past");
  other.time -= 1'000;
  put(other);
  other = record("future");  // a clock that is wrong keeps nobody alive
  other.time += 1'000'000;
  put(other);
  const auto repository = Repository::open(std::make_unique<Clockless>(bucket_), {});
  const ReaderList found = ReaderLister(*repository).list({});
  EXPECT_FALSE(found.by_bucket_clock);
  ASSERT_EQ(found.readers.size(), 3u);
  EXPECT_EQ(found.readers[0].presence, Presence::gone);  // future
  EXPECT_EQ(found.readers[1].presence, Presence::live);
  EXPECT_EQ(found.readers[2].presence, Presence::gone);
}

TEST_F(ReaderListTest, OneThatHasLeftSaysSo) {
  ReaderRecord leaving = record("a");
  leaving.has_left = true;
  put(leaving);
  EXPECT_EQ(presence_of("a"), Presence::left);
}

TEST_F(ReaderListTest, WhatCannotBeReadIsNamedAndCountsForNothing) {
  put(record("a"));
  bucket_->replace(keys::reader(id_of("b")), "{");
  bucket_->replace(keys::reader(id_of("c")), record("a").serialize());  // another's
  ReaderRecord foreign = record("d");
  foreign.repository = std::string(32, '0');
  put(foreign);
  bucket_->replace(keys::reader(id_of("e")), std::string(kReaderBytesMax + 1, ' '));
  bucket_->replace("readers/notes.txt", "hello");
  bucket_->replace("readers/../x", "");
  bucket_->list_also(keys::reader(id_of("f")));  // it is gone when it is fetched
  const ReaderList found = list();
  EXPECT_EQ(found.readers.size(), 1u);
  ASSERT_EQ(found.unreadable.size(), 4u);
  for (const std::string& problem : found.unreadable) {
    EXPECT_TRUE(problem.starts_with("object readers/") || problem.find("readers/") != problem.npos)
        << problem;
  }
}

TEST_F(ReaderListTest, ARecordThatMayNotBeReadHoldsUpNoOther) {
  put(record("a", 7));
  put(record("b", 7));
  bucket_->fail_key(keys::reader(id_of("b")), ErrorCode::permission);
  const ReaderList found = list();
  EXPECT_EQ(found.readers.size(), 1u);
  EXPECT_EQ(found.unreadable.size(), 1u);
  const GateWish wish{.replicas = 2, .version = 7};
  const std::string text = gate_text(count_readers(found, wish), wish);
  EXPECT_TRUE(text.starts_with("1 of 2 readers have version 7 or later: 1 cannot be read ("))
      << text;
}

TEST_F(ReaderListTest, TheLimitKeepsThoseHeardOfLast) {
  for (const char* host : {"a", "b", "c"}) {
    put(record(host));
    bucket_->advance(seconds(2));
  }
  const ReaderList found = ReaderLister(*repository_, 2).list({});
  ASSERT_EQ(found.readers.size(), 2u);
  EXPECT_EQ(found.readers[0].record.host, "b");
  EXPECT_EQ(found.left_out, 1u);
}

constexpr std::uint64_t kOldReaders = 150'000;

/// Lists so many old records before all others.
class Crowded final : public BucketView {
 public:
  using BucketView::BucketView;
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    std::vector<ObjectInfo> page;
    while (listed_ < kOldReaders && page.size() < 1'000) {
      page.push_back({keys::reader(fmt::format("{:032x}", listed_++)), 1, {}});
    }
    return page.empty() ? BucketView::list_objects(prefix, after, context) : page;
  }

 private:
  std::uint64_t listed_ = 0;
};

// Those whose keys come late were not even listed.
TEST_F(ReaderListTest, TheLastOnesAreFoundBehindAnyNumberOfOldOnes) {
  for (const char* host : {"a", "b", "c"}) {
    bucket_->advance(seconds(1));
    put(record(host));
  }
  const auto repository = Repository::open(std::make_unique<Crowded>(bucket_), {});
  const ReaderList found = ReaderLister(*repository, 2).list({});
  EXPECT_EQ(found.left_out, kOldReaders + 1);
  ASSERT_EQ(found.readers.size(), 2u);
  EXPECT_EQ(found.readers[0].record.host, "b");
  EXPECT_EQ(found.readers[1].record.host, "c");
}

TEST_F(ReaderListTest, ARecordThatHasNotChangedIsFetchedOnce) {
  put(record("a"));
  list();
  bucket_->advance(seconds(10));
  list();  // the first was too young to be sure
  const std::uint64_t before = bucket_->calls("get");
  list();
  EXPECT_EQ(bucket_->calls("get"), before);
  put(record("a", 2));
  EXPECT_EQ(list().readers.at(0).record.version, 2u);
  put(record("a", 3));  // at the same time by the bucket's clock
  EXPECT_EQ(list().readers.at(0).record.version, 3u);
}

TEST_F(ReaderListTest, OnlyOldRecordsMayBeRemoved) {
  put(record("old"));
  bucket_->advance(7 * hours(24));
  put(record("young"));
  EXPECT_TRUE(find_old_readers(*repository_, {}).empty());
  bucket_->advance(seconds(1));
  const auto old = find_old_readers(*repository_, {});
  ASSERT_EQ(old.size(), 1u);
  EXPECT_EQ(old[0].key, keys::reader(id_of("old")));
  EXPECT_EQ(kind_of(old[0].key), ObjectKind::reader);
  bucket_->fail_key(old[0].key, ErrorCode::permission);
  EXPECT_TRUE(remove_old_readers(*repository_, {}).empty());  // and gc goes on
  bucket_->heal();
  EXPECT_EQ(remove_old_readers(*repository_, {}).size(), 1u);
  EXPECT_EQ(bucket_->find(old[0].key), std::nullopt);
  EXPECT_NE(bucket_->find(keys::reader(id_of("young"))), std::nullopt);
}

// ---- the gate ----

TEST_F(ReaderListTest, TheGateCountsWhoHasTheVersionWithAllItsEngines) {
  put(record("a", 7));
  put(record("late", 6));
  ReaderRecord partly = record("partly", 7);
  partly.is_whole = false;
  put(partly);
  ReaderRecord frozen = record("frozen", 3);
  frozen.follow = "3";
  put(frozen);
  ReaderRecord left = record("left", 7);
  left.has_left = true;
  put(left);
  ReaderRecord engines = record("engines", 8);
  engines.engines = {{"vllm http://a:1", "current", 8}, {"vllm http://a:2", "telling", 6}};
  put(engines);

  GateWish wish{.replicas = 2, .version = 7};
  GateCount count = count_readers(list(), wish);
  EXPECT_EQ(count.ready, 1u);
  EXPECT_EQ(count.left, 1u);
  EXPECT_FALSE(count.is_open(wish));
  EXPECT_EQ(gate_text(count, wish),
            "1 of 2 readers have version 7 or later: engines:/mnt/w its engine vllm http://a:2 is "
            "telling, with version 6; frozen:/mnt/w shows version 3 (it follows 3); late:/mnt/w "
            "shows version 6; partly:/mnt/w is still fetching version 7; 1 left");

  wish.max_lag = 1;
  count = count_readers(list(), wish);
  EXPECT_EQ(count.ready, 3u);  // a, engines, late
  EXPECT_TRUE(count.is_open(wish));
  wish.max_lag = 100;
  EXPECT_EQ(wish.least(), 1u);

  engines.engines = {{"vllm http://a:1", "failed", 8}};  // who knows what it generates with
  EXPECT_NE(why_behind(engines, 7), "");
  engines.engines[0].state = "unreachable";
  EXPECT_NE(why_behind(engines, 7), "");
  engines.engines[0].state = "telling";  // it has 8, and gets something newer
  EXPECT_EQ(why_behind(engines, 7), "");
}

TEST_F(ReaderListTest, AReaderThatIsGoneDoesNotCount) {
  put(record("a", 7));
  bucket_->advance(seconds(91));
  const GateWish wish{.replicas = 1, .version = 7};
  const GateCount count = count_readers(list(), wish);
  EXPECT_FALSE(count.is_open(wish));
  EXPECT_EQ(gate_text(count, wish), "0 of 1 reader has version 7 or later: 1 gone");
}

}  // namespace
}  // namespace weightfs::test
