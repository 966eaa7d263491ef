#include "fs/fuse/open_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

Inode file_of(std::uint64_t version, std::uint32_t file) {
  return make_inode({InodeKind::version, version, file});
}

// Plays the kernel's list of backing files.
class Backings {
 public:
  std::int32_t add() {
    const std::lock_guard lock(mutex_);
    alive_.insert(++last_);
    return last_;
  }
  void remove(std::int32_t id) {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(alive_.erase(id), 1u) << "id " << id << " was not registered";
  }
  bool is_alive(std::int32_t id) const {
    const std::lock_guard lock(mutex_);
    return alive_.contains(id);
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return alive_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::int32_t> alive_;
  std::int32_t last_ = 0;
};

class OpenTableTest : public testing::Test {
 protected:
  std::optional<OpenTable::Opened> open(OpenTable& table, Inode inode) {
    return table.acquire(
        inode, [&] { return backings_.add(); }, [&](std::int32_t id) { backings_.remove(id); });
  }
  void release(OpenTable& table, Inode inode) {
    table.release(inode, [&](std::int32_t id) { backings_.remove(id); });
  }

  Backings backings_;
};

TEST_F(OpenTableTest, AllOpensOfAnInodeShareOneBackingId) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  const auto first = open(table, file_of(1, 1));
  const auto second = open(table, file_of(1, 1));
  const auto other = open(table, file_of(1, 2));
  ASSERT_TRUE(first && second && other);
  EXPECT_EQ(first->serving, Serving::passthrough);
  EXPECT_EQ(first->backing_id, second->backing_id);
  EXPECT_NE(first->backing_id, other->backing_id);
  EXPECT_EQ(backings_.count(), 2u);
  EXPECT_EQ(table.open_count(Serving::passthrough), 3u);
  EXPECT_EQ(table.open_count(Serving::daemon), 0u);
}

TEST_F(OpenTableTest, TheLastReleaseUnregistersAndTheNextOpenRegistersAnew) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  const auto first = open(table, file_of(1, 1));
  open(table, file_of(1, 1));
  release(table, file_of(1, 1));
  EXPECT_TRUE(backings_.is_alive(first->backing_id));
  release(table, file_of(1, 1));
  EXPECT_EQ(backings_.count(), 0u);
  EXPECT_NE(open(table, file_of(1, 1))->backing_id, first->backing_id);
}

TEST_F(OpenTableTest, AnInodeThatTheDaemonServesStaysWithItUntilTheLastRelease) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  const auto no_backing = [] { return std::int32_t{0}; };
  const auto unexpected = [](std::int32_t id) { EXPECT_EQ(id, 0); };
  EXPECT_EQ(table.acquire(file_of(1, 1), no_backing, unexpected)->serving, Serving::daemon);
  EXPECT_EQ(open(table, file_of(1, 1))->serving, Serving::daemon);
  EXPECT_EQ(backings_.count(), 0u);
  EXPECT_EQ(table.open_count(Serving::daemon), 2u);
  table.release(file_of(1, 1), unexpected);
  EXPECT_EQ(open(table, file_of(1, 1))->serving, Serving::daemon);
  table.release(file_of(1, 1), unexpected);
  table.release(file_of(1, 1), unexpected);
  EXPECT_EQ(open(table, file_of(1, 1))->serving, Serving::passthrough);
}

TEST_F(OpenTableTest, WhoOpensLaterIsToldFromWhichImageTheFirstIsServed) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  const auto open_image = [&](std::uint64_t image) {
    return table
        .acquire(
            file_of(1, 1), [&] { return backings_.add(); },
            [&](std::int32_t id) { backings_.remove(id); }, image)
        ->image;
  };
  EXPECT_EQ(open_image(70), 70u);
  EXPECT_EQ(open_image(71), 70u);
  release(table, file_of(1, 1));
  release(table, file_of(1, 1));
  EXPECT_EQ(open_image(71), 71u);
}

TEST_F(OpenTableTest, AFailedRegistrationCountsNothing) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  const auto fail = []() -> std::int32_t { throw std::runtime_error("no image"); };
  EXPECT_THROW(table.acquire(file_of(1, 1), fail, [](std::int32_t) {}), std::runtime_error);
  EXPECT_FALSE(table.is_open(1));
}

// Two first opens at once: the one that comes second to the table must take the id of the other,
// because the kernel answers EIO to a second id of an open inode.
TEST_F(OpenTableTest, TheLoserOfTwoFirstOpensTakesTheWinnersId) {
  std::vector<OpenRecord> records(8);
  OpenTable table(records);
  std::int32_t winners = 0;
  const auto loser = table.acquire(
      file_of(1, 1),
      [&] {
        winners = open(table, file_of(1, 1))->backing_id;
        return backings_.add();
      },
      [&](std::int32_t id) { backings_.remove(id); });
  EXPECT_EQ(loser->backing_id, winners);
  EXPECT_EQ(backings_.count(), 1u);
  EXPECT_EQ(table.open_count(Serving::passthrough), 2u);
}

TEST_F(OpenTableTest, AFullTableRefusesNewInodesOnly) {
  std::vector<OpenRecord> records(4);
  OpenTable table(records);
  for (std::uint32_t file = 1; file <= 4; file++) ASSERT_TRUE(open(table, file_of(1, file)));
  EXPECT_FALSE(open(table, file_of(1, 5)));
  EXPECT_EQ(backings_.count(), 4u) << "what the refused open registered is gone";
  EXPECT_TRUE(open(table, file_of(1, 2)));
  release(table, file_of(1, 3));
  EXPECT_TRUE(open(table, file_of(1, 5)));
  for (std::uint32_t file : {1u, 2u, 4u, 5u}) EXPECT_TRUE(open(table, file_of(1, file)));
}

TEST_F(OpenTableTest, ATableWithoutRecordsRefusesEverything) {
  OpenTable table({});
  EXPECT_FALSE(open(table, file_of(1, 1)));
  release(table, file_of(1, 1));
  EXPECT_EQ(backings_.count(), 0u);
}

TEST_F(OpenTableTest, UnknownReleasesAreIgnored) {
  std::vector<OpenRecord> records(4);
  OpenTable table(records);
  open(table, file_of(1, 1));
  release(table, file_of(1, 2));
  release(table, file_of(2, 1));
  EXPECT_EQ(table.open_count(Serving::passthrough), 1u);
}

TEST_F(OpenTableTest, KnowsWhichVersionsAreOpen) {
  std::vector<OpenRecord> records(4);
  OpenTable table(records);
  EXPECT_FALSE(table.is_open(0)) << "free records belong to no version";
  open(table, file_of(7, 3));
  EXPECT_TRUE(table.is_open(7));
  EXPECT_FALSE(table.is_open(8));
  release(table, file_of(7, 3));
  EXPECT_FALSE(table.is_open(7));
}

TEST_F(OpenTableTest, ASuccessorGoesOnWithTheRecords) {
  std::vector<OpenRecord> records(16);
  std::int32_t id = 0;
  {
    OpenTable table(records);
    id = open(table, file_of(3, 1))->backing_id;
  }
  OpenTable successor(records);
  EXPECT_TRUE(successor.is_open(3));
  EXPECT_EQ(open(successor, file_of(3, 1))->backing_id, id);
  release(successor, file_of(3, 1));
  release(successor, file_of(3, 1));
  EXPECT_EQ(backings_.count(), 0u);
}

// Small tables, so that runs of records wrap around the end and erasing moves them back.
TEST_F(OpenTableTest, BehavesLikeAMapUnderRandomOpensAndReleases) {
  auto rng = test::make_rng();
  for (const std::size_t size : {1u, 2u, 3u, 7u, 16u, 64u}) {
    std::vector<OpenRecord> records(size);
    OpenTable table(records);
    std::map<Inode, std::uint32_t> model;
    for (int step = 0; step < 20'000; step++) {
      const Inode inode = file_of(1 + rng() % 3, static_cast<std::uint32_t>(rng() % size));
      if (rng() % 2 == 0) {
        const bool has_room = model.contains(inode) || model.size() < size;
        ASSERT_EQ(open(table, inode).has_value(), has_room);
        if (has_room) model[inode]++;
      } else {
        release(table, inode);
        const auto found = model.find(inode);
        if (found != model.end() && --found->second == 0) model.erase(found);
      }
      ASSERT_EQ(backings_.count(), model.size());
      if (step % 64 != 0) continue;
      std::map<Inode, std::uint32_t> stored;
      for (const OpenRecord& record : records) {
        if (record.inode != 0) stored[record.inode] = record.opens;
      }
      ASSERT_EQ(stored, model);
    }
    for (const auto& [inode, opens] : model) {
      for (std::uint32_t i = 0; i < opens; i++) release(table, inode);
    }
    EXPECT_EQ(backings_.count(), 0u);
    EXPECT_TRUE(std::all_of(records.begin(), records.end(),
                            [](const OpenRecord& record) { return record.inode == 0; }));
  }
}

TEST_F(OpenTableTest, AnOpenNeverGetsAnIdThatIsGone) {
  std::vector<OpenRecord> records(64);
  OpenTable table(records);
  const auto work = [&](std::uint64_t start) {
    test::Random rng(start);
    for (int step = 0; step < 20'000; step++) {
      const Inode inode = file_of(1, static_cast<std::uint32_t>(rng() % 4));
      const auto opened = open(table, inode);
      ASSERT_TRUE(opened);
      ASSERT_TRUE(backings_.is_alive(opened->backing_id));
      release(table, inode);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < 4; i++) threads.emplace_back(work, test::seed() + i);
  }
  EXPECT_EQ(backings_.count(), 0u);
  EXPECT_EQ(table.open_count(Serving::passthrough), 0u);
}

}  // namespace
}  // namespace weightfs::fs
