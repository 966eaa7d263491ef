// Early versions: what a reader makes before the manifest exists, and when a version takes it.
#include "store/sync/make_early.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/materialize/adopt.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/early_version.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"
#include "store/publish/early_packs.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/repository/early_records.hpp"
#include "store/sync/head_start.hpp"
#include "tests/store/sync/early_version_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/fresh_spans.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

using Path = std::filesystem::path;

// ---- what is taken ----

TEST_F(EarlyVersionTest, AVersionTakesAllThatWasMadeEarly) {
  for (std::uint64_t version = 2; version <= 4; version++) {
    const Path directory = step();
    const EarlyRecord record = code(directory, all());
    const EarlyMade made = make(record);
    EXPECT_EQ(made.bytes, bytes_of(directory, all()));
    EXPECT_GT(made.fetched_bytes, 0u);
    EXPECT_EQ(reader_.store->early_images().size_bytes(), made.bytes);
    EXPECT_EQ(make(record).bytes, 0u) << "once";
    ASSERT_EQ(publish(directory, take()), version);
    EXPECT_EQ(bring(version, directory), made.bytes);
  }
}

TEST_F(EarlyVersionTest, FilesComeOneAfterAnotherAndTheRestIsMadeWithTheVersion) {
  const Path directory = step();
  EXPECT_EQ(make(code(directory, {"a.safetensors"})).bytes, bytes_of(directory, {"a.safetensors"}));
  EXPECT_EQ(make(code(directory, {"c.safetensors"})).bytes, bytes_of(directory, {"c.safetensors"}));
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors", "c.safetensors"}));
}

TEST_F(EarlyVersionTest, AnotherHeaderOfTheSameLengthIsWrittenOver) {
  metadata_ = {{"step", "100"}};
  publish(step(), nullptr);
  reader_.read_version(2);
  metadata_ = {{"step", "101"}};
  const Path directory = step();
  const EarlyMade made = make(code(directory, all()));
  publish(directory, take());
  EXPECT_EQ(bring(3, directory), made.bytes);
}

TEST_F(EarlyVersionTest, AHeaderOfAnotherLengthIsMadeWithTheVersion) {
  metadata_ = {{"step", "1"}, {"more", std::string(64, 'x')}};
  const Path directory = step();
  EXPECT_GT(make(code(directory, all())).bytes, 0u);
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, AFileWithoutAChangeIsLinkedAsEver) {
  nudge("a.safetensors");
  const Path directory = save();
  EXPECT_EQ(make(code(directory, all())).bytes, bytes_of(directory, {"a.safetensors"}));
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors"}));
}

// ---- what is not taken ----

TEST_F(EarlyVersionTest, AFileThatWasSavedAgainIsMadeAgain) {
  const Path before = step();
  make(code(before, all()));
  early_->drop(kDirectory);
  nudge("b.safetensors");
  const Path directory = save();
  const EarlyRecord record = code(directory, all());
  EXPECT_EQ(make(record).bytes, bytes_of(directory, all())) << "coded anew: other packs";
  nudge("b.safetensors");
  const Path last = save();
  early_->add({kDirectory, "b.safetensors", last / "b.safetensors", 2});
  ASSERT_TRUE(eventually([&] { return early_->status().waiting_files == 0; }));
  std::filesystem::copy(last / "b.safetensors", directory / "b.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors", "c.safetensors"}));
}

TEST_F(EarlyVersionTest, OtherPacksWithTheSameBytesAreNotBelieved) {
  const Path directory = step();
  EXPECT_GT(make(code(directory, all())).bytes, 0u);
  static_cast<void>(take());
  publish(directory, nullptr);  // coded again, under other names
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, AVersionWithOtherBytesTakesNothing) {
  EXPECT_GT(make(code(step(), all())).bytes, 0u);
  static_cast<void>(take());
  const Path directory = step();
  publish(directory, nullptr);
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, OtherTensorsTakeNothing) {
  const Path saved = step();
  EXPECT_GT(make(code(saved, {"a.safetensors"})).bytes, 0u);
  tensors_["d.safetensors"] = {{"d", Dtype::bf16, {16}, random_bf16(16, rng_)}};
  const Path directory = save();
  std::filesystem::copy(saved / "a.safetensors", directory / "a.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, OfTwoVersionsAtOnceNothingIsTaken) {
  const Path second = step();
  EXPECT_GT(make(code(second, all())).bytes, 0u);
  publish(second, take());
  const Path third = step();
  publish(third, nullptr);
  EXPECT_EQ(bring(3, third), 0u);
  EXPECT_FALSE(std::filesystem::is_empty(dir_ / "reader" / "tmp")) << "it goes after that";
  EXPECT_TRUE(reader_.store->early_images().drop());
  EXPECT_FALSE(reader_.store->early_images().drop());
  EXPECT_EQ(bring(2, second), 0u);
}

TEST_F(EarlyVersionTest, NothingIsMadeOfAnotherHistoryOrForAVersionThatIsNotNext) {
  const Path directory = step();
  EarlyRecord record = code(directory, all());
  record.parent_sha256[0] ^= std::byte{1};
  EXPECT_EQ(make(record).bytes, 0u);
  record.parent_sha256[0] ^= std::byte{1};
  record.version = 7;
  EXPECT_EQ(make(record).bytes, 0u);
}

TEST_F(EarlyVersionTest, WhereSomebodyWantsTheDeltaAllIsMadeWithTheVersion) {
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  EXPECT_GT(make(record).bytes, 0u);
  const std::vector<DeltaId> wanted{{1, 2}};
  reader_.store->wanted_deltas().set_engines([&](std::uint64_t) { return wanted; });
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
  EXPECT_TRUE(reader_.store->deltas().list().contains(wanted.front())) << "it was made ahead";

  const Path next = step();
  const EarlyRecord second = code(next, all());
  reader_.store->wanted_deltas().set_engines([](std::uint64_t) {
    return std::vector<DeltaId>{{2, 3}};
  });
  EXPECT_EQ(make(second).bytes, 0u);
}

// ---- damage, malice ----

TEST_F(EarlyVersionTest, PacksOfOtherFilesAreRefusedByName) {
  const Path directory = step();
  EarlyRecord record = code(directory, all());
  std::swap(record.files[0].delta, record.files[1].delta);
  std::string message;
  EXPECT_EQ(code_of([&] { make(record); }, &message), ErrorCode::corrupt);
  EXPECT_TRUE(contains(message, "packs/2/")) << message;
  EXPECT_TRUE(contains(message, "a.safetensors")) << message;
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, FilesThatTheParentDoesNotHaveAndPacksThatAreGoneDoNoHarm) {
  const Path directory = step();
  EarlyRecord record = code(directory, all());
  record.files[0].path = "0.safetensors";
  record.files.resize(1);
  EXPECT_EQ(make(record).bytes, 0u);
  record = early_->coming().record.value();
  record.files[0].delta.packs[0].name = std::string(32, 'f') + "-0";
  EXPECT_EQ(code_of([&] { make(record); }), ErrorCode::not_found);
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, ADamagedPackIsLeftToTheVersion) {
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  const std::string key = keys::pack(2, record.files[1].delta.packs[0].name);
  const std::string right = bucket_->find(key).value();
  std::string damaged = right;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  bucket_->replace(key, damaged);
  EXPECT_EQ(code_of([&] { make(record); }), ErrorCode::corrupt);
  EXPECT_EQ(reader_.store->early_images().size_bytes(), 0u);
  publish(directory, take());
  bucket_->replace(key, right);
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, ADamagedParentMakesNothingAndIsRebuiltWithTheVersion) {
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  const Path image = reader_.store->images().image_directory(1) / "b.safetensors";
  std::filesystem::permissions(image, std::filesystem::perms(0644));
  std::string bytes = read_text(image);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(image, bytes);
  EXPECT_EQ(code_of([&] { make(record); }), ErrorCode::corrupt);
  EXPECT_TRUE(reader_.store->images().is_complete(1)) << "nothing is evicted for it";
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), 0u);
}

TEST_F(EarlyVersionTest, PacksOfWhatWasMadeEarlyAreNotFetchedAgain) {
  const Path directory = step();
  const EarlyRecord record = code(directory, {"a.safetensors", "b.safetensors"});
  make(record);
  publish(directory, take());
  for (const EarlyRecord::File& file : record.files) {
    const std::string key = keys::pack(2, file.delta.packs.at(0).name);
    std::string damaged = bucket_->find(key).value();
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    bucket_->replace(key, damaged);
  }
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors", "b.safetensors"}));
}

TEST_F(EarlyVersionTest, NorAreTheirHeaders) {
  const Path directory = step();
  make(code(directory, all()));
  publish(directory, take());
  bucket_->fail_key("packs/", ErrorCode::unavailable);
  EXPECT_EQ(bring(2, directory), bytes_of(directory, all()));
}

// ---- a file that is still written ----

constexpr const char* kGrowing = "c.safetensors";
constexpr const char* kTemporary = ".tmpQ4LQlO";  // as savers call it until it is complete

class GrowingVersionTest : public EarlyVersionTest {
 protected:
  GrowingVersionTest() : EarlyVersionTest(22'000'000) {}  // more than two pieces

  /// A step that lacks the end of one file.
  void begin() {
    directory_ = step();
    path_ = directory_ / kGrowing;
    bytes_ = read_text(path_);
    std::filesystem::resize_file(path_, 0);
    early_->add({kDirectory, kTemporary, path_, 1, true});
  }

  void write_percent(std::size_t percent) {
    const std::string_view bytes =
        std::string_view(bytes_).substr(0, bytes_.size() * percent / 100);
    const std::size_t from = std::filesystem::file_size(path_);
    const File file = File::open(path_, O_WRONLY);
    write_at(file.fd(), from, as_bytes(bytes.substr(from)), path_);
  }

  /// Waits until so many packs of the file are named.
  EarlyRecord record(std::size_t packs) {
    EarlyRecord found;
    EXPECT_TRUE(eventually([&] {
      const EarlyComing coming = early_->coming();
      if (!coming.record) return false;
      found = *coming.record;
      return found.files.size() == 1 && found.files[0].delta.packs.size() == packs;
    })) << packs;
    EXPECT_EQ(found.files.front().path, kGrowing);
    return found;
  }

  /// Returns: the record that names all of the file.
  EarlyRecord finish() {
    write_percent(100);
    early_->add({kDirectory, kGrowing, path_, 1, false});
    EXPECT_TRUE(eventually([&] {
      const EarlyComing coming = early_->coming();
      return coming.record && !coming.record->files.front().coded_bytes;
    }));
    return early_->coming().record.value();
  }

  /// Two pieces of the file, the second made after the first, or with it.
  std::uint64_t make_two(bool one_by_one = true) {
    write_percent(45);
    std::uint64_t made = 0;
    const EarlyRecord first = record(1);
    if (one_by_one) made = make(first).bytes;
    write_percent(85);
    return made + make(record(2)).bytes;
  }

  Path directory_, path_;
  std::string bytes_;
};

TEST_F(GrowingVersionTest, ItIsMadeInPieces) {
  for (std::uint64_t version = 2; version <= 3; version++) {
    begin();
    write_percent(45);
    const EarlyRecord first = record(1);
    const std::uint64_t coded = first.files[0].coded_bytes.value();
    EXPECT_GE(coded, kEarlyPieceBytes);
    const std::uint64_t made = make(first).bytes;
    EXPECT_GT(made, 0u);
    EXPECT_LE(made, coded);
    EXPECT_EQ(make(first).bytes, 0u) << "it is here";
    write_percent(85);
    const EarlyRecord second = record(2);
    EXPECT_EQ(second.files[0].delta.packs[0], first.files[0].delta.packs[0]);
    const std::uint64_t more = make(second).bytes;
    EXPECT_GT(more, 0u);
    EXPECT_LE(made + more, second.files[0].coded_bytes.value());
    const EarlyRecord last = finish();
    EXPECT_EQ(last.files[0].delta.packs.size(), 3u);
    const std::uint64_t rest = version == 3 ? make(last).bytes : 0;
    publish(directory_, take());
    EXPECT_EQ(bring(version, directory_), made + more + rest);
    if (version == 3) {
      EXPECT_EQ(made + more + rest, bytes_.size());
    }
  }
}

// It has the chunk that reaches over the border.
TEST_F(GrowingVersionTest, ThePackBeforeAPieceIsNotFetchedAgain) {
  begin();
  write_percent(45);
  const EarlyRecord first = record(1);
  make(first);
  bucket_->fail_key(keys::pack(2, first.files[0].delta.packs[0].name), ErrorCode::unavailable);
  write_percent(85);
  const EarlyRecord second = record(2);
  const PackRef& pack = second.files[0].delta.packs[1];
  EXPECT_EQ(make(second).fetched_bytes, pack.size_bytes);
  finish();
  bucket_->heal();  // a publish asks for packs that it uploaded a while ago
  publish(directory_, take());
  for (const PackRef& read : second.files[0].delta.packs) {
    bucket_->fail_key(keys::pack(2, read.name), ErrorCode::unavailable);
  }
  EXPECT_GT(bring(2, directory_), 0u);
}

TEST_F(GrowingVersionTest, PiecesThatCameMeanwhileAreMadeAtOnce) {
  begin();
  const std::uint64_t made = make_two(false);
  finish();
  publish(directory_, take());
  EXPECT_EQ(bring(2, directory_), made);
}

// A saver renames the checkpoint as soon as close(2) has returned; the mount learns of the close
// when the kernel releases the file.
TEST_F(GrowingVersionTest, TheHandOverOfItsCheckpointBeforeItsCloseIsToldDoesNotEndIt) {
  begin();
  write_percent(45);
  record(1);
  handed_over_ = kDirectory;
  EXPECT_TRUE(eventually([&] { return asked_ > 1; }));
  write_percent(100);
  early_->close({kDirectory, kGrowing, path_, 1, false});
  const auto results = take();
  EXPECT_EQ(results->bytes(), bytes_.size());
  handed_over_ = 0;
  publish(directory_, results);
  bring(2, directory_);
}

TEST_F(GrowingVersionTest, TheHandOverOfAnotherCheckpointEndsIt) {
  begin();
  write_percent(45);
  record(1);
  handed_over_ = kDirectory + 1;
  EXPECT_TRUE(eventually([&] { return early_->status().growing_files == 0; }));
  handed_over_ = 0;
  write_percent(100);
  EXPECT_TRUE(take()->empty());
  publish(directory_, nullptr);
  bring(2, directory_);
}

TEST_F(GrowingVersionTest, WhatWasWrittenAgainIsMadeAgain) {
  begin();
  EXPECT_GT(make_two(), 0u);
  const std::size_t at = bytes_.size() / 3;
  bytes_[at] = static_cast<char>(bytes_[at] ^ 1);
  write_at(File::open(path_, O_WRONLY).fd(), at, as_bytes(bytes_).subspan(at, 1), path_);
  finish();
  publish(directory_, take());
  EXPECT_EQ(bring(2, directory_), 0u);
}

TEST_F(GrowingVersionTest, AnotherHeaderOfTheSameLengthIsWrittenOver) {
  metadata_["step"] = "1";
  publish(step(), nullptr);
  reader_.read_version(2);
  metadata_["step"] = "2";
  begin();
  const std::uint64_t made = make_two();
  finish();
  publish(directory_, take());
  EXPECT_EQ(bring(3, directory_), made);
}

TEST_F(GrowingVersionTest, ARecordThatSaysMoreThanItsPacksHaveIsNotBelieved) {
  begin();
  write_percent(45);
  EarlyRecord wrong = record(1);
  wrong.files[0].coded_bytes = 28u << 20;
  EXPECT_EQ(make(wrong).bytes, 28u << 20);
  write_percent(85);
  EXPECT_EQ(code_of([&] { make(record(2)); }), ErrorCode::corrupt) << "the border is another one";
  finish();
  publish(directory_, take());
  EXPECT_EQ(bring(2, directory_), 0u);
}

TEST_F(GrowingVersionTest, ARecordOfMoreThanTheFileIsOfAllOfIt) {
  begin();
  write_percent(45);
  EarlyRecord wrong = record(1);
  wrong.files[0].coded_bytes = std::uint64_t{1} << 45;
  EXPECT_EQ(make(wrong).bytes, bytes_.size());
  EXPECT_EQ(make(finish()).bytes, bytes_.size()) << "made again: other packs";
  publish(directory_, take());
  EXPECT_EQ(bring(2, directory_), bytes_.size());
}

TEST_F(GrowingVersionTest, OtherPacksMakeItAgainFromItsBeginning) {
  begin();
  write_percent(45);
  make(record(1));
  write_percent(85);
  EarlyRecord second = record(2);
  std::swap(second.files[0].delta.packs[0], second.files[0].delta.packs[1]);
  EXPECT_GT(make(second).bytes, 28u << 20);
  finish();
  publish(directory_, take());
  EXPECT_GT(bring(2, directory_), 28u << 20) << "the same packs, in another order";
}

TEST_F(GrowingVersionTest, APieceThatFailsLeavesWhatWasMadeBefore) {
  begin();
  write_percent(45);
  const std::uint64_t made = make(record(1)).bytes;
  write_percent(85);
  const EarlyRecord second = record(2);
  const std::string key = keys::pack(2, second.files[0].delta.packs[1].name);
  const std::string right = bucket_->find(key).value();
  std::string damaged = right;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  bucket_->replace(key, damaged);
  EXPECT_EQ(code_of([&] { make(second); }), ErrorCode::corrupt);
  bucket_->replace(key, right);
  const EarlyRecord last = finish();
  publish(directory_, take());
  EXPECT_EQ(bring(2, directory_), made);
  EXPECT_EQ(make(last).bytes, 0u) << "the version was claimed";
}

// Hashes of chunks are not made against attack: a pack that was not used is missed though all fit.
TEST_F(GrowingVersionTest, RightHashesDoNotMakeUpForAPackThatWasNotUsed) {
  begin();
  make_two();
  const std::vector<PackRef> packs = finish().files.at(0).delta.packs;
  publish(directory_, take());
  const std::vector<Base> bases{base_of(*reader_.store, reader_.history, 1, {})};
  const Plan plan = make_plan(reader_.history, reader_.history.get(2, {}), bases, {});
  const auto made_bytes = [&](std::unique_ptr<EarlySet> set) {
    return EarlyVersion(plan, std::move(set)).made_bytes();
  };
  auto set = reader_.store->early_images().claim(2, packs, {});
  ASSERT_TRUE(set);
  EarlyImage& image = set->files.at(kGrowing);
  const auto hashes = plan.layout->hashes_of(*plan.layout->find_file(kGrowing), plan.hashes);
  image.hashes.assign(hashes.begin(), hashes.end());
  image.made_bytes = image.size_bytes;
  const EarlyImage with_two = image;
  EXPECT_EQ(made_bytes(std::move(set)), 0u);
  EarlySet whole{2, bases[0].version->manifest_sha256, ImagesHome::disk,
                 ScratchDirectory(reader_.store->temporary_directory(), "early-")};
  whole.files[kGrowing] = with_two;
  whole.files[kGrowing].packs = packs;
  EXPECT_EQ(made_bytes(std::make_unique<EarlySet>(std::move(whole))), with_two.size_bytes);
}

TEST_F(GrowingVersionTest, WhatChangedIsNotedAcrossThePieces) {
  reader_.store->fresh_patches().add_taker();
  begin();
  make_two();
  finish();
  publish(directory_, take());
  EXPECT_GT(bring(2, directory_), 0u);
  expect_noted();
}

// ---- patches ----

TEST_F(EarlyVersionTest, WhatChangedIsNotedAcrossBothSteps) {
  reader_.store->fresh_patches().add_taker();
  const Path directory = step();
  make(code(directory, {"a.safetensors"}));
  make(code(directory, {"b.safetensors"}));
  publish(directory, take());
  EXPECT_GT(bring(2, directory), 0u);
  expect_noted();
}

TEST_F(EarlyVersionTest, WhatWasNotedOfAPassThatDoesNotFitIsLeftOut) {
  reader_.store->fresh_patches().add_taker();
  make(code(step(), all()));
  static_cast<void>(take());
  const Path directory = step();
  publish(directory, nullptr);
  EXPECT_EQ(bring(2, directory), 0u);
  expect_noted();
}

TEST_F(EarlyVersionTest, OfAPassThatFitsInPartThereIsNoPatch) {
  reader_.store->fresh_patches().add_taker();
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  make(record);
  nudge("b.safetensors");
  write_text(directory / "b.safetensors", make_safetensors(tensors_.at("b.safetensors")));
  early_->drop(kDirectory, "b.safetensors");
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors", "c.safetensors"}));
  const auto first = reader_.history.get(1, {});
  EXPECT_FALSE(reader_.store->fresh_patches().take({1, first->manifest_sha256}));
}

// The pass that made both noted what changed in the bytes that were saved over.
TEST_F(EarlyVersionTest, WhatWasNotedOfAFileThatWasMadeAgainIsNotBelieved) {
  reader_.store->fresh_patches().add_taker();
  const Path directory = step();
  make(code(directory, all()));
  save_again(directory, "b.safetensors");
  EXPECT_EQ(make(code(directory, {"b.safetensors"})).bytes, bytes_of(directory, {"b.safetensors"}));
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, all()));
  const auto first = reader_.history.get(1, {});
  EXPECT_FALSE(reader_.store->fresh_patches().take({1, first->manifest_sha256}));
}

TEST_F(EarlyVersionTest, WhatWasNotedOfThatFileAloneIsForgotten) {
  reader_.store->fresh_patches().add_taker();
  const Path directory = step();
  make(code(directory, {"b.safetensors"}));
  make(code(directory, {"a.safetensors"}));
  save_again(directory, "b.safetensors");
  make(code(directory, {"b.safetensors"}));
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, {"a.safetensors", "b.safetensors"}));
  expect_noted();
}

// ---- beside others ----

TEST_F(EarlyVersionTest, AVersionWaitsForThePassThatIsRunning) {
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  publish(directory, take());
  bucket_->hang_key("packs/2/");
  std::atomic<bool> is_over = false;
  std::uint64_t made = 0;
  std::thread pass([&] { made = make(record).bytes; });
  EXPECT_TRUE(eventually([&] { return bucket_->waiting() > 0; }));
  EXPECT_FALSE(reader_.store->early_images().begin({2, record.parent_sha256}, ImagesHome::disk,
                                                   reader_.store->temporary_directory(),
                                                   std::stop_source()))
      << "one is running";
  std::thread version([&] {
    reader_.read_version(2);
    is_over = true;
  });
  bucket_->heal();
  pass.join();
  version.join();
  EXPECT_EQ(reader_.read_version(2), read_tree(directory));
  EXPECT_EQ(made, bytes_of(directory, all()));
  EXPECT_EQ(reader_.store->early_images().size_bytes(), 0u);
  EXPECT_EQ(make(record).bytes, 0u) << "the version was claimed";
}

/// A pass that waits for its packs, which nobody answers.
class HangingPass {
 public:
  HangingPass(MemoryBucket& bucket, Host& host, const EarlyRecord& record) {
    for (const EarlyRecord::File& file : record.files) {
      for (const PackRef& pack : file.delta.packs) {
        bucket.hang_key(keys::pack(record.version, pack.name));
      }
    }
    thread_ = std::jthread([&host, record, this](const std::stop_token& stop) {
      const Context context{stop, Clock::time_point::max()};
      code_ = code_of([&] {
        make_early(*host.store, host.history, record, kernels::make_cpu_coder(), context);
      });
      is_over_ = true;
    });
    EXPECT_TRUE(eventually([&] { return bucket.waiting() > 0; }));
  }
  [[nodiscard]] bool is_cancelled() {
    if (!eventually([&] { return is_over_.load(); })) return false;
    return code_ == ErrorCode::cancelled;
  }

 private:
  ErrorCode code_{};
  std::atomic<bool> is_over_ = false;
  std::jthread thread_;
};

TEST_F(EarlyVersionTest, AVersionDoesNotWaitForAPassOfOtherPacks) {
  HangingPass pass(*bucket_, reader_, code(step(), all()));
  static_cast<void>(take());  // that save was given up
  const Path directory = step();
  publish(directory, nullptr);
  EXPECT_EQ(bring(2, directory), 0u);
  EXPECT_TRUE(pass.is_cancelled());
}

TEST_F(EarlyVersionTest, NorForOneOfAnEarlierVersion) {
  const Path second = step();
  HangingPass pass(*bucket_, reader_, code(second, all()));
  static_cast<void>(take());
  publish(second, nullptr);
  const Path third = step();
  publish(third, nullptr);
  EXPECT_EQ(bring(3, third), 0u);
  EXPECT_TRUE(pass.is_cancelled());
}

TEST_F(EarlyVersionTest, AnOldVersionNeitherWaitsNorTakesAnything) {
  const Path directory = step();
  const std::uint64_t made = make(code(directory, all())).bytes;
  EXPECT_EQ(reader_.store->early_images().claim(1, {}, {}), nullptr);
  EXPECT_EQ(reader_.store->early_images().size_bytes(), made);
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), made);
}

// ---- what is left ----

TEST_F(EarlyVersionTest, APassThatFailsLeavesNothing) {
  const Path directory = step(), temporary = dir_ / "reader" / "tmp";
  make(code(directory, {"a.safetensors"}));
  const EarlyRecord record = code(directory, {"b.safetensors", "c.safetensors"});
  const std::string key = keys::pack(2, record.files.at(1).delta.packs.at(0).name);
  const std::string right = bucket_->find(key).value();
  std::string damaged = right;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  bucket_->replace(key, damaged);
  const auto files = [&] { return read_tree(temporary); };
  const auto before = files();
  EXPECT_EQ(before.size(), 1u);
  EXPECT_EQ(code_of([&] { make(record); }), ErrorCode::corrupt);
  EXPECT_EQ(files(), before) << "what was there goes on";
  bucket_->replace(key, right);
  EXPECT_EQ(make(record).bytes, bytes_of(directory, {"b.safetensors", "c.safetensors"}));
  publish(directory, take());
  EXPECT_EQ(bring(2, directory), bytes_of(directory, all()));
}

// To remove a directory may wait for the disk, as a version must not.
TEST_F(EarlyVersionTest, WhatAVersionDidNotTakeGoesWhenItIsShown) {
  const Path directory = step(), temporary = dir_ / "reader" / "tmp";
  EXPECT_GT(make(code(directory, all())).bytes, 0u);
  publish(directory, take());
  EXPECT_GT(bring(2, directory), 0u);
  EXPECT_FALSE(std::filesystem::is_empty(temporary));
  reader_.store->early_images().drop_until(2);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));

  EXPECT_GT(make(code(step(), all())).bytes, 0u);
  static_cast<void>(take());
  const Path other = step();
  publish(other, nullptr);
  EXPECT_EQ(bring(3, other), 0u) << "nothing fits";
  EXPECT_FALSE(std::filesystem::is_empty(temporary));
  reader_.store->early_images().drop();
  EXPECT_TRUE(std::filesystem::is_empty(temporary)) << "somebody needs the room";
}

// A look that waited for the pass before it may come between the poll that found the version and
// its claim.
TEST_F(EarlyVersionTest, ALookLeavesWhatTheVersionIsAboutToClaim) {
  HeadStart start(*reader_.store, reader_.history, kernels::make_cpu_coder());
  const Path directory = step();
  const std::uint64_t made = make(code(directory, all())).bytes;
  publish(directory, take());
  EXPECT_EQ(reader_.history.refresh(1, {}), 2u);
  EXPECT_EQ(reader_.store->manifests().newest().version, 2u);
  EXPECT_EQ(start.look({}), 0u);
  EXPECT_EQ(bring(2, directory), made);
  make(code(step(), all()));
  start.look({});
  EXPECT_GT(reader_.store->early_images().size_bytes(), 0u) << "of the version that comes next";
}

TEST_F(EarlyVersionTest, WhatCameMeanwhileIsLookedForWithoutAnotherPoll) {
  const Path before = step();
  static_cast<void>(code(before, all()));
  publish(before, take());
  reader_.history.refresh(1, {});
  bring(2, before);
  const Path directory = step();
  const EarlyRecord first = code(directory, {"a.safetensors"});
  const EarlyRecord second = code(directory, {"b.safetensors"});
  put_early_record(*reader_.repository, first, {});
  HeadStart start(*reader_.store, reader_.history, kernels::make_cpu_coder());
  bucket_->hang_key("packs/3/");
  start.start();
  start.wake();
  EXPECT_TRUE(eventually([&] { return bucket_->waiting() > 0; }));
  put_early_record(*reader_.repository, second, {});
  bucket_->heal();
  const std::uint64_t both = bytes_of(directory, {"a.safetensors", "b.safetensors"});
  EXPECT_TRUE(eventually([&] { return reader_.store->early_images().size_bytes() == both; }));
  start.stop();
}

// As after kill -9: the process is gone, its files are not.
TEST_F(EarlyVersionTest, ARestartFindsNothingOfIt) {
  const Path directory = step();
  const EarlyRecord record = code(directory, all());
  const Path temporary = dir_ / "other" / "tmp", left = dir_ / "left";
  const auto copy = std::filesystem::copy_options::recursive;
  {
    Host killed(bucket_, dir_ / "other");
    killed.read_version(1);
    make_early(*killed.store, killed.history, record, kernels::make_cpu_coder(), {});
    std::filesystem::copy(temporary, left, copy);
  }
  EXPECT_TRUE(std::filesystem::is_empty(temporary)) << "an orderly end";
  std::filesystem::copy(left, temporary, copy);
  Host again(bucket_, dir_ / "other");
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  publish(directory, take());
  EXPECT_EQ(again.read_version(2), read_tree(directory));
}

}  // namespace
}  // namespace weightfs::test
