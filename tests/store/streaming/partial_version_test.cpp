#include "store/streaming/partial_version.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "store/local/store.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/meddling_coder.hpp"
#include "tests/support/no_leases.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs {
namespace {

using test::error_of;
using test::eventually;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr const char* kLarge = "a.safetensors";

Bytes random_bytes(std::size_t size, test::Random& rng) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t value = rng();
    std::memcpy(bytes.data() + i, &value, std::min<std::size_t>(8, size - i));
  }
  return bytes;
}

/// The files of the test's versions; a changes, b does not.
struct FilledModel {
  explicit FilledModel(test::Random& rng) : rng_(rng) {
    a = {test::random_tensor("x", Dtype::bf16, {300, 100}, rng),
         {"bytes", Dtype::u8, {13 * kMiB + 77}, random_bytes(13 * kMiB + 77, rng)},
         test::random_tensor("empty", Dtype::f32, {0, 4}, rng)};
    b = {test::random_tensor("x", Dtype::f16, {70'000}, rng),
         test::random_tensor("scalar", Dtype::f32, {}, rng)};
  }

  [[nodiscard]] test::Tree tree() const {
    return {{kLarge, test::make_safetensors(a)},
            {"b.safetensors", test::make_safetensors(b)},
            {"none.safetensors", test::make_safetensors({})},
            {"config.json", R"({"model_type":"test"})"},
            {"sub/dir/notes.txt", ""},
            {"tokenizer.json", tokenizer}};
  }
  void change() {
    test::nudge(a[0], 0.01, rng_);
    for (int i = 0; i < 5; i++) a[1].data[rng_() % a[1].data.size()] ^= std::byte{1};
    tokenizer += "x";
  }

  std::vector<test::TestTensor> a, b;
  std::string tokenizer = std::string(100'000, 't');

 private:
  test::Random& rng_;
};

/// A reader that waits for a part of a file.
class Waiting {
 public:
  std::function<void()> wake() {
    return [this] {
      const std::lock_guard lock(mutex_);
      wakes_++;
      woken_.notify_all();
    };
  }
  [[nodiscard]] int wakes() const {
    const std::lock_guard lock(mutex_);
    return wakes_;
  }
  /// Waits for the n-th call; false after a very long time.
  bool wait(int n) {
    std::unique_lock lock(mutex_);
    return woken_.wait_for(lock, std::chrono::seconds(60), [&] { return wakes_ >= n; });
  }

 private:
  mutable std::mutex mutex_;  // guards wakes_
  std::condition_variable woken_;
  int wakes_ = 0;
};

class PartialVersionTest : public ::testing::Test {
 protected:
  PartialVersionTest() {
    auto bucket = std::make_unique<test::WatchedBucket>(builder_.bucket());
    watched_ = bucket.get();
    repository_ = Repository::open(std::move(bucket), {});
    history_ = std::make_unique<History>(*repository_, nullptr);
  }

  void add_versions(int count, const test::BuildOptions& options = {}) {
    for (int i = 0; i < count; i++) {
      if (builder_.newest() > 0) model_.change();
      builder_.add(model_.tree(), options);
    }
  }

  Plan plan(std::uint64_t version, const std::vector<Base>& bases = {}) {
    return make_plan(*history_, history_->get(version, {}), bases, {});
  }

  Base write(const Plan& way) {
    WriteOptions options;
    options.directory = new_directory();
    options.spool = directory_.path();
    options.sync = false;
    write_version(way, *repository_, options, {}, {});
    return {way.version, way.layout, options.directory, way.hashes};
  }

  std::filesystem::path new_directory() {
    const auto path = directory_ / ("version-" + std::to_string(++made_));
    std::filesystem::create_directories(path);
    return path;
  }

  PartialVersionOptions options(unsigned threads = 1, bool in_background = true) {
    PartialVersionOptions how;
    how.directory = filled_in_ = new_directory();
    how.spool = directory_.path();
    how.threads = threads;
    how.in_background = in_background;
    how.tell_failures_for = std::chrono::milliseconds(20);
    return how;
  }

  std::unique_ptr<PartialVersion> fill(Plan way, PartialVersionOptions how) {
    return std::make_unique<PartialVersion>(std::move(way), *repository_, std::move(how),
                                            Context{});
  }

  /// No bytes arrive before the bucket is healed.
  std::unique_ptr<PartialVersion> fill_from_hanging(Plan way, PartialVersionOptions how) {
    for (const auto* prefix : {"snapshots/", "packs/", "blobs/"}) {
      builder_.bucket()->hang_key(prefix);
    }
    return fill(std::move(way), std::move(how));
  }

  /// Asks until the bytes are here.  Returns: the bytes from the file.
  std::string read(PartialVersion& filled, const std::string& path, std::uint64_t offset,
                   std::uint64_t size) {
    Waiting waiting;
    int asked = 0;
    while (!filled.ask(path, offset, size, waiting.wake())) {
      if (!waiting.wait(++asked)) return "nobody woke us";
    }
    const std::string whole = builder_.tree(filled.plan().version->number()).at(path);
    const std::uint64_t end = std::min<std::uint64_t>(offset + size, whole.size());
    std::string bytes(static_cast<std::size_t>(end - std::min(offset, end)), '\0');
    const auto file = File::open(filled_in_ / path, O_RDONLY);
    if (!read_at(file.fd(), offset, std::as_writable_bytes(std::span(bytes)), path)) {
      return "the file is too short";
    }
    return bytes;
  }

  [[nodiscard]] std::string expected(std::uint64_t version, const std::string& path,
                                     std::uint64_t offset, std::uint64_t size) const {
    const std::string& whole = builder_.tree(version).at(path);
    return offset < whole.size() ? whole.substr(offset, size) : "";
  }

  void expect_whole(const PartialVersion& filled) {
    const std::uint64_t version = filled.plan().version->number();
    EXPECT_TRUE(filled.is_complete());
    EXPECT_EQ(test::read_tree(filled_in_), builder_.tree(version));
    EXPECT_EQ(filled.progress().bytes_here, filled.progress().bytes);
    EXPECT_EQ(filled.progress().error, std::nullopt);
    for (const auto& [path, bytes] : builder_.tree(version)) {
      struct stat found {};
      ASSERT_EQ(::stat((filled_in_ / path).c_str(), &found), 0);
      EXPECT_EQ(found.st_mode & 07777, 0444u) << path;
      EXPECT_TRUE(filled.is_here(path)) << path;
      if (found.st_nlink > 1) continue;
      EXPECT_EQ(found.st_mtime, filled.plan().version->manifest.time);
    }
  }

  /// Many threads read random parts of random files while the version is filled.
  void read_at_random(PartialVersion& filled, int thread_count, int asks) {
    const std::uint64_t version = filled.plan().version->number();
    std::vector<std::string> paths;
    for (const auto& [path, bytes] : builder_.tree(version)) paths.push_back(path);
    paths.insert(paths.end(), 5, kLarge);
    std::atomic<int> wrong = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < thread_count; t++) {
      threads.emplace_back([&, seed = rng_()] {
        test::Random rng(seed);
        for (int i = 0; i < asks; i++) {
          const std::string& path = paths[rng() % paths.size()];
          const std::uint64_t size = builder_.tree(version).at(path).size();
          const std::uint64_t offset = rng() % (size + 2),
                              count = rng() % (i % 8 ? 9000 : 6 * kMiB);
          if (read(filled, path, offset, count) != expected(version, path, offset, count)) wrong++;
        }
      });
    }
    threads.clear();
    EXPECT_EQ(wrong, 0);
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
  FilledModel model_{rng_};
  test::RepositoryBuilder builder_;
  test::WatchedBucket* watched_ = nullptr;
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<History> history_;
  std::filesystem::path filled_in_;
  int made_ = 0;
};

// ---- bytes ----

TEST_F(PartialVersionTest, IsWhatWriteVersionMakesWhateverIsAskedForFromEveryStart) {
  add_versions(3, {.chunks_per_pack = 3});
  const Base first = write(plan(1));
  for (const bool in_background : {true, false}) {
    for (Plan& way : std::vector{plan(1), plan(3), plan(3, {first})}) {
      SCOPED_TRACE(way.steps.size() + (way.base ? 10 : 0));
      const auto filled = fill(std::move(way), options(3, in_background));
      read_at_random(*filled, 4, 25);
      if (!in_background) {
        for (const auto& [path, bytes] : builder_.tree(filled->plan().version->number())) {
          read(*filled, path, 0, bytes.size() + 1);
        }
      }
      filled->wait_complete(Context{}.within(std::chrono::seconds(60)));
      expect_whole(*filled);
    }
  }
}

// A window that nobody makes holds up its readers, its neighbours and the version for ever.
TEST_F(PartialVersionTest, WhateverFailsForWantOfMemoryAllOfItComes) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's operator new";
  constexpr unsigned kStep = 5;
  add_versions(1);
  bool is_missed = true;
  for (auto left = static_cast<unsigned>(rng_() % kStep); is_missed; left += kStep) {
    const auto filled = fill_from_hanging(plan(1), options(3));
    for (const auto& [path, bytes] : builder_.tree(1)) filled->ask(path, 0, bytes.size(), [] {});
    builder_.bucket()->heal();
    {
      const test::NoMemory none(left);
      const auto until = Clock::now() + std::chrono::seconds(60);
      while (!none.was_missed() && !filled->is_complete() && Clock::now() < until)
        std::this_thread::yield();
      is_missed = none.was_missed();
    }
    ASSERT_TRUE(eventually([&] { return filled->is_complete(); })) << left << " allocations";
    expect_whole(*filled);
  }
}

TEST_F(PartialVersionTest, IsFilledByTheWorkersThatTheSystemGives) {
  add_versions(1);
  Plan way = plan(1);
  std::unique_ptr<PartialVersion> filled;
  {
    const test::FewThreads few(1);
    if (!few.works()) GTEST_SKIP() << "a limit of threads needs root";
    filled = fill(std::move(way), options(4));
  }
  filled->wait_complete(Context{}.within(std::chrono::seconds(60)));
  expect_whole(*filled);
}

TEST_F(PartialVersionTest, WithoutAnyWorkerThereIsAnError) {
  add_versions(1);
  Plan way = plan(1);
  const test::FewThreads few(0);
  if (!few.works()) GTEST_SKIP() << "a limit of threads needs root";
  EXPECT_THROW(fill(std::move(way), options(4)), std::system_error);
}

TEST_F(PartialVersionTest, FilesHaveTheirSizeFromTheStart) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options());
  for (const auto& [path, bytes] : builder_.tree(1)) {
    EXPECT_EQ(std::filesystem::file_size(filled_in_ / path), bytes.size()) << path;
    EXPECT_FALSE(filled->is_here(path)) << path;
  }
  EXPECT_FALSE(filled->is_complete());
  EXPECT_EQ(filled->progress().bytes_here, 0u);
  EXPECT_TRUE(filled->ask(kLarge, 1ull << 40, 5, {})) << "behind the end";
  EXPECT_TRUE(filled->ask(kLarge, 5, 0, {}));
  EXPECT_FALSE(filled->ask(kLarge, 0, ~0ull, {}));
  EXPECT_EQ(error_of([&] { filled->ask("absent", 0, 1, {}); }).code(), ErrorCode::not_found);
}

TEST_F(PartialVersionTest, WhatTheBaseHasIsHereAtOnce) {
  add_versions(2);
  const Base first = write(plan(1));
  const auto filled = fill_from_hanging(plan(2, {first}), options());
  for (const auto* path : {"b.safetensors", "config.json"}) {
    EXPECT_TRUE(filled->is_here(path)) << path;
    EXPECT_TRUE(filled->ask(path, 0, 100, {})) << path;
    EXPECT_EQ(std::filesystem::hard_link_count(filled_in_ / path), 2u) << path;
  }
  EXPECT_FALSE(filled->is_here(kLarge));
  EXPECT_FALSE(filled->is_here("tokenizer.json"));
  EXPECT_GE(filled->progress().bytes_here, builder_.tree(1).at("b.safetensors").size());
}

TEST_F(PartialVersionTest, AVersionEqualToItsBaseIsCompleteAtOnce) {
  FilledModel plain(rng_);
  test::Tree tree = plain.tree();
  tree.erase("none.safetensors");  // without tensors it has no known origin
  builder_.add(tree);
  builder_.add(tree);
  const Base first = write(plan(1));
  const auto filled = fill_from_hanging(plan(2, {first}), options());
  expect_whole(*filled);
  EXPECT_TRUE(nobody_reads(first.directory));
}

TEST_F(PartialVersionTest, FilesThatAreNotWantedAreNotMade) {
  add_versions(1);
  PartialVersionOptions how = options();
  how.files = {false, true};
  const auto filled = fill(plan(1), std::move(how));
  filled->wait_complete({});
  test::Tree wanted = builder_.tree(1);
  wanted.erase(kLarge);
  wanted.erase("none.safetensors");
  EXPECT_EQ(test::read_tree(filled_in_), wanted);
  EXPECT_FALSE(filled->is_here(kLarge));
  EXPECT_EQ(filled->progress().bytes, builder_.tree(1).at("b.safetensors").size() +
                                          builder_.tree(1).at("config.json").size() +
                                          builder_.tree(1).at("tokenizer.json").size());
}

// ---- order ----

TEST_F(PartialVersionTest, WhatIsAskedForIsFetchedFirstThenWhatIsBehindItThenTheFilesInOrder) {
  add_versions(1);
  builder_.bucket()->hang_key("blobs/");
  const auto filled = fill_from_hanging(plan(1), options());
  const std::size_t before = watched_->gets("").size();
  ASSERT_TRUE(eventually([&] { return builder_.bucket()->waiting() == 1; })) << "a blob";
  EXPECT_FALSE(filled->ask(kLarge, 9 * kMiB, 10, {}));  // window 2
  builder_.bucket()->heal();
  filled->wait_complete({});
  std::vector<std::string> order;
  const auto gets = watched_->gets("");
  for (std::size_t i = std::max<std::size_t>(before, 1) - 1; i < gets.size(); i++) {
    std::string what = gets[i].key.substr(0, gets[i].key.find('/'));
    if (gets[i].key.ends_with(kLarge)) {
      // A window's first and last chunk may reach beyond it.
      what = std::to_string((gets[i].offset_bytes + gets[i].size_bytes / 2) / (4 * kMiB));
    }
    if (gets[i].key.ends_with("b.safetensors")) what = "b";
    if (order.empty() || order.back() != what) order.push_back(what);
  }
  const auto place = [&](const std::string& what) {
    return std::find(order.begin(), order.end(), what) - order.begin();
  };
  ASSERT_LT(place("b"), static_cast<std::ptrdiff_t>(order.size()));
  EXPECT_LT(place("2"), place("3"));
  EXPECT_LT(place("3"), place("0"));
  EXPECT_LT(place("0"), place("b"));
}

TEST_F(PartialVersionTest, WhatNobodyAsksForIsNotFetchedIfSoWanted) {
  add_versions(1);
  const auto filled = fill(plan(1), options(2, false));
  const auto offset = 13 * kMiB;  // the last window, so there is no read-ahead
  EXPECT_EQ(read(*filled, kLarge, offset, 10), expected(1, kLarge, offset, 10));
  EXPECT_FALSE(filled->is_here(kLarge));
  EXPECT_LT(filled->progress().bytes_here, 2 * kMiB);
  for (const auto& get : watched_->gets("snapshots/")) {
    if (!get.key.ends_with("safetensors")) continue;
    EXPECT_GE(get.offset_bytes, 10 * kMiB) << get.key;
  }
}

TEST_F(PartialVersionTest, ASnapshotIsReadOnceWithARequestForEachWindow) {
  add_versions(1);
  const auto filled = fill(plan(1), options());
  filled->wait_complete({});
  const auto gets = watched_->gets(builder_.key("snapshots/1/", kLarge));
  std::uint64_t bytes = 0;
  for (const auto& get : gets) bytes += get.size_bytes;
  EXPECT_EQ(bytes, builder_.tree(1).at(kLarge).size());
  EXPECT_EQ(gets.size(), 4u);
}

/// Windows share chunks with their neighbours, but not pieces.
TEST_F(PartialVersionTest, NoPieceOfASnapshotIsFetchedTwiceHoweverManyWorkersMakeItsWindows) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", kLarge);
  for (int round = 0; round < 5; round++) {
    const std::size_t before = watched_->gets(key).size();
    const auto filled = fill(plan(1), options(8));
    filled->wait_complete({});
    expect_whole(*filled);
    auto gets = watched_->gets(key);
    gets.erase(gets.begin(), gets.begin() + static_cast<std::ptrdiff_t>(before));
    std::set<std::uint64_t> pieces;
    for (const auto& get : gets) {
      for (std::uint64_t at = 0; at < get.size_bytes; at += kMiB) {
        EXPECT_TRUE(pieces.insert(get.offset_bytes + at).second) << get.offset_bytes + at;
      }
    }
    EXPECT_EQ(pieces.size(), 14u);
  }
}

/// The pieces are what the snapshot says, but together they are not the version's chunk.
TEST_F(PartialVersionTest, NeitherWindowIsHereIfTheChunkAcrossThemIsWrong) {
  add_versions(1);
  Plan way = plan(1);
  const auto tensors = way.layout->tensors_of(*way.layout->find_file(kLarge));
  const auto bytes = std::find_if(tensors.begin(), tensors.end(),
                                  [](const LayoutTensor& one) { return one.name == "bytes"; });
  ASSERT_NE(bytes, tensors.end());
  const std::uint64_t across = (4 * kMiB - bytes->offset_bytes) / kMiB;
  ASSERT_NE((4 * kMiB - bytes->offset_bytes) % kMiB, 0u);
  way.hashes[bytes->first_chunk + across] ^= 1;
  PartialVersionOptions how = options(4);
  how.tell_failures_for = std::chrono::minutes(10);
  const auto filled = fill(std::move(way), std::move(how));
  const std::uint64_t bad = 8 * kMiB;  // two windows
  EXPECT_TRUE(eventually([&] {
    const PartialProgress progress = filled->progress();
    return progress.bytes_here == progress.bytes - bad;
  }));
  for (const std::uint64_t offset : {std::uint64_t{0}, 4 * kMiB - 1, 4 * kMiB, 7 * kMiB}) {
    EXPECT_EQ(error_of([&] { read(*filled, kLarge, offset, 1); }).code(), ErrorCode::io) << offset;
  }
  EXPECT_EQ(read(*filled, kLarge, 8 * kMiB, kMiB), expected(1, kLarge, 8 * kMiB, kMiB));
  EXPECT_FALSE(filled->is_complete());
}

TEST_F(PartialVersionTest, EachWindowIsMadeOnceAndEachPieceOfAPackFetchedOnce) {
  builder_.add({{"a.safetensors", test::make_safetensors({})}});
  add_versions(1, {.all_chunks = true});
  Plan way = plan(2);
  const std::size_t heads = watched_->gets("packs/").size();
  const auto coder = std::make_shared<test::MeddlingCoder>();
  PartialVersionOptions how = options(8);
  how.coder = coder;
  const auto filled = fill(std::move(way), std::move(how));
  read_at_random(*filled, 8, 20);
  filled->wait_complete({});
  expect_whole(*filled);
  std::map<std::pair<std::string, std::uint64_t>, int> pieces;
  const auto gets = watched_->gets("packs/");
  for (std::size_t i = heads; i < gets.size(); i++) {
    for (std::uint64_t at = 0; at < gets[i].size_bytes; at += kMiB) {
      pieces[{gets[i].key, gets[i].offset_bytes + at}]++;
    }
  }
  EXPECT_GE(pieces.size(), 13u);
  for (const auto& [piece, count] : pieces) EXPECT_EQ(count, 1) << piece.first << piece.second;
  // A chunk that straddles two windows is made twice.
  const std::uint64_t chunks = filled->plan().layout->chunk_count();
  EXPECT_LE(coder->decoded, chunks + 3);
}

// ---- waiting ----

TEST_F(PartialVersionTest, WakesOnceForEachAskThatHadToWait) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options(3));
  Waiting all, none, part;
  EXPECT_FALSE(filled->ask(kLarge, 0, 20 * kMiB, all.wake()));
  EXPECT_FALSE(filled->ask(kLarge, 5 * kMiB, 1, part.wake()));
  EXPECT_FALSE(filled->ask(kLarge, 5 * kMiB, 1, {}));
  EXPECT_EQ(all.wakes() + part.wakes(), 0);
  builder_.bucket()->heal();
  filled->wait_complete({});
  ASSERT_TRUE(all.wait(1));
  EXPECT_TRUE(filled->ask(kLarge, 0, 20 * kMiB, none.wake()));
  filled->stop();
  EXPECT_EQ(all.wakes(), 1);
  EXPECT_EQ(part.wakes(), 1);
  EXPECT_EQ(none.wakes(), 0);
}

TEST_F(PartialVersionTest, AWakeThatFailsCostsNobodyElseTheirs) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options(3));
  Waiting after;
  EXPECT_FALSE(filled->ask(kLarge, 5 * kMiB, 1, [] { throw std::bad_alloc(); }));
  EXPECT_FALSE(filled->ask(kLarge, 5 * kMiB, 1, after.wake()));
  builder_.bucket()->heal();
  filled->wait_complete({});
  EXPECT_TRUE(after.wait(1));
  filled->stop();
}

TEST_F(PartialVersionTest, TellsOfEachFileAndOfTheEnd) {
  add_versions(1);
  std::mutex mutex;
  std::set<std::size_t> counts;
  std::atomic<PartialVersion*> seen = nullptr;
  PartialVersionOptions how = options();
  how.changed = [&] {
    if (seen == nullptr) return;
    std::size_t here = 0;
    for (const auto& [path, bytes] : builder_.tree(1)) here += seen.load()->is_here(path) ? 1 : 0;
    const std::lock_guard lock(mutex);
    counts.insert(here + (seen.load()->is_complete() ? 100 : 0));
  };
  const auto filled = fill_from_hanging(plan(1), std::move(how));
  seen = filled.get();
  builder_.bucket()->heal();
  filled->wait_complete({});
  filled->stop();
  EXPECT_TRUE(counts.contains(3));
  EXPECT_TRUE(counts.contains(106)) << *counts.rbegin();
}

TEST_F(PartialVersionTest, KnowsWhetherSomebodyReadsAFileThatIsComplete) {
  add_versions(1);
  const auto filled = fill(plan(1), options());
  filled->wait_complete({});
  EXPECT_TRUE(eventually([&] { return filled->nobody_reads(); }));
  RefusedLeases refused;
  {
    const File reader = File::open(filled_in_ / kLarge, O_RDONLY);
    EXPECT_FALSE(filled->nobody_reads(&refused));
    EXPECT_EQ(refused.text(), "");
  }
  const test::NoLeases none(CAP_TO_MASK(CAP_SETUID));
  if (!none.works()) GTEST_SKIP() << "needs root";
  test::NoLeases::give_away(filled_in_ / kLarge);
  EXPECT_FALSE(filled->nobody_reads(&refused));
  EXPECT_NE(refused.text().find(kLarge), std::string::npos) << refused.text();
}

// ---- failures ----

// For want of memory, say.  What failed after a window was there had it counted twice, and a file
// with a hole was whole.
TEST_F(PartialVersionTest, WhoIsToldMayFailAndNothingIsCountedTwice) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", kLarge);
  constexpr std::uint64_t kMended = 5 * kMiB, kDamaged = 13 * kMiB;
  builder_.flip(key, kMended);
  builder_.flip(key, kDamaged);
  std::atomic<bool> fails = false;
  PartialVersionOptions how = options(2);
  how.tell_failures_for = std::chrono::milliseconds(20);
  how.changed = [&] {
    if (fails) throw std::bad_alloc();
  };
  const auto filled = fill(plan(1), std::move(how));
  const auto code_at = [&](std::uint64_t offset) {
    return error_of([&] { read(*filled, kLarge, offset, 100); }).code();
  };
  EXPECT_EQ(code_at(kMended), ErrorCode::corrupt);
  EXPECT_EQ(code_at(kDamaged), ErrorCode::corrupt);
  fails = true;
  builder_.flip(key, kMended);
  ASSERT_TRUE(eventually([&] {
    try {
      return read(*filled, kLarge, kMended, 100) == expected(1, kLarge, kMended, 100);
    } catch (const Error&) {
      return false;
    }
  }));
  const auto until = Clock::now() + std::chrono::milliseconds(200);  // ten times, if it is counted
  ASSERT_TRUE(
      eventually([&] { return code_at(kDamaged) == ErrorCode::corrupt && Clock::now() > until; }));
  EXPECT_FALSE(filled->is_here(kLarge));
  EXPECT_FALSE(filled->is_complete());
  filled->stop();
}

TEST_F(PartialVersionTest, ADamagedObjectIsToldAndOthersGoOnAndItComesOnceItIsMended) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", kLarge);
  const std::string whole = builder_.bucket()->find(key).value();
  builder_.flip(key, 5 * kMiB);
  PartialVersionOptions how = options(2);
  how.tell_failures_for = std::chrono::minutes(10);
  auto filled = fill(plan(1), std::move(how));
  const auto told = [&] { read(*filled, kLarge, 5 * kMiB, 100); };
  EXPECT_EQ(error_of(told).code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error_of(told).what()).find(key), std::string::npos);
  EXPECT_EQ(read(*filled, kLarge, 9 * kMiB, kMiB), expected(1, kLarge, 9 * kMiB, kMiB));
  EXPECT_EQ(read(*filled, "tokenizer.json", 0, kMiB), expected(1, "tokenizer.json", 0, kMiB));
  EXPECT_TRUE(eventually([&] { return filled->is_here("b.safetensors"); }));
  EXPECT_EQ(error_of([&] { filled->wait_complete({}); }).code(), ErrorCode::corrupt);
  const std::uint64_t damaged = 4 * kMiB;  // one window: its neighbours do not wait for it
  EXPECT_TRUE(eventually(
      [&] { return filled->progress().bytes_here == filled->progress().bytes - damaged; }));
  const PartialProgress progress = filled->progress();
  ASSERT_TRUE(progress.error);
  EXPECT_TRUE(progress.is_damaged);
  EXPECT_NE(std::string(progress.error->what()).find(key), std::string::npos);

  filled = fill(plan(1), options(2));  // retries that soon
  EXPECT_EQ(error_of(told).code(), ErrorCode::corrupt);
  builder_.bucket()->replace(key, whole);
  EXPECT_TRUE(eventually([&] { return filled->is_complete(); }));
  expect_whole(*filled);
}

TEST_F(PartialVersionTest, AMissingObjectIsTold) {
  add_versions(2, {.snapshot = true});
  const std::string blob = keys::blob(history_->get(2, {})->manifest.blobs.at(2).sha256);
  builder_.bucket()->erase(blob);
  const auto filled = fill(plan(2), options());
  const Error error = error_of([&] { read(*filled, "tokenizer.json", 0, 1); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_NE(std::string(error.what()).find(blob), std::string::npos) << error.what();
}

TEST_F(PartialVersionTest, ADamagedPackIsToldToAllThatNeedIt) {
  add_versions(2);
  const std::string key = builder_.key("packs/2/");
  const std::string whole = builder_.bucket()->find(key).value();
  const Base first = write(plan(1));
  Plan way = plan(2, {first});
  builder_.flip(key, -1);
  const auto filled = fill(std::move(way), options(3));
  const Error error = error_of([&] { read(*filled, kLarge, 0, 1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  builder_.bucket()->replace(key, whole);
  EXPECT_TRUE(eventually([&] { return filled->is_complete(); }));
  expect_whole(*filled);
}

TEST_F(PartialVersionTest, ABaseThatRotsIsToldLikeADamagedObject) {
  add_versions(2);
  const Base first = write(plan(1));
  const auto path = first.directory / kLarge;
  std::string rotten = test::read_text(path);
  rotten[6 * kMiB] ^= 1;
  std::filesystem::remove(path);
  test::write_text(path, rotten);
  const auto filled = fill(plan(2, {first}), options());
  const Error error = error_of([&] { read(*filled, kLarge, 6 * kMiB, 1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find("the images of version 1"), std::string::npos);
  EXPECT_EQ(read(*filled, kLarge, 0, 100), expected(2, kLarge, 0, 100));
}

TEST_F(PartialVersionTest, ABaseThatIsNotThereAnyMoreIsSaidAtOnce) {
  add_versions(2);
  const Base first = write(plan(1));
  Plan way = plan(2, {first});
  std::filesystem::remove(first.directory / "a.safetensors");
  EXPECT_NO_THROW(fill(plan(2, {first}), options())) << "a host need not have all files";
  std::filesystem::remove_all(first.directory);
  EXPECT_THROW(fill(std::move(way), options()), BaseDamaged);
}

TEST_F(PartialVersionTest, WhileTheBucketIsOutOfReachWhoAsksWaits) {
  add_versions(1);
  Plan way = plan(1);
  for (const auto* prefix : {"snapshots/", "blobs/"}) {
    builder_.bucket()->fail_key(prefix, ErrorCode::unavailable);
  }
  const auto filled = fill(std::move(way), options(2));
  Waiting waiting;
  EXPECT_FALSE(filled->ask(kLarge, 0, 100, waiting.wake()));
  const std::uint64_t failures = builder_.bucket()->failures();
  EXPECT_TRUE(eventually([&] { return builder_.bucket()->failures() > failures + 3; }));
  EXPECT_FALSE(filled->ask(kLarge, 0, 100, {}));
  EXPECT_EQ(waiting.wakes(), 0);
  const PartialProgress progress = filled->progress();
  ASSERT_TRUE(progress.error);
  EXPECT_EQ(progress.error->code(), ErrorCode::unavailable);
  EXPECT_FALSE(progress.is_damaged);
  builder_.bucket()->heal();
  EXPECT_TRUE(waiting.wait(1));
  EXPECT_TRUE(filled->ask(kLarge, 0, 100, {}));
  filled->wait_complete({});
  expect_whole(*filled);
  EXPECT_EQ(waiting.wakes(), 1);
}

TEST_F(PartialVersionTest, AFileThatCannotBeWrittenIsTold) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options());
  std::filesystem::remove(filled_in_ / "tokenizer.json");
  builder_.bucket()->heal();
  const Error error = error_of([&] { read(*filled, "tokenizer.json", 0, 1); });
  EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos) << error.what();
  EXPECT_EQ(read(*filled, kLarge, 0, 100), expected(1, kLarge, 0, 100));
}

/// The waiter of the last window is called before the file is sealed.
TEST_F(PartialVersionTest, AFileThatCannotBeSealedIsToldAndMadeAgain) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options());
  const auto path = filled_in_ / kLarge, away = directory_ / "away";
  Waiting waiting;
  EXPECT_FALSE(filled->ask(kLarge, 0, 20 * kMiB, [&, wake = waiting.wake()] {
    std::filesystem::rename(path, away);
    wake();
  }));
  builder_.bucket()->heal();
  ASSERT_TRUE(waiting.wait(1));
  EXPECT_TRUE(eventually([&] { return filled->progress().error.has_value(); }));
  EXPECT_NE(std::string(filled->progress().error->what()).find(kLarge), std::string::npos);
  EXPECT_FALSE(filled->is_here(kLarge));
  test::write_text(away, std::string(builder_.tree(1).at(kLarge).size(), 'x'));
  std::filesystem::rename(away, path);
  EXPECT_TRUE(eventually([&] { return filled->is_complete(); }));
  expect_whole(*filled);
}

// ---- the end ----

TEST_F(PartialVersionTest, StopsThoughTheBucketHangs) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options(3));
  Waiting waiting;
  EXPECT_FALSE(filled->ask(kLarge, 0, 6 * kMiB, waiting.wake()));
  EXPECT_TRUE(eventually([&] { return builder_.bucket()->waiting() > 0; }));
  std::jthread waiter([&] {
    EXPECT_EQ(error_of([&] { filled->wait_complete({}); }).code(), ErrorCode::cancelled);
  });
  filled->stop();
  EXPECT_EQ(builder_.bucket()->waiting(), 0);
  EXPECT_TRUE(waiting.wait(1));
  EXPECT_EQ(error_of([&] { filled->ask(kLarge, 0, 1, waiting.wake()); }).code(),
            ErrorCode::cancelled);
  filled->stop();
  EXPECT_EQ(waiting.wakes(), 1);
}

TEST_F(PartialVersionTest, WaitingForTheEndHasADeadline) {
  add_versions(1);
  const auto filled = fill_from_hanging(plan(1), options());
  const Context context = Context{}.within(std::chrono::milliseconds(1));
  EXPECT_EQ(error_of([&] { filled->wait_complete(context); }).code(), ErrorCode::timed_out);
}

TEST_F(PartialVersionTest, MakingTheFilesCanBeStopped) {
  add_versions(1);
  std::stop_source stop;
  stop.request_stop();
  const Context context{stop.get_token(), Clock::time_point::max()};
  EXPECT_EQ(error_of([&] { PartialVersion(plan(1), *repository_, options(), context); }).code(),
            ErrorCode::cancelled);
}

}  // namespace
}  // namespace weightfs
