// PatchRecorder where images are on the disk: history goes back from the newest version.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/materialize/materialize.hpp"
#include "store/sync/patch_recorder.hpp"
#include "store/sync/sync.hpp"
#include "tests/store/sync/recorder_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/store_patches.hpp"

namespace weightfs::test {
namespace {

using Versions = std::vector<std::uint64_t>;

constexpr std::uint64_t kTwoVersions = 250'000;  // bytes

/// A host with room for two versions.
class DiskHistoryTest : public RecorderTest {
 protected:
  DiskHistoryTest() { limits_ = {kTwoVersions, 0}; }

  void publish(unsigned version, std::size_t more = 0) {
    config_ = R"({"step":)" + std::to_string(config_changes_ ? version : 0) + "}";
    write_text(checkpoint(version) / "tokenizer.json", "{}");
    RecorderTest::publish(version, 0.01, more);
  }
  void bring(unsigned version, std::size_t more = 0) {
    publish(version, more);
    if (!reader_) open();
    sync_->run_once({});
    sync_->sync_images();
  }
  void bring_and_record(unsigned first, unsigned last, std::size_t more = 0) {
    for (unsigned version = first; version <= last; version++) {
      bring(version, more);
      EXPECT_EQ(recorder_->record_if_due({}), version > 1) << version;
    }
  }

  [[nodiscard]] Versions here() { return reader_->store->images().complete_versions(); }
  void evict(std::uint64_t version) { ASSERT_TRUE(reader_->store->evictor().evict(version)); }
  [[nodiscard]] stdfs::path image(unsigned version) {
    return reader_->store->images().image_directory(version) / "model.safetensors";
  }

  bool make(unsigned version) {
    return materialize_from_patches(*reader_->store, reader_->history, version, {}, {});
  }
  void expect_made(unsigned version) {
    ASSERT_TRUE(make(version)) << version;
    EXPECT_EQ(read_tree(reader_->store->images().image_directory(version)),
              read_tree(checkpoint(version)));
  }

  bool config_changes_ = false;
};

TEST_F(DiskHistoryTest, OldVersionsAreMadeOfTheNewestWithoutTheBucket) {
  bring_and_record(1, 12);
  EXPECT_LE(here().size(), 2u);
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.first, 1u);
  EXPECT_EQ(history.versions, 12u);
  EXPECT_EQ(history.recorded, 12u);
  EXPECT_EQ(history.backlog, 0u);
  EXPECT_EQ(history.path_bytes, 0u) << "a restart reads none";
  open_without_bucket();
  for (const unsigned version : {3u, 1u, 10u, 7u}) expect_made(version);
}

TEST_F(DiskHistoryTest, SoAreTheirSmallFiles) {
  config_changes_ = true;
  bring_and_record(1, 6);
  open_without_bucket();
  for (unsigned version = 1; version <= 5; version++) expect_made(version);
  const auto kept = read_tree(dir_ / "reader" / "small");
  EXPECT_GE(kept.size(), 4u);
  for (const auto& [name, text] : kept) EXPECT_NE(text, "{}") << "all images have this one";
}

TEST_F(DiskHistoryTest, NothingIsRecordedOfOneVersionNorTwice) {
  bring(1);
  EXPECT_FALSE(recorder_->record_if_due({}));
  bring_and_record(2, 3);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(2, 3)}));
}

TEST_F(DiskHistoryTest, AStoreOfAReleaseWithoutHistoryBeginsWithWhatIsHere) {
  for (unsigned version = 1; version <= 3; version++) bring(version);
  open();
  EXPECT_EQ(recorder_->status().recorded, 0u);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), std::vector{one(2, 3)});
}

TEST_F(DiskHistoryTest, TheVersionThatTheNextPatchesAreTakenFromIsKept) {
  bring_and_record(1, 2);
  bring(3);
  bring(4);
  EXPECT_EQ(here(), (Versions{2, 3, 4}));
  forget_noted(2);
  forget_noted(3);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(2, 4)}));
  bring(5);
  EXPECT_EQ(here(), (Versions{4, 5}));
}

TEST_F(DiskHistoryTest, BeyondTheBacklogItGoesAndHistoryBeginsAnew) {
  bring_and_record(1, 3);
  for (unsigned version = 4; version <= 7; version++) bring(version);
  EXPECT_EQ(here(), (Versions{6, 7}));
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), std::vector{one(6, 7)}) << "the others lead nowhere any more";
  EXPECT_EQ(recorder_->status().first, 6u);
}

TEST_F(DiskHistoryTest, PatchesBehindAChangeOfTheTensorTableStayWhileTheyLeadToImages) {
  bring_and_record(1, 3);
  bring(4, 100);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_FALSE(recorder_->keeps(3)) << "no patches will ever lead from it to 4";
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(2, 3)})) << "3 is here";
  EXPECT_EQ(recorder_->status().backlog, 0u);
}

TEST_F(DiskHistoryTest, PatchesThatLeadNowhereAreRemoved) {
  bring_and_record(1, 3);
  bring(4, 100);
  EXPECT_FALSE(recorder_->record_if_due({}));
  bring(5, 100);
  EXPECT_EQ(here(), (Versions{4, 5}));
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), std::vector{one(4, 5)});
  EXPECT_EQ(recorder_->status().first, 4u);
}

TEST_F(DiskHistoryTest, AnUnsyncedVersionThatAPowerCutTookIsMadeOfTheOlderOne) {
  bring_and_record(1, 3);
  stdfs::remove_all(reader_->store->images().image_directory(3));
  open_without_bucket();
  EXPECT_EQ(sync_->catalog()->latest, 2u);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_EQ(recorder_->status().recorded, 3u);
  sync_->start();
  EXPECT_TRUE(eventually([&] { return sync_->catalog()->latest == 3; }));
  sync_->stop();
  EXPECT_EQ(read_tree(reader_->store->images().image_directory(3)), read_tree(checkpoint(3)));
  expect_made(1);
}

TEST_F(DiskHistoryTest, ADamagedImageIsDroppedAndHistoryGoesOnWithoutIt) {
  bring_and_record(1, 2);
  limits_.store_bytes = 3 * kTwoVersions;
  open();
  bring(3);
  std::string bytes = read_text(image(2));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(image(2), bytes);
  forget_noted(2);
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }), ErrorCode::corrupt);
  EXPECT_EQ(here(), (Versions{1, 3}));
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(1, 3)}));
}

TEST_F(DiskHistoryTest, IfTheNewestIsDamagedTheNextVersionIsWaitedFor) {
  limits_.store_bytes = 3 * kTwoVersions;
  bring_and_record(1, 2);
  bring(3);
  std::string bytes = read_text(image(3));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(image(3), bytes);
  forget_noted(2);
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }), ErrorCode::corrupt);
  EXPECT_FALSE(recorder_->record_if_due({})) << "it is latest, so it is still here";
  bring(4);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(2, 4)}));
}

TEST_F(DiskHistoryTest, WhoDoesNotStayComparesNoImages) {
  limits_.store_bytes = 3 * kTwoVersions;
  bring(1);
  EXPECT_FALSE(recorder_->record_noted({}));
  bring(2);
  EXPECT_TRUE(recorder_->record_noted({}));
  bring(3);
  forget_noted(2);
  EXPECT_FALSE(recorder_->record_noted({}));
  EXPECT_EQ(spans(), (std::vector{one(1, 2)}));
  EXPECT_TRUE(recorder_->record_if_due({})) << "who stays does";
  EXPECT_EQ(spans(), (std::vector{one(1, 2), one(2, 3)}));
  EXPECT_EQ(recorder_->status().counted, (FreshCounters{1, 1, 0}));
}

TEST_F(DiskHistoryTest, BeyondADamagedPatchHistoryIsLost) {
  bring_and_record(1, 6);
  damage_span(*reader_->store, one(2, 3));
  open_without_bucket();
  EXPECT_FALSE(make(1));
  expect_made(4);
  recorder_->record_if_due({});
  EXPECT_EQ(recorder_->status().first, 3u);
  EXPECT_EQ(spans().front(), one(3, 4));
}

TEST_F(DiskHistoryTest, ForPatchesNothingElseGoes) {
  bring_and_record(1, 2);
  bring(3);
  const Versions before = here();
  limits_ = {kTwoVersions * 2, 1ull << 60};
  open();
  std::string message;
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }, &message), ErrorCode::no_space);
  EXPECT_NE(message.find("--min-free"), std::string::npos) << message;
  EXPECT_EQ(here(), before);
  EXPECT_FALSE(recorder_->keeps(2)) << "what cannot be taken keeps nothing";
  EXPECT_TRUE(stdfs::is_empty(reader_->store->temporary_directory()));
}

TEST_F(DiskHistoryTest, WhoIsToTakeNoneRemovesThoseThatLeadNowhere) {
  bring_and_record(1, 3);
  recorder_.emplace(*reader_->store, reader_->history, PatchRecorderOptions{.keeps_a_part = true});
  bring(4);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_NE(recorder_->status().off, "");
  EXPECT_EQ(spans().size(), 2u);
  bring(5);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_TRUE(spans().empty());
  EXPECT_EQ(recorder_->status().backlog, 0u);
}

TEST_F(DiskHistoryTest, ItHasWhatTheStoresLimitLeavesBesideTwoVersions) {
  limits_.store_bytes = 212'000;
  bring_and_record(1, 16);
  const PatchHistory history = recorder_->status();
  ASSERT_TRUE(history.bytes_max);
  EXPECT_LE(history.bytes, *history.bytes_max);
  EXPECT_GT(history.first, 1u) << "the oldest went";
  EXPECT_LT(history.first, 15u);
  EXPECT_GT(history.versions, 2u);
  EXPECT_LE(history.versions, 16 - history.first + 1);
  open_without_bucket();
  expect_made(static_cast<unsigned>(history.first));
}

TEST_F(DiskHistoryTest, ByDefaultItTakesNoRoomFromImages) {
  limits_.store_bytes.reset();
  bring_and_record(1, 4);
  EXPECT_EQ(here(), (Versions{2, 3, 4})) << "three while one arrives, and patches beside";
  const std::uint64_t version = reader_->store->images().newest_bytes();
  EXPECT_EQ(recorder_->status().bytes_max, version);
}

TEST_F(DiskHistoryTest, ChangesThatAreTooLargeAreNotTakenAndNotTriedAgain) {
  bring(1);
  limits_.store_bytes = 2 * reader_->store->images().newest_bytes() + 600;
  open();
  bring(2);
  std::string message;
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }, &message), ErrorCode::no_space);
  EXPECT_NE(message.find("--store-size"), std::string::npos) << message;
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_TRUE(stdfs::is_empty(reader_->store->temporary_directory()));
  bring(3);
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }), ErrorCode::no_space);
}

TEST_F(DiskHistoryTest, PatchesGoBeforeAVersionHasNoRoom) {
  bring_and_record(1, 6);
  Store& store = *reader_->store;
  const std::uint64_t before = store.patches().size_bytes();
  const std::uint64_t left = kTwoVersions - store.images().newest_bytes();
  store.evictor().evict_for_images(left - before / 2);
  EXPECT_EQ(here(), Versions{6}) << "images of older versions go first";
  EXPECT_LE(store.patches().size_bytes(), before / 2);
  EXPECT_GT(store.patches().size_bytes(), 0u);
  EXPECT_EQ(spans().back(), one(5, 6)) << "the oldest go first";
  store.evictor().evict_for_images(left);
  EXPECT_TRUE(spans().empty());
  EXPECT_EQ(code_of([&] { store.evictor().evict_for_images(left + 1); }), ErrorCode::no_space);
}

TEST_F(DiskHistoryTest, WithoutAHistoryWhatThereIsGoes) {
  config_changes_ = true;
  bring_and_record(1, 4);
  EXPECT_FALSE(spans().empty());
  recorder_.emplace(*reader_->store, reader_->history, PatchRecorderOptions{.history = 0});
  bring(5);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_TRUE(spans().empty());
  EXPECT_TRUE(read_tree(dir_ / "reader" / "small").empty());
  EXPECT_EQ(recorder_->status().off, "--history 0");
}

TEST_F(DiskHistoryTest, AShorterHistoryHasFewerVersionsOneByOne) {
  recorder_.reset();
  publish(1);
  open();
  sync_->run_once({});
  sync_->sync_images();
  recorder_.emplace(*reader_->store, reader_->history, PatchRecorderOptions{.history = 4});
  bring_and_record(2, 20);
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.first, 1u);
  EXPECT_EQ(history.levels.at(0).spans, 4u);
  EXPECT_EQ(history.levels.at(1).spans, 2u);
}

TEST_F(DiskHistoryTest, AVersionThatHasNoRoomBesideIsNotKept) {
  std::uint64_t free_bytes = 1ull << 40;
  space_ = [&] { return Space{free_bytes, 1ull << 41}; };
  bring_and_record(1, 2);
  bring(3);
  EXPECT_TRUE(recorder_->keeps(2));
  free_bytes = (64u << 20) + 50'000;
  EXPECT_FALSE(recorder_->keeps(2));
}

TEST_F(DiskHistoryTest, TakingEndsWhenAVersionComesThatHasNoRoomBeside) {
  bool is_coming = false, is_full = false;
  space_ = [&] {
    if (is_coming && !is_full) {  // asked too when the first patch is written
      is_full = true;
      recorder_->note_coming();
      is_full = false;
    }
    return Space{is_full ? 1ull << 20 : 1ull << 40, 1ull << 41};
  };
  bring(1, 100);
  bring(2, 100);
  forget_noted(1);
  is_coming = true;
  std::string message;
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }, &message), ErrorCode::no_space);
  EXPECT_NE(message.find("another version"), std::string::npos) << message;
  EXPECT_FALSE(recorder_->keeps(1));
  EXPECT_TRUE(stdfs::is_empty(reader_->store->temporary_directory()));
  is_coming = false;
  EXPECT_TRUE(recorder_->record_if_due({}));
}

TEST_F(DiskHistoryTest, ManyVersionsAreFolded) {
  bring_and_record(1, 20);
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.levels.at(1).spans, 2u);
  EXPECT_EQ(history.levels.at(3).spans, 0u) << "nothing goes forwards from a base";
  open_without_bucket();
  expect_made(2);
}

TEST_F(DiskHistoryTest, TheThreadRecordsAfterTheFlip) {
  publish(1);
  open();
  recorder_.reset();
  sync_->start();
  for (unsigned version = 1; version <= 10; version++) {
    if (version > 1) publish(version);
    EXPECT_TRUE(eventually([&] { return sync_->status().latest == version; }));
    // Versions that come faster than the thread gets a core may go before it took their patches.
    EXPECT_TRUE(version == 1 ||
                eventually([&] { return sync_->status().history.recorded == version; }));
  }
  EXPECT_EQ(sync_->status().history.error, "");
}

}  // namespace
}  // namespace weightfs::test
