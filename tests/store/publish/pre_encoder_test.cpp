#include "store/publish/pre_encoder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "store/base/error.hpp"
#include "store/publish/pre_encoded.hpp"
#include "tests/store/publish/pre_encoder_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

// ---- what is published ----

/// The file that is coded by the publish, those coded early, and one of these that did not change.
TEST_F(PreEncoderTest, NotesWhatChangesInFilesCodedEarly) {
  publish_first();
  files_.at("sub/m.safetensors") = {make_weights("d", rng_)};
  for (int version = 2; version <= 4; version++) {
    const auto directory = save();
    std::set<std::string> early = paths();
    if (version == 3) early.erase("m-2.safetensors");
    if (version == 4) early.clear();
    code(directory, early);
    const PublishResult result = publish(directory, take());
    EXPECT_EQ(result.early_bytes > 0, !early.empty());
    files_.at("m-1.safetensors")[1] = make_weights("b", rng_);
    if (version == 2) nudge_all(files_, rng_);
  }
  EXPECT_EQ(noted_, 3);
}

/// A version is noted whole or not at all.
TEST_F(PreEncoderTest, NotesNothingWhereNobodyAskedYetWhenAFileWasCoded) {
  start();
  publish(save(), nullptr);
  nudge_all(files_, rng_);
  const auto directory = save();
  code(directory, {"m-1.safetensors"});
  host_.store->fresh_patches().add_taker();
  const PublishResult result = publish(directory, take());
  EXPECT_GT(result.early_bytes, 0u);
  EXPECT_FALSE(result.fresh);
}

/// Results are held until they are taken, which may be never: what they have noted has a bound.
TEST_F(PreEncoderTest, NotesOnlyWhatHasRoomInMemory) {
  constexpr std::size_t kElements = 17'000'000;  // two of them are more than 64 MiB
  const auto make_all = [&] {
    files_ = {{"a.safetensors", {make_weights("a", rng_, kElements)}},
              {"b.safetensors", {make_weights("b", rng_, kElements)}}};
  };
  make_all();
  start();
  note();
  publish(save(), nullptr);
  make_all();
  const auto directory = save();
  code(directory, {"a.safetensors"});
  code(directory, {"b.safetensors"});
  const auto early = take();
  PublishOptions options;
  options.directory = directory;
  options.early = [early](const Context&) { return early; };
  const PublishResult result = host_.publish(options);
  EXPECT_EQ(result.early_bytes, early->bytes());
  ASSERT_TRUE(result.fresh);
  EXPECT_FALSE(result.fresh->is_wanted()) << "it counts as given up";
}

TEST_F(PreEncoderTest, GivesTheSameVersionsWhicheverFilesWereCodedEarly) {
  start();
  const std::vector<std::set<std::string>> choices{
      {"m-1.safetensors", "sub/m.safetensors"}, paths(), {}, {"m-2.safetensors"}, paths()};
  std::uint64_t version = 0;
  for (const auto& chosen : choices) {
    const auto directory = save();
    code(directory, chosen);
    const PublishResult result = publish(directory, take());
    const PublishResult plain = publish_plainly(directory);
    EXPECT_EQ(result.version, ++version);
    EXPECT_EQ(result.changed_elements, plain.changed_elements);
    EXPECT_EQ(result.images.chunk_hashes, plain.images.chunk_hashes);
    std::uint64_t early_bytes = 0;
    for (const std::string& path : chosen) early_bytes += stdfs::file_size(directory / path);
    EXPECT_EQ(result.early_bytes, early_bytes);
    expect_same(version, directory);
    nudge_all(files_, rng_);
  }
  expect_sound();
}

TEST_F(PreEncoderTest, LeavesNothingToUploadButTheManifestAndWhatIsNoTensor) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  const auto packs = keys_below("packs/2/");
  EXPECT_EQ(packs.size(), 3u);
  const std::uint64_t puts = bucket_->calls("put");
  bool codes = false;
  publish(directory, take(), [&](PublishOptions& options) {
    options.at = [&](std::string_view point) { codes = codes || point == "parent"; };
  });
  EXPECT_FALSE(codes);
  EXPECT_EQ(keys_below("packs/2/"), packs);
  EXPECT_EQ(bucket_->calls("put"), puts);
  EXPECT_EQ(manifest_of(*bucket_, 2).delta->packs.size(), 3u);
  publish_plainly(directory);
  expect_same(2, directory);
  expect_sound();
}

TEST_F(PreEncoderTest, APublishAsksTheBucketWhileItWaitsForThem) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  const auto early = take();
  bucket_->hang_key("versions/");
  PublishOptions options;
  options.directory = directory;
  options.fence_parent = 1;
  options.early = [&](const Context&) {
    EXPECT_TRUE(eventually([&] { return bucket_->waiting() > 0; }));
    bucket_->heal();
    return early;
  };
  EXPECT_EQ(host_.publish(options).early_bytes, early->bytes());
  publish_plainly(directory);
  expect_same(2, directory);
}

TEST_F(PreEncoderTest, UploadsTheFilesOfAFirstVersionBelowOneNonce) {
  start();
  const auto directory = save();
  code(directory, {"m-1.safetensors", "m-2.safetensors"});
  EXPECT_EQ(keys_below("snapshots/1/").size(), 2u);
  publish(directory, take());
  publish_plainly(directory);
  EXPECT_EQ(keys_below("snapshots/1/").size(), 4u);  // the third file, and the hashes
  const std::string nonce = manifest_of(*bucket_, 1).snapshot->nonce;
  EXPECT_EQ(keys_below("snapshots/1/" + nonce).size(), 4u);
  expect_same(1, directory);
  expect_sound();
}

// Until the hand-over nothing names it: it passes for garbage, which people remove.
TEST_F(PreEncoderTest, UploadsAgainWhatSomebodyHasRemoved) {
  start();
  for (const std::uint64_t version : {1u, 2u}) {
    const auto directory = save();
    code(directory, paths());
    const std::string prefix = (version == 1 ? "snapshots/" : "packs/") + std::to_string(version);
    bucket_->remove(keys_below(prefix + "/").at(1), {});
    publish(directory, take(), [](PublishOptions& options) { options.early_trust = {}; });
    publish_plainly(directory);
    expect_same(version, directory);
    nudge_all(files_, rng_);
  }
  expect_sound();
}

TEST_F(PreEncoderTest, UploadsAFirstVersionUnderAnotherNonceIfSomethingElseLiesBelowTheFirst) {
  start();
  const auto directory = save();
  code(directory, paths());
  // Two files are rewritten. For one the encoder is told; the other is noticed when the directory
  // is taken.
  nudge_all(files_, rng_);
  const auto again = save();
  stdfs::rename(again / "m-1.safetensors", directory / "m-1.safetensors");
  stdfs::rename(again / "m-2.safetensors", directory / "m-2.safetensors");
  code(directory, {"m-1.safetensors"});
  const auto results = early_->take(
      kDirectory, [](const EarlyFile& file) { return file.path != "m-2.safetensors"; }, {});
  publish(directory, results);
  publish_plainly(directory);
  expect_same(1, directory);
  const std::string nonce = manifest_of(*bucket_, 1).snapshot->nonce;
  for (const std::string& path : paths()) {
    EXPECT_EQ(bucket_->find(keys::snapshot_file(1, nonce, path)), read_text(directory / path));
  }
  expect_sound();
}

TEST_F(PreEncoderTest, FindsNothingToUploadInAFileThatDidNotChange) {
  start();
  const auto directory = save();
  publish(directory, nullptr);
  publish_plainly(directory);
  const auto same = save();
  code(same, paths());
  EXPECT_TRUE(keys_below("packs/2/").empty());
  EXPECT_EQ(publish(same, take()).changed_elements, 0u);
  publish_plainly(same);
  expect_same(2, same);
  expect_sound();
}

TEST_F(PreEncoderTest, MakesAnotherHeadWhereTheTensorsAreNumberedOtherwise) {
  publish_first();
  files_["a-new-one.safetensors"] = {make_weights("first", rng_), make_weights("second", rng_)};
  const auto directory = save();
  code(directory, {"m-1.safetensors", "m-2.safetensors", "sub/m.safetensors"});
  code(directory, {"a-new-one.safetensors"}, "coded");
  const auto before = keys_below("packs/2/");
  EXPECT_EQ(before.size(), 3u);  // the numbers of the new file's tensors are unknown
  const PublishResult result = publish(directory, take());
  EXPECT_EQ(result.early_bytes, result.version_bytes - 2);  // except for the blob
  publish_plainly(directory);
  expect_same(2, directory);
  EXPECT_EQ(keys_below("packs/2/").size(), 3u + 4u);
  const Manifest manifest = manifest_of(*bucket_, 2);
  for (const PackRef& pack : manifest.delta->packs) {
    EXPECT_EQ(std::count(before.begin(), before.end(), keys::pack(2, pack.name)), 0) << pack.name;
  }
  expect_sound();
}

TEST_F(PreEncoderTest, CodesLargeFilesIntoTheSamePacksAsOthers) {
  files_.clear();
  std::vector<TestTensor>& tensors = files_["m.safetensors"];
  for (int i = 0; i < 40; i++)
    tensors.push_back(make_weights("t" + std::to_string(i), rng_, 50'000));
  publish_first();
  const auto directory = save();
  code(directory, paths());
  publish(directory, take());
  publish_plainly(directory);
  expect_same(2, directory);
  const auto mine = manifest_of(*bucket_, 2).delta->packs;
  const auto plain = manifest_of(*plain_, 2).delta->packs;
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(bucket_->find(keys::pack(2, mine[0].name)), plain_->find(keys::pack(2, plain[0].name)));
}

// ---- stale results ----

TEST_F(PreEncoderTest, LeavesOutAFileThatHadAnotherWriterSince) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  // Written without a change of size or times.
  const auto path = directory / "m-1.safetensors";
  const auto time = stdfs::last_write_time(path);
  std::string bytes = read_text(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(path, bytes);
  stdfs::last_write_time(path, time);
  const auto results = early_->take(
      kDirectory, [](const EarlyFile& file) { return file.path != "m-1.safetensors"; }, {});
  EXPECT_GT(publish(directory, results).early_bytes, 0u);
  publish_plainly(directory);
  expect_same(2, directory);
  expect_sound();
}

TEST_F(PreEncoderTest, LeavesOutAFileThatIsNotTheOneThatWasCoded) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  nudge_all(files_, rng_);
  const auto other = save();
  for (const std::string& path : paths()) stdfs::rename(other / path, directory / path);
  EXPECT_EQ(publish(directory, take()).early_bytes, 0u);
  publish_plainly(directory);
  expect_same(2, directory);
}

TEST_F(PreEncoderTest, UsesAFileThatGetsAHardLinkMeanwhile) {
  publish_first();
  const auto directory = save();
  const stdfs::path linked = dir_ / "linked";
  stdfs::create_directories(linked / "sub");
  start([&](EarlyOptions& options) {
    options.at = [&, plain = options.at](std::string_view point, const std::string& path) {
      // The change is after coding and before the upload.
      if (point == "coded") stdfs::create_hard_link(directory / path, linked / path);
      plain(point, path);
    };
  });
  code(directory, paths());
  stdfs::copy(directory / "config.json", linked / "config.json");
  EXPECT_EQ(publish(linked, take()).early_bytes, publish_plainly(directory).version_bytes - 2);
  expect_same(2, directory);
}

TEST_F(PreEncoderTest, CodesAgainWhenTheParentIsAnotherOne) {
  publish_first();
  const auto next = save();
  nudge_all(files_, rng_);
  const auto after = save();
  code(after, paths());  // against version 1
  {
    const std::lock_guard lock(mutex_);
    reached_.clear();
  }
  publish(next, nullptr);  // makes version 2 the parent
  publish_plainly(next);
  ASSERT_TRUE(eventually([&] { return count_of("uploaded") == 3; }));
  const PublishResult result = publish(after, take());
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(result.early_bytes, result.version_bytes - 2);
  publish_plainly(after);
  expect_same(3, after);
  expect_sound();
}

// Whoever left it there would cost its size with each version.
TEST_F(PreEncoderTest, LeavesACheckpointThatLiesThereThroughManyVersionsToThePublish) {
  publish_first();
  const auto left = save();
  code(left, paths());
  const auto publish_another = [&] {
    {
      const std::lock_guard lock(mutex_);
      reached_.clear();
    }
    nudge_all(files_, rng_);
    publish(save(), nullptr);
  };
  for (unsigned parents = 2; parents <= kEarlyParentsMax; parents++) {
    publish_another();
    ASSERT_TRUE(eventually([&] { return count_of("uploaded") == 3; })) << parents;
  }
  publish_another();
  nudge_all(files_, rng_);
  const auto next = save();
  early_->add({kDirectory + 1, "m-1.safetensors", next / "m-1.safetensors", 1});
  ASSERT_TRUE(eventually([&] { return has_reached("uploaded", "m-1.safetensors"); }));
  EXPECT_EQ(count_of("begin"), 1u) << "which would have come after what was there before";
  EXPECT_EQ(early_->status().coded_files, 1u) << "and nothing is held of the others";
  EXPECT_EQ(publish(left, take()).early_bytes, 0u);
}

TEST_F(PreEncoderTest, IsOfNoUseAgainstAnotherParentThanItWasCodedAgainst) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  const auto results = take();
  nudge_all(files_, rng_);
  const auto rival = save();
  Host other(bucket_, dir_ / "other-store");
  const PublishResult result = publish(directory, results, [&](PublishOptions& options) {
    options.wishes.rebase = true;
    options.at = [&, is_first = true](std::string_view point) mutable {
      if (point == "before-commit" && std::exchange(is_first, false)) other.publish(rival);
    };
  });
  publish_plainly(rival);
  publish_plainly(directory);
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(result.early_bytes, 0u);
  expect_same(2, rival);
  expect_same(3, directory);
  expect_sound();
}

TEST_F(PreEncoderTest, WaitsUntilTheParentIsKnown) {
  publish_first();
  parent_ = -1;
  const auto directory = save();
  for (const std::string& path : paths()) add(directory, path);
  EXPECT_EQ(early_->status().waiting_files, 3u);
  parent_ = 1;
  early_->parent_changed();
  ASSERT_TRUE(eventually([&] { return count_of("uploaded") == 3; }));
  EXPECT_EQ(early_->status().waiting_files, 0u);
  EXPECT_EQ(early_->status().coded_files, 3u);
  EXPECT_GT(publish(directory, take()).early_bytes, 0u);
}

TEST_F(PreEncoderTest, LeavesOutWhatHasNotBegun) {
  publish_first();
  parent_ = -1;
  const auto directory = save();
  for (const std::string& path : paths()) add(directory, path);
  EXPECT_TRUE(take()->empty());
  parent_ = 1;
  early_->parent_changed();
  EXPECT_EQ(publish(directory, nullptr).version, 2u);
  EXPECT_EQ(count_of("begin"), 0u);
}

TEST_F(PreEncoderTest, TakesOnlySafetensorsThatAreLargeEnough) {
  start();
  const auto directory = dir_ / "checkpoint";
  write_text(directory / "small.safetensors", make_safetensors({make_weights("a", rng_, 1'000)}));
  write_text(directory / "large.json", std::string(2 * kEarlyBytesMin, ' '));
  add(directory, "small.safetensors");
  add(directory, "large.json");
  add(directory, "absent.safetensors");
  EXPECT_EQ(early_->status().waiting_files, 0u);
  EXPECT_TRUE(take()->empty());
}

TEST_F(PreEncoderTest, ForgetsWhatIsDropped) {
  publish_first();
  const auto directory = save();
  code(directory, paths());
  early_->drop(kDirectory, "m-1.safetensors");
  EXPECT_EQ(early_->status().coded_files, 2u);
  early_->drop(kDirectory + 1);
  EXPECT_EQ(early_->status().coded_files, 2u);
  early_->drop(kDirectory);
  EXPECT_EQ(early_->status().coded_files, 0u);
  EXPECT_TRUE(take()->empty());
}

TEST_F(PreEncoderTest, KeepsTheFilesOfSeveralCheckpointsApart) {
  publish_first();
  const auto directory = save();
  nudge_all(files_, rng_);
  const auto other = save();
  code(directory, paths());
  early_->add({kDirectory + 1, "m-1.safetensors", other / "m-1.safetensors", 1});
  EXPECT_EQ(publish(directory, take()).early_bytes,
            stdfs::file_size(directory / "m-1.safetensors") +
                stdfs::file_size(directory / "m-2.safetensors") +
                stdfs::file_size(directory / "sub/m.safetensors"));
  publish_plainly(directory);
  expect_same(2, directory);
}

// ---- failures ----

TEST_F(PreEncoderTest, IsForgottenWhereAFileIsDamagedAndThePublishSaysWhatIsWrong) {
  publish_first();
  const auto directory = save();
  std::string bytes = read_text(directory / "m-1.safetensors");
  bytes.replace(0, 8, 8, '\xff');
  write_text(directory / "m-1.safetensors", bytes);
  add(directory, "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return has_reached("begin", "m-1.safetensors"); }));
  const auto results = take();
  EXPECT_TRUE(results->empty());
  EXPECT_EQ(error_of([&] { publish(directory, results); }).code(), ErrorCode::corrupt);
}

TEST_F(PreEncoderTest, LeavesARottenImageOfTheParentToThePublish) {
  publish_first();
  const auto image = host_.store->images().image_directory(1) / "m-1.safetensors";
  stdfs::remove(image);
  const auto directory = save();
  add(directory, "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return has_reached("begin", "m-1.safetensors"); }));
  const auto results = take();
  EXPECT_TRUE(results->empty());
  EXPECT_EQ(publish(directory, results).version, 2u);
  publish_plainly(directory);
  expect_same(2, directory);
}

TEST_F(PreEncoderTest, HandsOutWhatIsCodedThoughTheBucketHangs) {
  publish_first();
  start([](EarlyOptions& options) { options.upload_grace = std::chrono::milliseconds(1); });
  bucket_->hang_key("packs/");
  const auto directory = save();
  add(directory, "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  const auto results = take();
  EXPECT_FALSE(results->empty());
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 0; }));  // nobody waits for it now
  bucket_->heal();
  const PublishResult result = publish(directory, results);
  EXPECT_EQ(result.early_bytes, stdfs::file_size(directory / "m-1.safetensors"));
  publish_plainly(directory);
  expect_same(2, directory);
  expect_sound();
}

TEST_F(PreEncoderTest, UploadsAgainWhatTheBucketRefused) {
  publish_first();
  bucket_->fail_key("packs/", ErrorCode::unavailable);
  const auto directory = save();
  code(directory, paths(), "coded");
  const auto results = take();
  EXPECT_GT(bucket_->failures(), 0u);
  bucket_->heal();
  publish(directory, results);
  publish_plainly(directory);
  expect_same(2, directory);
  expect_sound();
}

TEST_F(PreEncoderTest, StopsAtOnceWhileTheBucketHangs) {
  publish_first();
  bucket_->hang_key("packs/");
  const auto directory = save();
  add(directory, "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  early_.reset();
  EXPECT_EQ(bucket_->waiting(), 0);
}

TEST_F(PreEncoderTest, LetsAHandOverBeTakenBackWhileItWaits) {
  publish_first();
  std::atomic<bool> has_begun{false}, may_go_on{false};
  start([&](EarlyOptions& options) {
    options.at = [&](std::string_view point, const std::string&) {
      if (point != "begin") return;
      has_begun = true;
      EXPECT_TRUE(eventually([&] { return may_go_on.load(); }));
    };
  });
  add(save(), "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return has_begun.load(); }));
  std::stop_source stop;
  stop.request_stop();
  const auto take_until = [&](const Context& context) {
    return early_->take(
        kDirectory, [](const EarlyFile&) { return true; }, context);
  };
  const Context stopped{stop.get_token(), Clock::time_point::max()};
  EXPECT_EQ(error_of([&] { take_until(stopped); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(error_of([&] { take_until(Context{}.within({})); }).code(), ErrorCode::timed_out);
  may_go_on = true;
  EXPECT_FALSE(take_until({})->empty());
}

TEST_F(PreEncoderTest, WorksAtLowPriority) {
  publish_first();
  std::atomic<int> nice{0};
  start([&](EarlyOptions& options) {
    options.at = [&](std::string_view point, const std::string&) {
      if (point == "begin") nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
    };
  });
  const int mine = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
  add(save(), "m-1.safetensors");
  ASSERT_TRUE(eventually([&] { return early_->status().coded_files == 1; }));
  EXPECT_GE(nice, 10);
  EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())), mine);
}

/// Files that are added, changed, moved and removed; some coded early, some of these stale.
TEST_F(PreEncoderTest, GivesTheSameVersionsForRandomHistories) {
  start();
  note();
  const auto chance = [&](unsigned percent) { return rng_() % 100 < percent; };
  for (std::uint64_t version = 1; version <= (kSanitized ? 5 : 12); version++) {
    const auto directory = save();
    std::set<std::string> stale;
    for (const std::string& path : paths()) {
      if (chance(25)) continue;
      add(directory, path);
      if (chance(20)) stale.insert(path);
    }
    if (chance(70)) {
      ASSERT_TRUE(eventually([&] { return early_->status().waiting_files == 0; }));
    }
    for (const std::string& path : stale) {
      std::string bytes = read_text(directory / path);
      bytes.back() = static_cast<char>(bytes.back() ^ 2);
      write_text(directory / path, bytes);
    }
    const auto results = early_->take(
        kDirectory, [&](const EarlyFile& file) { return !stale.contains(file.path); }, {});
    publish(directory, results,
            [&](PublishOptions& options) { options.wishes.snapshot = chance(10); });
    publish_plainly(directory);
    const Manifest mine = manifest_of(*bucket_, version), plain = manifest_of(*plain_, version);
    ASSERT_EQ(to_hex(mine.root), to_hex(plain.root)) << version;
    ASSERT_EQ(mine.features, plain.features) << version;
    if (mine.delta) {
      ASSERT_EQ(mine.delta->changed_elements, plain.delta->changed_elements);
    }
    Host reader(bucket_, dir_ / ("random-reader-" + std::to_string(version)));
    ASSERT_EQ(reader.read_version(version), read_tree(directory)) << version;

    if (chance(60)) nudge_all(files_, rng_);
    if (chance(30)) {
      files_["f-" + std::to_string(rng_() % 1000) + ".safetensors"] = {
          make_weights("n" + std::to_string(version), rng_)};
    }
    if (chance(20) && files_.size() > 2) files_.erase(files_.begin());
    if (chance(20))
      files_.begin()->second.push_back(make_weights("x" + std::to_string(version), rng_));
    if (chance(20)) {
      auto moved = files_.extract(files_.begin());
      moved.key() = "z-" + moved.key();
      files_.insert(std::move(moved));
    }
  }
  expect_sound();
}

}  // namespace
}  // namespace weightfs::test
