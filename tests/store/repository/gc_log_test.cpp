#include "store/repository/gc_log.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {
namespace {

class GcLogTest : public testing::Test {
 protected:
  GcRecord record(std::uint64_t number) const {
    GcRecord record;
    record.repository = repository_->id();
    record.number = number;
    record.head = kVersionMax;
    record.nonce = std::string(32, 'a');
    return record;
  }

  /// Behind those that were put before.
  std::size_t put(GcRecord record) {
    record.previous_sha256 = last_;
    const std::string bytes = record.serialize();
    last_ = sha256(as_bytes(bytes));
    builder_.bucket()->replace(keys::gc_record(record.number), bytes);
    return bytes.size();
  }

  RepositoryBuilder builder_;
  std::unique_ptr<Repository> repository_ = builder_.open();
  Sha256 last_{};
};

TEST_F(GcLogTest, SaysWhatIsLeftHoweverManyVersionsWereRetired) {
  GcRecord one = record(1);
  one.versions.add({1, 60'000'000'000});
  one.versions.add(60'000'000'003);
  put(one);
  const Error error = error_of([&] { throw_if_retired(*repository_, 5, {}); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(std::string(error.what()).ends_with(" is 60000000001")) << error.what();
  throw_if_retired(*repository_, 60'000'000'001, {});
}

TEST_F(GcLogTest, TheFirstVersionMayBeLeft) {
  GcRecord one = record(1);
  one.versions.add({2, 7});
  put(one);
  const Error error = error_of([&] { throw_if_retired(*repository_, 5, {}); });
  EXPECT_TRUE(std::string(error.what()).ends_with(" is 1")) << error.what();
}

TEST_F(GcLogTest, TakesNoMoreMemoryThanThisHostGives) {
  std::size_t bytes = 0;
  for (std::uint64_t number = 1; number <= 5; number++) bytes += put(record(number));
  MemoryBudget enough(8 * bytes, "the test's memory"), less(8 * bytes - 1, "the test's memory");
  EXPECT_EQ(read_gc_log(*repository_, enough, {}).records.size(), 5u);
  const Error error = error_of([&] { (void)read_gc_log(*repository_, less, {}); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
  EXPECT_NE(std::string(error.what()).find(keys::gc_record(5)), std::string::npos) << error.what();
}

TEST_F(GcLogTest, NoRecordIsWrittenThatNoReaderCouldParse) {
  GcRecord bad = record(1);
  bad.versions.add(kVersionMax);  // the newest one
  EXPECT_EQ(code_of([&] { (void)append_gc_record(bad, *repository_, {}); }), ErrorCode::corrupt);
  EXPECT_FALSE(builder_.bucket()->find(keys::gc_record(1)));
  EXPECT_TRUE(append_gc_record(record(1), *repository_, {}));
  EXPECT_FALSE(append_gc_record(record(1), *repository_, {}));
}

}  // namespace
}  // namespace weightfs::test
