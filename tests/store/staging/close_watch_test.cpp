#include "store/staging/close_watch.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

constexpr std::size_t kBytes = 4096;

class CloseWatchTest : public testing::Test {
 protected:
  CloseWatchTest() { std::signal(SIGIO, SIG_IGN); }

  [[nodiscard]] std::string path_of(StagingId id) const { return dir_ / std::to_string(id); }

  [[nodiscard]] File open_writable(StagingId id) const {
    return File::open(path_of(id), O_RDWR | O_CREAT);
  }

  void begin() {
    watch_.emplace(CloseWatchOptions{.directory = dir_.path(),
                                     .all = [this] { return all_; },
                                     .closed =
                                         [this](StagingId id) {
                                           Context context;
                                           gate_.pass(context);
                                           const std::lock_guard lock(mutex_);
                                           told_.insert(id);
                                         },
                                     .written =
                                         [this](StagingId id) {
                                           const std::lock_guard lock(mutex_);
                                           written_.insert(id);
                                         },
                                     .is_open =
                                         [this](StagingId id) {
                                           const std::lock_guard lock(mutex_);
                                           return open_.contains(id);
                                         }});
  }

  /// Whether the file was reported since the last call.
  bool take(StagingId id) {
    const std::lock_guard lock(mutex_);
    return told_.erase(id) > 0;
  }
  bool is_told(StagingId id) {
    return eventually([&] { return take(id); });
  }
  /// Whether it was not reported by the time that another file was.
  bool is_not_told(StagingId id) {
    static_cast<void>(open_writable(99));
    return is_told(99) && !take(id);
  }

  TempDir dir_;
  Gate gate_;
  std::vector<StagingId> all_;
  std::mutex mutex_;  // guards the next three
  std::set<StagingId> told_, written_;
  std::set<StagingId> open_;         // as the daemon knows
  std::optional<CloseWatch> watch_;  // last: its thread uses the members above
};

TEST_F(CloseWatchTest, TellsWhenTheLastDescriptorIsClosedThoughNobodyNotesIt) {
  begin();
  {
    const File first = open_writable(16);
    { const File second = open_writable(16); }
    EXPECT_TRUE(is_not_told(16));
  }
  EXPECT_TRUE(is_told(16));
}

TEST_F(CloseWatchTest, TellsWhenAMappingThatOutlivesItsDescriptorIsGone) {
  begin();
  void* mapped = MAP_FAILED;
  {
    const File file = open_writable(16);
    ASSERT_EQ(::ftruncate(file.fd(), kBytes), 0);
    mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  }
  ASSERT_NE(mapped, MAP_FAILED);
  watch_->note(16);  // the RELEASE
  EXPECT_TRUE(is_not_told(16));
  ::munmap(mapped, kBytes);
  EXPECT_TRUE(is_told(16));
}

TEST_F(CloseWatchTest, TellsOfWhatWasClosedBeforeItBeganIfItIsNoted) {
  static_cast<void>(open_writable(16));
  static_cast<void>(open_writable(17));
  begin();
  EXPECT_TRUE(is_not_told(16));
  watch_->note(16);
  EXPECT_TRUE(is_told(16));
  EXPECT_FALSE(take(17));
  all_ = {17};
  watch_->note_all();
  EXPECT_TRUE(is_told(17));
}

/// A process that waits for the processor has the answer of its open, and not the backing file.
TEST_F(CloseWatchTest, TakesAFileForWrittenThatIsAboutToBeOpened) {
  static_cast<void>(open_writable(16));
  open_ = {16};
  begin();
  watch_->note(16);
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex_);
    return written_.contains(16);
  }));
  EXPECT_TRUE(is_not_told(16));
  {
    const std::lock_guard lock(mutex_);
    open_.clear();
  }
  watch_->note(16);
  EXPECT_TRUE(is_told(16));
}

TEST_F(CloseWatchTest, AsksAboutAllFilesWhenEventsWereLost) {
  std::uint64_t most = 0;
  std::ifstream("/proc/sys/fs/inotify/max_queued_events") >> most;
  ASSERT_GT(most, 0u);
  if (most > 1'000'000) GTEST_SKIP() << "the queue of inotify is too long to fill";
  all_ = {18};
  begin();
  gate_.close();
  static_cast<void>(open_writable(16));
  ASSERT_TRUE(gate_.is_reached());
  for (std::uint64_t i = 0; i <= most; i++) {  // alternating, because two events of the same file
                                               // in a row would be merged
    static_cast<void>(open_writable(16 + i % 2));
  }
  static_cast<void>(open_writable(18));
  gate_.open();
  EXPECT_TRUE(is_told(18));
}

TEST_F(CloseWatchTest, GoesOnThoughThereIsNoMemoryToSayWhatFailed) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new";
  std::optional<NoMemory> none;
  std::atomic<int> calls = 0;
  {
    CloseWatch watch({.directory = dir_.path(),
                      .all = [&]() -> std::vector<StagingId> {
                        if (++calls == 1) {
                          none.emplace();
                          throw std::bad_alloc();
                        }
                        none.reset();
                        return {};
                      },
                      .closed = [](StagingId) {}});
    watch.note_all();
    EXPECT_TRUE(eventually([&calls] { return calls == 1; }));
    watch.note_all();
    EXPECT_TRUE(eventually([&calls] { return calls == 2; }));
  }
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace weightfs::test
