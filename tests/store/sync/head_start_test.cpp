// HeadStart: when the early record of the next version is asked for, and a whole Sync that uses it.
#include "store/sync/head_start.hpp"

#include <gtest/gtest.h>

#include "store/format/own_meta.hpp"
#include "store/repository/early_records.hpp"
#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"

namespace weightfs::test {
namespace {

class HeadStartTest : public SyncTest {
 protected:
  /// A host with the version; `early_bytes`: what its publisher says.
  void begin(const std::string& early_bytes) {
    publish(1);
    if (!early_bytes.empty()) {
      Manifest manifest = manifest_of(1);
      manifest.meta[std::string(kEarlyBytesKey)] = early_bytes;
      bucket_->replace(keys::manifest(1), manifest.serialize());
    }
    on_ = reader();
    on_->sync.run_once({});
    start_.emplace(*on_->host.store, on_->host.history, kernels::make_cpu_coder());
  }
  [[nodiscard]] Manifest manifest_of(std::uint64_t version) const {
    return Manifest::parse(bucket_->find(keys::manifest(version)).value(), "manifest");
  }
  /// Whether the record of the next version was asked for.
  bool asks() {
    bucket_->fail_key("early/", ErrorCode::permission);
    bool asked = false;
    try {
      start_->look({});
    } catch (const Error& error) {
      asked = error.code() == ErrorCode::permission;
    }
    bucket_->heal();
    return asked;
  }

  std::unique_ptr<Reader> on_;
  std::optional<HeadStart> start_;
};

TEST_F(HeadStartTest, AsksWherePublishersWorkEarly) {
  begin("4096");
  EXPECT_TRUE(asks());
  EXPECT_EQ(start_->look({}), 0u) << "there is no record";
}

TEST_F(HeadStartTest, AsksNothingWhereTheyDoNot) {
  begin("");
  EXPECT_FALSE(asks());
}

TEST_F(HeadStartTest, AsksNothingAfterAVersionOfWhichNothingWasCodedEarly) {
  begin("0");
  EXPECT_FALSE(asks());
}

TEST_F(HeadStartTest, AsksNothingWithoutAVersion) {
  on_ = reader();
  on_->sync.run_once({});
  start_.emplace(*on_->host.store, on_->host.history, kernels::make_cpu_coder());
  EXPECT_FALSE(asks());
}

TEST_F(HeadStartTest, ADamagedRecordIsNamed) {
  begin("4096");
  bucket_->replace(keys::early_record(2), "{}");
  EXPECT_EQ(code_of([&] { start_->look({}); }), ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs::test
