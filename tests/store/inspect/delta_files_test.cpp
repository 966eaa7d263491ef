#include "store/inspect/delta_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <latch>
#include <thread>

#include "tests/support/eventually.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sparse_deltas.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::apply_sparse_delta;
using test::BuildOptions;
using test::error_of;
using test::Host;
using test::make_safetensors;
using test::nudge;
using test::random_tensor;
using test::read_text;
using test::RepositoryBuilder;
using test::TempDir;
using test::TestTensor;

/// A repository of three versions, and a host that follows it.
class DeltaFilesTest : public ::testing::Test {
 protected:
  DeltaFilesTest() {
    for (int i = 0; i < 3; i++) add();
  }

  void add(const BuildOptions& options = {}) {
    for (TestTensor& tensor : tensors_) nudge(tensor, 0.01, rng_);
    builder_.add({{"m.safetensors", make_safetensors(tensors_)}}, options);
  }

  Host& host(StoreLimits limits = test::kNoFloor) {
    if (!host_) host_.emplace(builder_.open(), path_, limits);
    return *host_;
  }
  void restart() { host_.reset(); }

  void materialize_all() {
    for (std::uint64_t version = 1; version <= builder_.newest(); version++) {
      host().read_version(version);
    }
  }

  DeltaFiles files(std::function<void(const DeltaId&)> building = {}) {
    return {*host().store, host().history, {.building = std::move(building)}};
  }

  void expect_right(const filesystem::path& file, std::uint64_t version) {
    EXPECT_TRUE(apply_sparse_delta(read_text(file), builder_.tree(version - 1)) ==
                builder_.tree(version));
  }

  test::Random rng_ = test::make_rng();
  std::vector<TestTensor> tensors_{random_tensor("x", Dtype::bf16, {1100, 1000}, rng_),
                                   random_tensor("wide", Dtype::f64, {5000}, rng_)};
  RepositoryBuilder builder_;
  TempDir directory_;
  filesystem::path path_ = directory_ / "store";
  std::optional<Host> host_;
};

TEST_F(DeltaFilesTest, TheFactsAreThoseOfTheFile) {
  for (const bool has_images : {false, true}) {
    if (has_images) materialize_all();
    for (const std::uint64_t version : {2u, 3u}) {
      DeltaFiles deltas = files();
      EXPECT_FALSE(deltas.find_facts(step_to(version)));
      const std::uint64_t kept = host().store->deltas().total_bytes();
      const DeltaFacts facts = deltas.facts(step_to(version), {});
      EXPECT_EQ(deltas.find_facts(step_to(version))->size_bytes, facts.size_bytes);
      EXPECT_EQ(host().store->deltas().total_bytes(), kept) << "facts made the file";
      const filesystem::path file = deltas.build(step_to(version), {});
      EXPECT_EQ(file, path_ / "deltas" / (std::to_string(version) + ".safetensors"));
      EXPECT_EQ(filesystem::file_size(file), facts.size_bytes);
      EXPECT_EQ(facts.time, host().history.get(version, {})->manifest.time);
      expect_right(file, version);
    }
  }
  EXPECT_TRUE(filesystem::is_empty(host().store->temporary_directory()));
}

TEST_F(DeltaFilesTest, WithOldValuesIsAFileOfItsOwn) {
  const DeltaId with_old{step_to(3), true};
  DeltaFiles deltas = files();
  const std::uint64_t size = deltas.facts(with_old, {}).size_bytes;
  EXPECT_FALSE(deltas.find_facts(step_to(3)));
  EXPECT_GT(size, deltas.facts(step_to(3), {}).size_bytes);
  const filesystem::path file = deltas.build(with_old, {});
  EXPECT_EQ(file, path_ / "deltas" / "2-3.with-old.safetensors");
  EXPECT_EQ(filesystem::file_size(file), size);
  expect_right(file, 3);
  EXPECT_TRUE(apply_sparse_delta(read_text(file), builder_.tree(3), ".old") == builder_.tree(2));
  EXPECT_FALSE(filesystem::exists(path_ / "deltas" / "3.safetensors"));
  EXPECT_EQ(host().store->deltas().total_bytes(), size);
  // An older release would not know it, so it has no record, and does not outlive the process.
  expect_right(deltas.build(step_to(3), {}), 3);
  restart();
  EXPECT_TRUE(host().store->deltas().find(step_to(3)));
  EXPECT_FALSE(host().store->deltas().find(with_old));
  EXPECT_FALSE(filesystem::exists(file));
}

TEST_F(DeltaFilesTest, ManyAskAndOneMakesIt) {
  std::atomic<int> made = 0;
  std::latch all(8);
  DeltaFiles deltas = files([&](const DeltaId&) {
    made++;
    all.wait();  // all readers have asked
  });
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 8; i++) {
      readers.emplace_back([&] {
        all.count_down();
        expect_right(deltas.build(step_to(2), {}), 2);
      });
    }
  }
  EXPECT_EQ(made, 1);
  deltas.build(step_to(2), {});
  EXPECT_EQ(made, 1);
}

TEST_F(DeltaFilesTest, WhoWaitedGoesOnWhenTheFirstGivesUp) {
  std::stop_source first_stops;
  std::atomic<int> begun = 0;
  DeltaFiles deltas = files([&](const DeltaId&) {
    if (begun++ > 0) return;
    test::eventually([&] { return first_stops.stop_requested(); });
  });
  Context first;
  first.stop = first_stops.get_token();
  std::jthread gives_up([&] {
    EXPECT_EQ(error_of([&] { deltas.build(step_to(2), first); }).code(), ErrorCode::cancelled);
  });
  ASSERT_TRUE(test::eventually([&] { return begun == 1; }));
  EXPECT_EQ(error_of([&] {
              deltas.build(step_to(2), Context{}.within(std::chrono::milliseconds(1)));
            }).code(),
            ErrorCode::timed_out);
  std::jthread waits([&] { expect_right(deltas.build(step_to(2), {}), 2); });
  first_stops.request_stop();
  waits.join();
  gives_up.join();
  EXPECT_EQ(begun, 2);
  EXPECT_TRUE(filesystem::is_empty(host().store->temporary_directory()));
}

TEST_F(DeltaFilesTest, ComparesImagesWhereThereIsNoDelta) {
  add({.snapshot = true, .delta = false});
  DeltaFiles without = files();
  const Error error = error_of([&] { without.facts(step_to(4), {}); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_NE(std::string(error.what()).find("export --from 3 --to 4"), std::string::npos)
      << error.what();
  materialize_all();
  DeltaFiles deltas = files();
  const DeltaFacts facts = deltas.facts(step_to(4), {});
  const filesystem::path file = deltas.build(step_to(4), {});
  EXPECT_EQ(filesystem::file_size(file), facts.size_bytes);
  expect_right(file, 4);
}

TEST_F(DeltaFilesTest, ComparesImagesWhereThePacksAreGone) {
  const std::uint64_t promised = files().facts(step_to(3), {}).size_bytes;
  materialize_all();
  builder_.bucket()->remove(builder_.key("packs/3/"), {});
  DeltaFiles deltas = files();
  EXPECT_EQ(deltas.facts(step_to(3), {}).size_bytes, promised);
  expect_right(deltas.build(step_to(3), {}), 3);
}

TEST_F(DeltaFilesTest, ARottenImageIsNotBelieved) {
  materialize_all();
  const filesystem::path image = host().store->images().image_directory(2) / "m.safetensors";
  const std::string bytes = read_text(image);
  const File file = File::open(image, O_WRONLY);  // in place, like disk damage
  for (std::size_t at = test::data_begin(bytes); at < bytes.size(); at += 1000) {
    const auto flipped = static_cast<std::byte>(~bytes[at]);
    write_at(file.fd(), at, {&flipped, 1}, image);
  }
  DeltaFiles deltas = files();
  expect_right(deltas.build(step_to(2), {}), 2);
  expect_right(deltas.build(step_to(3), {}), 3);
}

TEST_F(DeltaFilesTest, ADamagedPackMakesNoFile) {
  DeltaFiles deltas = files();
  deltas.facts(step_to(3), {});
  builder_.flip(builder_.key("packs/3/"), -1);
  EXPECT_EQ(error_of([&] { deltas.build(step_to(3), {}); }).code(), ErrorCode::corrupt);
  EXPECT_FALSE(host().store->deltas().find(step_to(3)));
  EXPECT_EQ(host().store->deltas().total_bytes(), 0U);
  EXPECT_TRUE(filesystem::is_empty(path_ / "deltas"));
  EXPECT_TRUE(filesystem::is_empty(host().store->temporary_directory()));
}

TEST_F(DeltaFilesTest, SaysWhyThereIsNone) {
  tensors_.push_back(random_tensor("new", Dtype::bf16, {10}, rng_));
  add();
  DeltaFiles deltas = files();
  for (int i = 0; i < 2; i++) {
    const Error error = error_of([&] { deltas.facts(step_to(4), {}); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("'new'"), std::string::npos) << error.what();
  }
  EXPECT_EQ(error_of([&] { deltas.build(step_to(4), {}); }).code(), ErrorCode::unsupported);
  EXPECT_EQ(error_of([&] { deltas.facts(step_to(9), {}); }).code(), ErrorCode::not_found);
}

/// Regression: a version that this host cannot read was remembered as one without a file.
TEST_F(DeltaFilesTest, AVersionThatCannotBeReadHereIsNoneWithoutADelta) {
  const std::string key = keys::manifest(3), good = builder_.bucket()->find(key).value();
  std::string newer = good;
  newer.replace(newer.find("\"format\":1"), 10, "\"format\":9");
  builder_.bucket()->replace(key, newer);
  DeltaFiles deltas = files();
  const Error error = error_of([&] { deltas.facts(step_to(3), {}); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_NE(std::string(error.what()).find("update it"), std::string::npos) << error.what();
  builder_.bucket()->replace(key, good);
  EXPECT_GT(deltas.facts(step_to(3), {}).size_bytes, 0U);
}

// ---- the store ----

TEST_F(DeltaFilesTest, AreKeptByTheStore) {
  files().build(step_to(2), {});
  const std::uint64_t bytes = host().store->deltas().total_bytes();
  restart();
  EXPECT_EQ(host().store->deltas().total_bytes(), bytes);
  DeltaFiles deltas = files([](const DeltaId&) { ADD_FAILURE() << "made again"; });
  expect_right(deltas.build(step_to(2), {}), 2);
}

TEST_F(DeltaFilesTest, WithoutARecordOrOfAnotherSizeAreRemoved) {
  files().build(step_to(2), {});
  files().build(step_to(3), {});
  restart();
  filesystem::copy_file(path_ / "deltas/2.safetensors", path_ / "deltas/7.safetensors");
  filesystem::permissions(path_ / "deltas/3.safetensors", filesystem::perms::owner_all);
  filesystem::resize_file(path_ / "deltas/3.safetensors", 100);
  EXPECT_TRUE(host().store->deltas().find(step_to(2)));
  EXPECT_FALSE(host().store->deltas().find(step_to(3)));
  EXPECT_FALSE(filesystem::exists(path_ / "deltas/7.safetensors"));
  EXPECT_FALSE(filesystem::exists(path_ / "deltas/3.safetensors"));
  expect_right(files().build(step_to(3), {}), 3);
}

TEST_F(DeltaFilesTest, NothingIsLeftOfOneThatWasKilledWhileItWasMade) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DeltaFiles deltas = files([&](const DeltaId&) {
      test::write_text(host().store->temporary_directory() / "delta-half", "half");
      ::raise(SIGKILL);
    });
    deltas.build(step_to(2), {});
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(filesystem::exists(path_ / "tmp/delta-half"));
  EXPECT_FALSE(host().store->deltas().find(step_to(2)));
  EXPECT_TRUE(filesystem::is_empty(host().store->temporary_directory()));
  EXPECT_TRUE(filesystem::is_empty(path_ / "deltas"));
  expect_right(files().build(step_to(2), {}), 2);
}

TEST_F(DeltaFilesTest, GoBeforeImagesWhenRoomIsNeeded) {
  constexpr std::uint64_t kImages = 16 << 20;  // more than three of 2.2 MB with everything else
  host({kImages, 0});
  materialize_all();
  DeltaFiles deltas = files();
  deltas.build(step_to(2), {});
  deltas.build(step_to(3), {});
  Store& store = *host().store;
  const std::uint64_t used = store.images().image_bytes() + store.deltas().total_bytes();
  store.evictor().evict_for_images(kImages - used);
  EXPECT_TRUE(store.deltas().find(step_to(2)) && store.deltas().find(step_to(3)))
      << "there was room";

  store.evictor().evict_for_images(kImages - used + 1);
  EXPECT_FALSE(store.deltas().find(step_to(2)));
  EXPECT_TRUE(store.deltas().find(step_to(3))) << "one was enough";
  EXPECT_FALSE(filesystem::exists(path_ / "deltas/2.safetensors"));
  EXPECT_EQ(store.images().complete_versions().size(), 3U);
  expect_right(deltas.build(step_to(2), {}), 2);
}

TEST_F(DeltaFilesTest, StayWhileTheyAreRead) {
  constexpr std::uint64_t kImages = 16 << 20;
  host({kImages, 0});
  materialize_all();
  DeltaFiles deltas = files();
  const filesystem::path path = deltas.build(step_to(2), {});
  Store& store = *host().store;
  {
    const File reader = File::open(path, O_RDONLY);
    store.evictor().evict_for_images(kImages - store.images().image_bytes());
    EXPECT_TRUE(filesystem::exists(path));
    EXPECT_EQ(store.images().complete_versions().size(), 3U) << "one that is read does not count";
  }
  store.evictor().evict_for_images(kImages - store.images().image_bytes());
  EXPECT_FALSE(filesystem::exists(path));
  EXPECT_EQ(store.images().complete_versions().size(), 3U);
}

TEST_F(DeltaFilesTest, AreNotMadeWhereThereIsNoRoom) {
  host({std::uint64_t{1000}, 0});
  const Error error = error_of([&] { files().build(step_to(2), {}); });
  EXPECT_EQ(error.code(), ErrorCode::no_space);
  EXPECT_EQ(host().store->deltas().total_bytes(), 0U);
}

}  // namespace
}  // namespace weightfs
