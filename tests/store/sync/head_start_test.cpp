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
    start_.emplace(*on_->host.store, on_->host.history, kernels::make_cpu_coder(),
                   [this] { due_changes_++; });
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
  int due_changes_ = 0;
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
  start_.emplace(*on_->host.store, on_->host.history, kernels::make_cpu_coder(),
                 [this] { due_changes_++; });
  EXPECT_FALSE(asks());
}

/// A record of the next version, of a save that is complete.
EarlyRecord record_after(const Manifest& manifest) {
  EarlyRecord record;
  record.repository = manifest.repository;
  record.version = manifest.version + 1;
  record.parent_sha256 = sha256(as_bytes(manifest.serialize()));
  record.files = {{"model.safetensors", {}}};
  return record;
}

TEST_F(HeadStartTest, TheRecordTellsWhenTheVersionMayCome) {
  begin("4096");
  EXPECT_FALSE(start_->due());
  const EarlyRecord record = record_after(manifest_of(1));
  bucket_->replace(keys::early_record(2), record.serialize());
  const auto before = Clock::now();
  start_->look({});
  ASSERT_TRUE(start_->due());
  EXPECT_GE(*start_->due(), before);
  EXPECT_EQ(due_changes_, 1);
  start_->look({});
  EXPECT_EQ(due_changes_, 1) << "nothing new";
  bucket_->remove(keys::early_record(2), {});
  start_->look({});
  EXPECT_FALSE(start_->due());
  EXPECT_EQ(due_changes_, 2);
}

TEST_F(HeadStartTest, ARecordOfAnotherHistoryTellsNothing) {
  begin("4096");
  EarlyRecord record = record_after(manifest_of(1));
  record.parent_sha256.fill(std::byte{1});
  bucket_->replace(keys::early_record(2), record.serialize());
  start_->look({});
  EXPECT_FALSE(start_->due());
}

/// Steady polls would see it half a minute later.
TEST_F(HeadStartTest, AVersionWhoseSaveIsCompleteIsSeenSoon) {
  begin("4096");
  bucket_->replace(keys::early_record(2), record_after(manifest_of(1)).serialize());
  SyncOptions options;
  options.follow.poll = {std::chrono::minutes(1), true};
  options.head_start = true;
  const auto follower = reader("follower", kNoFloor, std::move(options));
  follower->sync.start();
  ASSERT_TRUE(eventually([&] { return follower->sync.status().latest == 1; }));
  Host(bucket_, dir_ / "second").publish(checkpoint(2));
  EXPECT_TRUE(eventually([&] { return follower->sync.status().latest == 2; }));
}

// Polls come every few milliseconds when a version is due.
TEST_F(HeadStartTest, WhatFailedIsNotTriedAgainAtOnceUnlessTheRecordChanges) {
  begin("4096");
  EarlyRecord record = record_after(manifest_of(1));
  const auto tell = [&](const std::string& pack) {
    record.files = {{"model-00001-of-00002.safetensors", {{{pack, 1000, 500, {}}}, 1}}};
    bucket_->replace(keys::early_record(2), record.serialize());
  };
  const auto fails = [&] {
    try {
      start_->look({});
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  tell(std::string(kNonceDigits, 'a') + "-0");
  EXPECT_TRUE(fails()) << "there is no such pack";
  for (int i = 0; i < 3; i++) EXPECT_FALSE(fails()) << "it was tried again";
  tell(std::string(kNonceDigits, 'b') + "-0");
  EXPECT_TRUE(fails());
}

TEST_F(HeadStartTest, ADamagedRecordIsNamed) {
  begin("4096");
  bucket_->replace(keys::early_record(2), "{}");
  EXPECT_EQ(code_of([&] { start_->look({}); }), ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs::test
