#include "store/repository/probe.hpp"

#include <gtest/gtest.h>

#include "store/handover/proven_bucket.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

using Outcome = ProbeResult::Outcome;

/// A service that ignores If-None-Match.
class OverwritingBucket final : public Bucket {
 public:
  explicit OverwritingBucket(std::shared_ptr<MemoryBucket> bucket) : bucket_(std::move(bucket)) {}
  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    return bucket_->get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    bucket_->put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    bucket_->put(key, TextSource(bytes), context);
    return Put::created;
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    return bucket_->list_objects(prefix, after, context);
  }
  Time now(const Context& context) override { return bucket_->now(context); }
  void remove(std::string_view key, const Context& context) override {
    bucket_->remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_->url(); }

 private:
  std::shared_ptr<MemoryBucket> bucket_;
};

TEST(Probe, HoldsWhereTheSecondWriterIsToldSo) {
  MemoryBucket bucket;
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::held);
  EXPECT_EQ(result.left, "");
  EXPECT_TRUE(bucket.objects().empty());
  require_put_if_absent(bucket, {});
}

TEST(Probe, DoesNotHoldWhereTheSecondWriterOverwrites) {
  const auto memory = std::make_shared<MemoryBucket>();
  OverwritingBucket bucket(memory);
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::not_held);
  EXPECT_NE(result.why.find("overwrite"), std::string::npos) << result.why;
  std::string message;
  EXPECT_EQ(code_of([&] { require_put_if_absent(bucket, {}); }, &message), ErrorCode::unsupported);
  EXPECT_NE(message.find(memory->url()), std::string::npos) << message;
  EXPECT_TRUE(memory->objects().empty());
}

TEST(Probe, DoesNotHoldWhereItIsNotImplemented) {
  MemoryBucket bucket;
  bucket.fail_call(1, ErrorCode::unsupported);
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::not_held);
  EXPECT_NE(result.why.find("failed on demand"), std::string::npos) << result.why;
}

TEST(Probe, TellsAKeyThatMayNotWriteFromABucketThatDoesNotHold) {
  MemoryBucket bucket;
  bucket.fail_call(1, ErrorCode::permission);
  EXPECT_EQ(probe_put_if_absent(bucket, {}).outcome, Outcome::not_permitted);
  bucket.fail_call(1, ErrorCode::permission);
  EXPECT_EQ(code_of([&] { require_put_if_absent(bucket, {}); }), ErrorCode::permission);
  EXPECT_EQ(bucket.calls("remove"), 0u) << "nothing was written";
}

/// Each call of the probe fails once; nothing is left behind except what may not be removed.
TEST(Probe, CleansUpAfterEveryFailure) {
  for (int call = 1; call <= 3; call++) {
    MemoryBucket bucket;
    bucket.fail_call(static_cast<std::uint64_t>(call), ErrorCode::unavailable);
    EXPECT_EQ(code_of([&] { probe_put_if_absent(bucket, {}); }), ErrorCode::unavailable);
    EXPECT_EQ(bucket.failures(), 1u);
    EXPECT_TRUE(bucket.objects().empty()) << call;
  }
  MemoryBucket bucket;
  bucket.lose_reply(".probe-");
  EXPECT_EQ(code_of([&] { probe_put_if_absent(bucket, {}); }), ErrorCode::unavailable);
  EXPECT_TRUE(bucket.objects().empty());
}

TEST(Probe, RemovesWhatItMayWriteButNotRead) {
  for (const std::uint64_t call : {2u, 3u}) {  // the second put, the read
    MemoryBucket bucket;
    bucket.fail_call(call, ErrorCode::permission);
    const ProbeResult result = probe_put_if_absent(bucket, {});
    EXPECT_EQ(result.outcome, Outcome::not_permitted);
    EXPECT_EQ(result.left, "");
    EXPECT_TRUE(bucket.objects().empty()) << call;
  }
}

/// Says that an object exists that it has just written, as where something on the way sends a
/// request twice; or without writing it.
class ForetellingBucket final : public Bucket {
 public:
  explicit ForetellingBucket(bool writes) : writes_(writes) {}
  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    return memory.get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    memory.put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    if (writes_) memory.put_if_absent(key, bytes, context);
    return Put::exists;
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    return memory.list_objects(prefix, after, context);
  }
  Time now(const Context& context) override { return memory.now(context); }
  void remove(std::string_view key, const Context& context) override {
    memory.remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return memory.url(); }

  MemoryBucket memory;

 private:
  const bool writes_;
};

TEST(Probe, HoldsWhereTheFirstWriteIsToldOfItself) {
  ForetellingBucket bucket(true);
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::held) << result.why;
  EXPECT_TRUE(bucket.memory.objects().empty());
}

TEST(Probe, DoesNotHoldWhereWhatIsNewIsSaidToExist) {
  ForetellingBucket bucket(false);
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::not_held);
  EXPECT_NE(result.why.find("already exists"), std::string::npos) << result.why;
}

TEST(Probe, NamesWhatItMayNotRemove) {
  MemoryBucket bucket;
  bucket.fail_call(4, ErrorCode::permission);
  const ProbeResult result = probe_put_if_absent(bucket, {});
  EXPECT_EQ(result.outcome, Outcome::held);
  ASSERT_EQ(bucket.objects().size(), 1u);
  EXPECT_EQ(result.left, bucket.objects().begin()->first);
}

TEST(Probe, CostsAStoreNothingTheSecondTime) {
  const TempDir dir;
  const std::shared_ptr<MemoryBucket> bucket = make_memory_repository();
  const auto hooks = std::make_shared<BucketHooks>();
  const auto open = [&] {
    return Repository::open(std::make_unique<HookedBucket>(bucket, hooks), {});
  };
  {
    Writer writer(open(), dir / "writer");
    require_put_if_absent_once(*writer.repository, *writer.store, "", {});
    EXPECT_EQ(bucket->calls("remove"), 1u);
  }
  Writer writer(open(), dir / "writer");
  const std::uint64_t before = bucket->calls();
  require_put_if_absent_once(*writer.repository, *writer.store, "", {});
  EXPECT_EQ(bucket->calls(), before);
  require_put_if_absent_once(*writer.repository, *writer.store, "https://elsewhere", {});
  EXPECT_EQ(bucket->calls("remove"), 2u) << "another endpoint is another service";
}

TEST(Probe, IsNotRememberedWhenItFails) {
  const TempDir dir;
  const std::shared_ptr<MemoryBucket> bucket = make_memory_repository();
  Writer writer(
      Repository::open(std::make_unique<HookedBucket>(bucket, std::make_shared<BucketHooks>()), {}),
      dir / "writer");
  const auto prove = [&] { require_put_if_absent_once(*writer.repository, *writer.store, "", {}); };
  bucket->fail_key(".probe-", ErrorCode::unavailable);
  EXPECT_EQ(code_of(prove), ErrorCode::unavailable);
  bucket->heal();
  prove();
  EXPECT_GE(bucket->calls("remove"), 1u);
}

}  // namespace
}  // namespace weightfs::test
