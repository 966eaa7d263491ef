// Parts of one version, published by several hosts: what becomes of them, and what is refused.
#include "store/publish/publish_part.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "store/base/error.hpp"
#include "store/parts/part_objects.hpp"
#include "store/parts/wait_rhythm.hpp"
#include "store/retention/collect.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

constexpr unsigned kParts = 3;
constexpr unsigned kMany = 64;

using Files = std::map<std::string, std::string>;

std::string shard_name(unsigned part) { return "rank" + std::to_string(part) + ".safetensors"; }

class PublishPartTest : public PublishTest {
 protected:
  Host& host(unsigned part) {
    auto& host = hosts_[part];
    if (!host) host = std::make_unique<Host>(bucket_, dir_ / ("part-" + std::to_string(part)));
    return *host;
  }

  /// The files of a part at a step: two tensors, of which one has several blocks.
  static Files files_of(unsigned part, unsigned step) {
    const std::string name = "layer" + std::to_string(part);
    Files files{{shard_name(part),
                 make_safetensors({tensor_of(name + ".w", Dtype::bf16, 70'000, part),
                                   tensor_of(name + ".b", Dtype::f32, 16, 100 * step + part)})}};
    if (part == 1) files["config.json"] = "{\"step\": " + std::to_string(step) + "}";
    return files;
  }

  PublishOptions part_options(unsigned part, unsigned step, const Files& files) {
    PublishOptions options = options_of(directory_of(files));
    options.wishes.tag = "step-" + std::to_string(step);
    options.part = {part, kParts, "run-1"};
    options.part_wait = std::chrono::milliseconds(0);
    return options;
  }

  PartResult publish(unsigned part, const PublishOptions& options) {
    Host& own = host(part);
    return publish_part(own.history, *own.store, options, {}, {});
  }
  PartResult publish(unsigned part, unsigned step) {
    return publish(part, part_options(part, step, files_of(part, step)));
  }
  PartResult publish_all(unsigned step) {
    for (unsigned part = 1; part < kParts; part++) publish(part, step);
    return publish(kParts, step);
  }

  /// What a version of these parts holds; the index is that of the version.
  Files whole(std::uint64_t version, unsigned step) {
    Files all;
    for (unsigned part = 1; part <= kParts; part++) all.merge(files_of(part, step));
    all["model.safetensors.index.json"] =
        read_on_a_fresh_host(version)["model.safetensors.index.json"];
    return all;
  }

  PartSet set_of(std::uint64_t version, unsigned step) {
    return part_set(host(1).repository->id(), {1, kParts, "run-1"}, "step-" + std::to_string(step),
                    version);
  }

  /// As kMany parts: one host can be several.
  PublishOptions one_of_many(unsigned part) {
    const std::string name = shard_name(part);
    PublishOptions options = part_options(part, 1, {{name, files_of(part, 1).at(name)}});
    options.part.parts = kMany;
    return options;
  }
  void publish_parts_from_to(unsigned from, unsigned to) {
    for (unsigned part = from; part <= to; part++) publish(2, one_of_many(part));
  }

  std::map<unsigned, std::unique_ptr<Host>> hosts_;
};

TEST_F(PublishPartTest, TheLastPartMakesTheVersion) {
  const PartResult first = publish(1, 1);
  EXPECT_EQ(first.version, 1u);
  EXPECT_EQ(first.missing, (std::vector<unsigned>{2, 3}));
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
  EXPECT_EQ(publish(3, 1).missing, (std::vector<unsigned>{2}));
  const PartResult last = publish(2, 1);
  EXPECT_TRUE(last.missing.empty() && last.is_committed_here);
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
  EXPECT_TRUE(keys_below(*bucket_, "parts/").empty());
  expect_sound();
}

TEST_F(PublishPartTest, LaterVersionsAreDeltasWithTheNumbersOfTheWholeVersion) {
  publish_all(1);
  for (unsigned step = 2; step <= 4; step++) {
    const PartResult last = publish_all(step);
    EXPECT_EQ(last.version, step);
    EXPECT_TRUE(last.delta && !last.snapshot);
    const Manifest manifest = manifest_of(step);
    ASSERT_TRUE(manifest.delta && !manifest.snapshot);
    EXPECT_EQ(manifest.delta->packs.size(), kParts);
    EXPECT_EQ(manifest.delta->changed_elements, kParts * 16);
    EXPECT_EQ(manifest.tag, "step-" + std::to_string(step));
    EXPECT_EQ(manifest.snapshot_before, 1u);
    EXPECT_EQ(read_on_a_fresh_host(step), whole(step, step));
  }
  expect_sound();
}

// A host has no room for the files of all others.
TEST_F(PublishPartTest, AHostHoldsOnlyItsOwnFilesOfTheParent) {
  publish_all(1);
  publish_all(2);
  for (unsigned part = 1; part <= kParts; part++) {
    const stdfs::path images = host(part).store->images().image_directory(1);
    for (unsigned other = 1; other <= kParts; other++) {
      EXPECT_EQ(stdfs::exists(images / shard_name(other)), other == part) << part << " " << other;
    }
  }
}

TEST_F(PublishPartTest, AnotherPublisherGoesOnFromAVersionOfParts) {
  publish_all(1);
  Files files = whole(1, 1);
  files["config.json"] = "{}";
  EXPECT_EQ(publisher().publish(directory_of(files)).version, 2u);
  EXPECT_EQ(read_on_a_fresh_host(2), files);
  publish_all(3);
  Files next = whole(3, 3);
  EXPECT_EQ(read_on_a_fresh_host(3), next);
}

TEST_F(PublishPartTest, WaitsForTheOthersAndSaysWhich) {
  std::vector<std::vector<unsigned>> told;
  PublishOptions options = part_options(1, 1, files_of(1, 1));
  options.part_wait = std::chrono::seconds(600);
  std::atomic<bool> waits = false;
  options.waiting = [&](const std::vector<unsigned>& missing) {
    told.push_back(missing);
    waits = true;
  };
  PartResult result;
  std::jthread waiter([&] { result = publish(1, options); });
  ASSERT_TRUE(eventually([&] { return waits.load(); }));
  publish(2, 1);
  publish(3, 1);
  waiter.join();
  EXPECT_EQ(result.version, 1u);
  EXPECT_TRUE(result.missing.empty());
  EXPECT_FALSE(result.is_committed_here);
  EXPECT_EQ(told.front(), (std::vector<unsigned>{2, 3}));
}

// The hosts do not agree who completes the set: all that see it complete may.
TEST_F(PublishPartTest, AllAtOnceMakeOneVersion) {
  for (unsigned step = 1; step <= 5; step++) {
    std::array<PartResult, kParts + 1> results;
    for (unsigned part = 1; part <= kParts; part++) host(part);
    std::vector<PublishOptions> options(1);
    for (unsigned part = 1; part <= kParts; part++) {
      options.push_back(part_options(part, step, files_of(part, step)));
      options.back().part_wait = std::chrono::seconds(600);
    }
    {
      std::vector<std::jthread> threads;
      for (unsigned part = 1; part <= kParts; part++) {
        threads.emplace_back([&, part] { results[part] = publish(part, options[part]); });
      }
    }
    for (unsigned part = 1; part <= kParts; part++) EXPECT_EQ(results[part].version, step);
    EXPECT_EQ(read_on_a_fresh_host(step), whole(step, step));
  }
  expect_sound();
}

TEST_F(PublishPartTest, TheLastOfManyCompletesAtItsFirstLook) {
  publish_parts_from_to(1, kMany - 1);
  PublishOptions last = one_of_many(kMany);
  last.part_wait = std::chrono::seconds(600);
  last.at = [](std::string_view point) { EXPECT_NE(point, "waiting"); };
  EXPECT_TRUE(publish(3, last).is_committed_here);
}

// When others do is WaitRhythm's to say: tests/store/parts/wait_rhythm_test.cpp.
TEST_F(PublishPartTest, WhileItIsCompletedTheOthersWaitForItAndMissNoPart) {
  publish_parts_from_to(2, kMany - 1);
  PublishOptions first = one_of_many(1), last = one_of_many(kMany);
  const std::string record =
      keys::part_record(part_set(host(1).repository->id(), first.part, first.wishes.tag, 1), kMany);
  std::atomic<Clock::time_point> asked_last = Clock::time_point::max();
  const auto hooks = std::make_shared<BucketHooks>();
  hooks->before = [&](const BucketCall& call) {
    if (call.key == record) asked_last = Clock::now();
  };
  Host waiting(Repository::open(std::make_unique<HookedBucket>(bucket_, hooks), {}),
               dir_ / "first");
  std::atomic<bool> waits = false, misses_none = false, is_too_early = false;
  first.part_wait = std::chrono::seconds(600);
  first.waiting = [&](const std::vector<unsigned>& missing) {
    EXPECT_EQ(missing, waits ? std::vector<unsigned>{} : std::vector<unsigned>{kMany});
    (waits ? misses_none : waits) = true;
  };
  first.at = [&](std::string_view point) {
    if (point != "complete") return;
    if (Clock::now() - asked_last.load() < kMany * WaitRhythm::kCompletingPerPart) {
      is_too_early = true;
    }
  };
  PartResult result;
  std::jthread waiter([&](const std::stop_token& stop) {
    try {
      result = publish_part(waiting.history, *waiting.store, first, {.stop = stop}, {});
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  });
  ASSERT_TRUE(eventually([&] { return waits.load(); }));
  std::atomic<bool> may_go_on = false;
  last.at = [&](std::string_view point) {
    if (point == "complete") may_go_on.wait(false);
  };
  std::jthread completer([&] { EXPECT_EQ(publish(3, last).version, 1u); });
  EXPECT_TRUE(eventually([&] { return misses_none.load(); }));
  may_go_on = true;
  may_go_on.notify_all();
  completer.join();
  waiter.join();
  EXPECT_EQ(result.version, 1u);
  EXPECT_FALSE(is_too_early);
}

TEST_F(PublishPartTest, APartThatNeverComesIsNamedAndTheOthersStay) {
  publish(1, 1);
  PublishOptions options = part_options(3, 1, files_of(3, 1));
  options.part_wait = std::chrono::milliseconds(30);
  const Error error = error_of([&] { publish(3, options); });
  EXPECT_EQ(error.code(), ErrorCode::timed_out);
  EXPECT_TRUE(contains(error.what(), "part 2 of 3 did not come")) << error.what();
  EXPECT_TRUE(publish(2, 1).is_committed_here);
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
}

/// The last part came after that host had looked for the version, and all were removed since.
TEST_F(PublishPartTest, AVersionThatComesDuringTheLastLookIsFound) {
  publish(1, 1);
  std::atomic<bool> is_waiting = false;
  const auto hooks = std::make_shared<BucketHooks>();
  hooks->before = [&](const BucketCall& call) {
    const bool asks = call.kind == "get" && call.key.starts_with("parts/");
    if (asks && is_waiting.exchange(false)) publish(2, 1);
  };
  Host own(Repository::open(std::make_unique<HookedBucket>(bucket_, hooks), {}), dir_ / "last");
  PublishOptions options = part_options(3, 1, files_of(3, 1));
  options.at = [&](std::string_view point) { is_waiting = is_waiting || point == "part"; };
  const PartResult result = publish_part(own.history, *own.store, options, {}, {});
  EXPECT_FALSE(is_waiting);
  EXPECT_EQ(result.version, 1u);
  EXPECT_TRUE(result.missing.empty());
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
}

// ---- the same part again ----

TEST_F(PublishPartTest, NoPartOfAFirstVersionGoesIntoABucketThatWasBegunAnew) {
  const std::string record = bucket_->find(keys::kRecord).value();
  bucket_->replace(keys::kRecord, record_of_another(record, host(1).repository->id()));
  EXPECT_EQ(code_of([&] { publish(1, 1); }), ErrorCode::not_found);
  EXPECT_FALSE(bucket_->find(keys::part_record(set_of(1, 1), 1)));
}

TEST_F(PublishPartTest, APartThatIsThereIsNotUploadedAgain) {
  publish(1, 1);
  const std::size_t objects = bucket_->objects().size();
  const PartResult again = publish(1, 1);
  EXPECT_EQ(again.uploaded_bytes, 0u);
  EXPECT_EQ(bucket_->objects().size(), objects);
  publish(2, 1);
  EXPECT_EQ(publish(3, 1).version, 1u);
}

TEST_F(PublishPartTest, APartOfAVersionThatExistsFindsIt) {
  publish_all(1);
  publish_all(2);
  hosts_.clear();
  for (const unsigned step : {1u, 2u}) {
    const PartResult again = publish(2, step);
    EXPECT_EQ(again.version, step);
    EXPECT_TRUE(again.missing.empty());
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  EXPECT_TRUE(keys_below(*bucket_, "parts/").empty());
}

TEST_F(PublishPartTest, OtherBytesOfTheSameRunAreAConflict) {
  publish(1, 1);
  Files files = files_of(1, 7);
  files["config.json"] = files_of(1, 1)["config.json"];
  const auto conflict = [&](const Files& other) {
    const Error error = error_of([&] { publish(1, part_options(1, 1, other)); });
    return error.code() == ErrorCode::conflict && contains(error.what(), "part 1 of 3") &&
           contains(error.what(), "--run");
  };
  EXPECT_TRUE(conflict(files)) << "tensors";
  files = files_of(1, 1);
  files["config.json"] = "{}";
  EXPECT_TRUE(conflict(files)) << "a small file";
  publish(2, 1);
  publish(3, 1);
  EXPECT_TRUE(conflict(files)) << "the version exists";
  files = files_of(1, 7);
  files["config.json"] = files_of(1, 1)["config.json"];
  EXPECT_TRUE(conflict(files)) << "the version exists";
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
}

// The files of a snapshot have names that do not follow from their bytes.
TEST_F(PublishPartTest, FilesOfASnapshotAreNeverWrittenTwiceWithDifferentBytes) {
  PublishOptions options = part_options(1, 1, files_of(1, 1));
  options.at = [](std::string_view point) {
    if (point == "pack") throw Error(ErrorCode::cancelled, "killed before its record");
  };
  EXPECT_EQ(error_of([&] { publish(1, options); }).code(), ErrorCode::cancelled);
  const std::string key = keys::snapshot_file(1, set_of(1, 1).snapshot_nonce(), shard_name(1));
  EXPECT_EQ(bucket_->find(key), files_of(1, 1)[shard_name(1)]);
  EXPECT_EQ(error_of([&] { publish(1, part_options(1, 1, files_of(1, 9))); }).code(),
            ErrorCode::conflict);
  EXPECT_EQ(bucket_->find(key), files_of(1, 1)[shard_name(1)]);
  publish_all(1);
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
}

/// A late process of the same host: the version came to exist while it coded, and the claim of
/// those other bytes went with all that its parts had told each other.
TEST_F(PublishPartTest, AClaimThatWentWithItsVersionIsNotMadeAgain) {
  const std::string key = keys::snapshot_file(1, set_of(1, 1).snapshot_nonce(), shard_name(1));
  Host late(bucket_, dir_ / "late");
  PublishOptions options = part_options(1, 1, files_of(1, 9));
  options.at = [&](std::string_view point) {
    if (point == "diffed") publish_all(1);
  };
  const Error error = error_of([&] { publish_part(late.history, *late.store, options, {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_TRUE(contains(error.what(), "with other bytes")) << error.what();
  EXPECT_EQ(bucket_->find(key), files_of(1, 1)[shard_name(1)]);
  EXPECT_EQ(read_on_a_fresh_host(1), whole(1, 1));
  expect_sound();
}

TEST_F(PublishPartTest, AVersionThatCameWhileItWasCodedIsFound) {
  Host late(bucket_, dir_ / "late");
  PublishOptions options = part_options(1, 1, files_of(1, 1));
  options.at = [&](std::string_view point) {
    if (point == "diffed") publish_all(1);
    EXPECT_NE(point, "pack") << "it is there";
  };
  const PartResult result = publish_part(late.history, *late.store, options, {}, {});
  EXPECT_EQ(result.version, 1u);
  EXPECT_TRUE(result.missing.empty());
  EXPECT_EQ(result.uploaded_bytes, 0u);
}

TEST_F(PublishPartTest, NoFileIsUploadedForANumberThatAnotherWriterTook) {
  PublishOptions options = part_options(1, 1, files_of(1, 1));
  options.at = [&](std::string_view point) {
    if (point == "diffed") publisher().publish(checkpoint(1, 1'000));
  };
  EXPECT_EQ(error_of([&] { publish(1, options); }).code(), ErrorCode::conflict);
  const std::string nonce = set_of(1, 1).snapshot_nonce();
  EXPECT_TRUE(keys_below(*bucket_, keys::snapshot_file(1, nonce, "")).empty());
}

/// The part stays claimed for bytes that nobody has any more, so the same again is a conflict.
TEST_F(PublishPartTest, AFileThatChangesAfterTheClaimSaysWhatToDo) {
  const auto publish_changing_at = [&](std::string_view when) {
    PublishOptions options = part_options(1, 1, files_of(1, 1));
    options.at = [&](std::string_view point) {
      if (point != when) return;
      write_text(options.directory / shard_name(1), files_of(1, 9)[shard_name(1)]);
    };
    return error_of([&] { publish(1, options); });
  };
  const Error before = publish_changing_at("diffed");
  EXPECT_EQ(before.code(), ErrorCode::busy) << before.what();
  EXPECT_FALSE(contains(before.what(), "--run")) << before.what();
  EXPECT_TRUE(keys_below(*bucket_, "parts/").empty()) << "it is not claimed";
  const Error after = publish_changing_at("claimed");
  EXPECT_EQ(after.code(), ErrorCode::busy) << after.what();
  for (const char* word : {"rank1.safetensors", "--run", "tag", "part 1 of step-1"}) {
    EXPECT_TRUE(contains(after.what(), word)) << after.what();
  }
  PublishOptions again = part_options(1, 1, files_of(1, 9));
  EXPECT_EQ(error_of([&] { publish(1, again); }).code(), ErrorCode::conflict);
  again.part.run = "run-2";
  EXPECT_EQ(publish(1, again).version, 1u);
}

// ---- two runs ----

TEST_F(PublishPartTest, PartsOfTwoRunsDoNotMix) {
  publish_all(1);
  publish(1, 2);
  publish(2, 2);
  for (unsigned part = 1; part <= kParts; part++) {
    PublishOptions options = part_options(part, 2, files_of(part, 20));
    options.part.run = "run-2";
    const PartResult result = publish(part, options);
    EXPECT_EQ(result.missing.empty(), part == kParts);
  }
  EXPECT_EQ(read_on_a_fresh_host(2), whole(2, 20));
  // The rest of the first run comes too late.
  PublishOptions late = part_options(3, 2, files_of(3, 2));
  EXPECT_EQ(publish(3, late).version, 3u);
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
}

TEST_F(PublishPartTest, ANumberThatIsTakenIsAConflictOrCodedAgain) {
  publish_all(1);
  for (const bool rebase : {false, true}) {
    PublishOptions options = part_options(1, 2, files_of(1, 2));
    options.part_wait = std::chrono::seconds(600);
    options.wishes.rebase = rebase;
    std::atomic<bool> waits = false;
    options.waiting = [&](const std::vector<unsigned>&) { waits = true; };
    std::optional<PartResult> result;
    ErrorCode code{};
    std::jthread waiter([&] {
      try {
        result = publish(1, options);
      } catch (const Error& error) {
        code = error.code();
      }
    });
    ASSERT_TRUE(eventually([&] { return waits.load(); }));
    Files other = whole(1, 1);
    other["config.json"] = rebase ? "[]" : "{}";
    publisher().publish(directory_of(other));
    if (rebase) {
      publish(2, 2);
      publish(3, 2);
    }
    waiter.join();
    EXPECT_EQ(result.has_value(), rebase);
    EXPECT_EQ(code, rebase ? ErrorCode{} : ErrorCode::conflict);
    EXPECT_EQ(result.value_or(PartResult{}).version, rebase ? 4u : 0u);
  }
  EXPECT_EQ(read_on_a_fresh_host(4), whole(4, 2));
}

// ---- other tensors ----

TEST_F(PublishPartTest, OtherTensorsNeedASnapshotOfAllParts) {
  publish_all(1);
  Files grown = files_of(2, 2);
  grown[shard_name(2)] = make_safetensors(
      {tensor_of("layer2.w", Dtype::bf16, 70'001, 2), tensor_of("layer2.b", Dtype::f32, 16, 202)});
  const Error error = error_of([&] { publish(2, part_options(2, 2, grown)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  for (const char* word : {"rank2.safetensors", "'layer2.w'", "70001", "70000", "--snapshot"}) {
    EXPECT_TRUE(contains(error.what(), word)) << error.what();
  }
  for (unsigned part = 1; part <= kParts; part++) {
    PublishOptions options = part_options(part, 2, part == 2 ? grown : files_of(part, 2));
    options.wishes.snapshot = true;
    publish(part, options);
  }
  const Manifest manifest = manifest_of(2);
  EXPECT_TRUE(manifest.snapshot && !manifest.delta);
  Files all = whole(2, 2);
  all[shard_name(2)] = grown[shard_name(2)];
  EXPECT_EQ(read_on_a_fresh_host(2), all);
  expect_sound();
}

/// What is recorded without a snapshot stays so: the others were published before one was refused.
TEST_F(PublishPartTest, ARecordWithoutASnapshotSaysThatItTakesANewToken) {
  publish_all(1);
  publish(1, 2);
  publish(3, 2);
  Files other = files_of(2, 2);
  other[shard_name(2)] = make_safetensors({tensor_of("layer2.w", Dtype::bf16, 9, 2)});
  const auto options_of = [&](unsigned part, const std::string& run) {
    PublishOptions options = part_options(part, 2, part == 2 ? other : files_of(part, 2));
    options.wishes.snapshot = true;
    options.part.run = run;
    return options;
  };
  const Error refused = error_of([&] { publish(2, part_options(2, 2, other)); });
  const Error late = error_of([&] { publish(1, options_of(1, "run-1")); });
  EXPECT_EQ(refused.code(), ErrorCode::invalid);
  EXPECT_EQ(late.code(), ErrorCode::conflict);
  for (const char* word : {"--snapshot", "--run", "tag", "on all parts"}) {
    EXPECT_TRUE(contains(refused.what(), word)) << refused.what();
    EXPECT_TRUE(contains(late.what(), word)) << late.what();
  }
  for (unsigned part = 1; part <= kParts; part++) publish(part, options_of(part, "run-2"));
  Files all = whole(2, 2);
  all[shard_name(2)] = other[shard_name(2)];
  EXPECT_EQ(read_on_a_fresh_host(2), all);
}

TEST_F(PublishPartTest, ASnapshotHasADeltaTooWhereTheTensorsAreThoseOfTheParent) {
  publish_all(1);
  for (unsigned part = 1; part <= kParts; part++) {
    PublishOptions options = part_options(part, 2, files_of(part, 2));
    options.snapshots.every = 2;
    publish(part, options);
  }
  const Manifest manifest = manifest_of(2);
  EXPECT_TRUE(manifest.snapshot && manifest.delta);
  for (const std::string& key : keys_below(*bucket_, "packs/")) bucket_->erase(key);
  EXPECT_EQ(read_on_a_fresh_host(2), whole(2, 2));
}

TEST_F(PublishPartTest, PartsThatMakeNoVersionAreRefusedByWhoeverSeesIt) {
  publish(1, 1);
  publish(2, 1);
  Files slice = files_of(3, 1);
  slice[shard_name(3)] = make_safetensors({tensor_of("layer1.w", Dtype::bf16, 10, 1)});
  const Error error = error_of([&] { publish(3, part_options(3, 1, slice)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  for (const char* word :
       {"'layer1.w'", "rank1.safetensors of part 1", "rank3.safetensors of part 3"}) {
    EXPECT_TRUE(contains(error.what(), word)) << error.what();
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
  EXPECT_EQ(error_of([&] { publish(1, 1); }).code(), ErrorCode::invalid);
}

TEST_F(PublishPartTest, AnIndexMayNameFilesOfOtherParts) {
  Files files = files_of(1, 1);
  files["model.safetensors.index.json"] =
      R"({"weight_map":{"layer1.w":"rank1.safetensors","layer3.w":"rank3.safetensors"}})";
  publish(1, part_options(1, 1, files));
  publish(2, 1);
  publish(3, 1);
  EXPECT_EQ(read_on_a_fresh_host(1)["model.safetensors.index.json"],
            files["model.safetensors.index.json"]);
}

TEST_F(PublishPartTest, RefusesAPartWithoutTokenOrTag) {
  PublishOptions options = part_options(1, 1, files_of(1, 1));
  options.part.run = "";
  EXPECT_TRUE(contains(error_of([&] { publish(1, options); }).what(), "--run"));
  options.part.run = "run";
  options.wishes.tag = "";
  EXPECT_TRUE(contains(error_of([&] { publish(1, options); }).what(), "--tag"));
}

// ---- damage ----

TEST_F(PublishPartTest, ADamagedRecordIsNoticedAndNamed) {
  publish(1, 1);
  publish(2, 1);
  const std::string key = keys::part_record(set_of(1, 1), 2);
  std::string bytes = bucket_->find(key).value();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  bucket_->replace(key, bytes);
  const Error error = error_of([&] { publish(3, 1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(contains(error.what(), key)) << error.what();
}

TEST_F(PublishPartTest, ARecordInThePlaceOfAnotherIsNoticed) {
  publish(1, 1);
  publish(2, 1);
  const PartSet set = set_of(1, 1);
  bucket_->replace(keys::part_record(set, 2), bucket_->find(keys::part_record(set, 1)).value());
  EXPECT_EQ(error_of([&] { publish(3, 1); }).code(), ErrorCode::corrupt);
}

TEST_F(PublishPartTest, DamagedHashesOfAPartAreNoticed) {
  publish(1, 1);
  publish(2, 1);
  const PartSet set = set_of(1, 1);
  const auto record = find_part(*host(1).repository, set, 2, {});
  const std::string key = keys::part_object(set, record.value().hashes.sha256);
  std::string bytes = bucket_->find(key).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  bucket_->replace(key, bytes);
  const Error error = error_of([&] { publish(3, 1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(contains(error.what(), key)) << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
}

TEST_F(PublishPartTest, AfterAnErrorOfTheBucketTheNextPublishGoesOn) {
  publish_all(1);
  for (const char* prefix : {"packs/2/", "parts/2/", "layouts/", "versions/00000000000000000002"}) {
    publish(1, 2);
    bucket_->fail_key(prefix, ErrorCode::unavailable);
    EXPECT_ANY_THROW({
      publish(2, 2);
      publish(3, 2);
    }) << prefix;
    bucket_->heal();
  }
  publish_all(2);
  EXPECT_EQ(read_on_a_fresh_host(2), whole(2, 2));
  expect_sound();
}

TEST_F(PublishPartTest, ALostReplyOfTheCommitIsSettled) {
  publish(1, 1);
  publish(2, 1);
  bucket_->lose_reply("versions/");
  EXPECT_TRUE(publish(3, 1).is_committed_here);
  EXPECT_EQ(publish(1, 1).version, 1u);
}

// A bucket that was restored may have records that follow a version that is no more.
TEST_F(PublishPartTest, PartsOfAParentThatIsNoMoreAreRefused) {
  publish_all(1);
  publish(1, 2);
  publish(2, 2);
  Manifest manifest = manifest_of(1);
  manifest.time++;
  bucket_->replace(keys::manifest(1), manifest.serialize());
  hosts_.clear();
  hosts_[3] = std::make_unique<Host>(bucket_, dir_ / "another");
  const Error error = error_of([&] { publish(3, 2); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_TRUE(contains(error.what(), "part 1 of version 2 follows another version 1"))
      << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

// ---- what is left ----

TEST_F(PublishPartTest, GcRemovesWhatIsLeftOfVersionsThatExist) {
  publish(1, 1);
  for (unsigned part = 1; part <= kParts; part++) {
    PublishOptions options = part_options(part, 1, files_of(part, 10));
    options.part.run = "run-2";
    publish(part, options);
  }
  publish(1, 2);  // version 2 does not exist yet
  const std::size_t above = keys_below(*bucket_, "parts/2/").size();
  EXPECT_FALSE(keys_below(*bucket_, "parts/1/").empty());
  Host host = fresh_host();
  const VerifyReport report =
      verify_repository(host.history, host.store->temporary_directory(), {}, {});
  EXPECT_TRUE(report.problems.empty());
  EXPECT_TRUE(std::ranges::any_of(report.orphans,
                                  [](const Orphans& left) { return left.prefix == "parts/1/"; }));
  const CollectReport removed = collect(*host.repository, {}, {}, {});
  EXPECT_TRUE(keys_below(*bucket_, "parts/1/").empty());
  EXPECT_EQ(keys_below(*bucket_, "parts/2/").size(), above);
  for (const GcRecord& record : removed.log.records) {
    for (const std::string& key : record.objects) EXPECT_FALSE(key.starts_with("parts/")) << key;
  }
  publish(2, 2);
  EXPECT_EQ(publish(3, 2).version, 2u);
}

}  // namespace
}  // namespace weightfs::test
