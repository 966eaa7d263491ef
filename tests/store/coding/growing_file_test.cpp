#include "store/coding/growing_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "store/publish/pre_encoded.hpp"
#include "tests/store/publish/pre_encoder_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

constexpr const char* kGrowing = "m-2.safetensors";
constexpr const char* kTemporary = ".tmpQ4LQlO";
constexpr std::size_t kLargeElements = 5'000'000;
constexpr std::size_t kElementsOfPieces = 22'000'000;  // of more than two

/// A file, and what a saver has written of it.
class SavedFile {
 public:
  SavedFile(std::filesystem::path path, std::string bytes)
      : path_(std::move(path)),
        bytes_(std::move(bytes)),
        file_(File::open(path_, O_WRONLY | O_CREAT | O_TRUNC)) {}

  /// Writes on, up to an offset.
  void write_to(std::size_t end) {
    write_at(file_.fd(), written_, as_bytes(bytes_).subspan(written_, end - written_), path_);
    written_ = end;
  }
  void write_percent(unsigned percent) { write_to(bytes_.size() * percent / 100); }
  void finish() { write_to(bytes_.size()); }

  /// Writes one byte again, that had another value before.
  void write_again(std::size_t offset) {
    const std::string wrong(1, static_cast<char>(bytes_[offset] ^ 1));
    write_at(file_.fd(), offset, as_bytes(wrong), path_);
  }
  void correct(std::size_t offset) {
    write_at(file_.fd(), offset, as_bytes(bytes_).subspan(offset, 1), path_);
  }
  void close() { file_ = File(); }
  void truncate(std::size_t size) {
    ASSERT_EQ(::ftruncate(file_.fd(), static_cast<off_t>(size)), 0);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::size_t written() const { return written_; }

 private:
  const std::filesystem::path path_;
  const std::string bytes_;
  File file_;
  std::size_t written_ = 0;
};

class GrowingFileTest : public PreEncoderTest {
 protected:
  /// A checkpoint that lacks one file, which is to be written now.
  SavedFile begin_save() {
    publish_first();
    directory_ = save();
    std::string bytes = read_text(directory_ / kGrowing);
    std::filesystem::remove(directory_ / kGrowing);
    return {directory_ / kGrowing, std::move(bytes)};
  }

  /// The same of several files, which grow from now on.
  std::vector<SavedFile> begin_saves(const std::vector<std::string>& names) {
    publish_first();
    directory_ = save();
    std::vector<SavedFile> files;
    for (const std::string& name : names) {
      std::string bytes = read_text(directory_ / name);
      std::filesystem::remove(directory_ / name);
      files.emplace_back(directory_ / name, std::move(bytes));
      grow(name);
    }
    return files;
  }

  [[nodiscard]] EarlyFile file_of(const std::string& path, bool is_written,
                                  std::uint64_t generation = 1) const {
    return {kDirectory, path, directory_ / path, generation, is_written};
  }
  /// The file, which its saver calls something else for the time being.
  [[nodiscard]] EarlyFile named(const std::string& path, bool is_written) const {
    EarlyFile file = file_of(kGrowing, is_written);
    file.path = path;
    return file;
  }
  void make_large(std::size_t elements = kLargeElements) {  // some shows while it is written
    files_[kGrowing] = {make_weights("c", rng_, elements)};
  }
  /// A large file, more than half of which is written and announced.
  SavedFile begin_announced(const std::string& name = kGrowing) {
    make_large(kElementsOfPieces);
    SavedFile file = begin_save();
    early_->add(named(name, true));
    file.write_percent(60);
    EXPECT_TRUE(eventually([&] { return early_->coming().record.has_value(); }));
    return file;
  }
  void grow(const std::string& path = kGrowing) { early_->add(file_of(path, true)); }
  void close(const std::string& path = kGrowing) { early_->add(file_of(path, false)); }

  void wait_for(const std::string& point, const std::string& path = kGrowing) {
    ASSERT_TRUE(eventually([&] { return has_reached(point, path); })) << point << " " << path;
  }
  /// Returns: all packs of the only file that is announced.
  std::vector<PackRef> wait_for_last_piece() {
    std::optional<EarlyRecord> record;
    EXPECT_TRUE(eventually([&] {
      record = early_->coming().record;
      return record && !record->files.front().coded_bytes;
    }));
    return record ? record->files.front().delta.packs : std::vector<PackRef>();
  }
  void wait_until_nothing_grows() {
    ASSERT_TRUE(eventually([&] { return early_->status().growing_files == 0; }));
  }

  /// The growing file is the only one that was coded early.
  void publish_and_expect(SavedFile& file, std::uint64_t early_bytes) {
    file.close();
    EXPECT_EQ(publish(directory_, take()).early_bytes, early_bytes);
    publish_plainly(directory_);
    expect_same(2, directory_);
    expect_sound();
  }

  std::filesystem::path directory_;
};

// ---- whose writer is gone ----

/// Files that were closed have no time to get their names.
class LeftFileTest : public GrowingFileTest {
 protected:
  /// A save under another name, which is being coded.
  SavedFile begin_left(std::chrono::milliseconds patience) {
    SavedFile file = begin_save();
    start([=](EarlyOptions& options) { options.name_patience = patience; });
    early_->add(named(kTemporary, true));
    file.write_percent(60);
    wait_for("growing", kTemporary);
    return file;
  }
  void leave(const std::string& path = kGrowing) { early_->leave(kDirectory, directory_ / path); }
  void forget_reached() {
    const std::lock_guard lock(mutex_);
    reached_.clear();
  }
};

TEST_F(LeftFileTest, IsGivenUpWithoutAName) {
  SavedFile file = begin_left({});
  leave();
  wait_until_nothing_grows();
  forget_reached();
  early_->parent_changed();
  EXPECT_FALSE(
      eventually([&] { return has_reached("begin", kTemporary); }, std::chrono::milliseconds(200)))
      << "soon, if at all";
  early_->add(named(kTemporary, true));  // somebody opened it
  wait_for("growing", kTemporary);
  file.finish();
  close();
  wait_for("uploaded");
  publish_and_expect(file, file.size());
}

TEST_F(LeftFileTest, IsGivenUpAlsoAgainstTheNextVersion) {
  SavedFile file = begin_left({});
  leave();
  wait_until_nothing_grows();
  const auto other = save();
  publish(other, nullptr);
  forget_reached();
  EXPECT_FALSE(
      eventually([&] { return has_reached("begin", kTemporary); }, std::chrono::milliseconds(200)))
      << "soon, if at all";
}

TEST_F(LeftFileTest, StaysWhileAnotherIsWrittenBesideIt) {
  std::vector<SavedFile> files = begin_saves({kGrowing, "m-1.safetensors"});
  start([](EarlyOptions& options) { options.name_patience = {}; });
  for (SavedFile& file : files) {
    grow(file.path().filename());
    file.write_percent(60);
    wait_for("growing", file.path().filename());
  }
  const auto growing = [&] { return early_->status().growing_files; };
  leave(kGrowing);
  EXPECT_FALSE(eventually([&] { return growing() < 2; }, std::chrono::milliseconds(200)))
      << "soon, if at all";
  leave("m-1.safetensors");
  wait_until_nothing_grows();
}

TEST_F(LeftFileTest, WhoNamesItInTimeFindsItCoded) {
  SavedFile file = begin_left(std::chrono::hours(1));
  file.finish();
  file.close();
  leave();
  close();
  wait_for("uploaded");
  publish_and_expect(file, file.size());
}

// ---- the file ----

TEST_F(GrowingFileTest, IsCodedWhileItIsWritten) {
  SavedFile file = begin_save();
  grow();
  EXPECT_EQ(early_->status().growing_files, 0u) << "there is nothing of it";
  file.write_percent(50);
  wait_for("growing");
  EXPECT_EQ(early_->status().growing_files, 1u);
  EXPECT_EQ(early_->status().waiting_files, 0u);
  file.finish();
  wait_for("grown");
  EXPECT_EQ(early_->status().coded_files, 0u) << "it may be written again";
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  EXPECT_EQ(early_->status().uploaded_bytes, file.size());
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, BeginsWithAHeaderThatComesInPieces) {
  for (int i = 0; i < 300; i++) {  // a header of more than kEarlyBytesMin
    files_[kGrowing].push_back(make_weights(std::string(4000, 'n') + std::to_string(i), rng_, 10));
  }
  SavedFile file = begin_save();
  grow();
  file.write_percent(24);
  wait_for("begin");
  EXPECT_EQ(early_->status().growing_files, 0u);
  file.write_percent(60);
  wait_for("growing");
  file.finish();
  wait_for("grown");
  close();
  wait_for("uploaded");
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, WhatIsWrittenAgainIsCodedAgain) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(70);
  file.write_again(file.written() - 100'000);
  wait_for("growing");
  file.finish();
  wait_for("grown");
  file.correct(file.size() * 70 / 100 - 100'000);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, 0u);
  EXPECT_EQ(early_->status().coded_bytes, file.size());
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, AHeaderThatIsWrittenAgainCountsToo) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(70);
  wait_for("growing");
  file.finish();
  wait_for("grown");
  std::string other = read_text(file.path());
  const std::size_t name = other.find("\"c\"");
  ASSERT_NE(name, std::string::npos);
  other[name + 1] = 'e';
  write_text(file.path(), other);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, 0u);
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneWhoseSizeIsSetFirstIsCodedWhileItIsWritten) {
  make_large();
  SavedFile file = begin_save();
  file.truncate(file.size());
  grow();
  wait_for("begin");
  file.write_percent(70);
  wait_for("growing");
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  publish_and_expect(file, file.size());
}

// Only then are its last bytes known to be there.
TEST_F(GrowingFileTest, WhoWaitsForItsEndGoesOnWhenItIsClosed) {
  make_large();
  SavedFile file = begin_save();
  start([](EarlyOptions& options) {
    options.growth_pauses = {std::chrono::hours(1), std::chrono::hours(1)};
  });
  file.truncate(file.size());
  file.write_percent(70);
  grow();
  wait_for("waiting");
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatIsFullIsLeftUntilItIsClosed) {
  SavedFile file = begin_save();
  file.finish();
  grow();
  ASSERT_TRUE(eventually([&] { return has_reached("begin", kGrowing); }));
  close();
  wait_for("uploaded");
  EXPECT_FALSE(has_reached("growing", kGrowing));
  EXPECT_EQ(early_->status().grown_bytes, 0u);
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatStaysShortIsLeft) {
  SavedFile file = begin_save();
  file.write_to(1000);
  grow();
  close("m-1.safetensors");
  wait_for("uploaded", "m-1.safetensors");
  EXPECT_FALSE(has_reached("begin", kGrowing));
  file.finish();
  close();
  wait_for("uploaded");
}

// ---- its name ----

TEST_F(GrowingFileTest, OneThatGetsItsNameWithTheCloseIsCodedByIt) {
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(50);
  wait_for("growing", kTemporary);
  file.finish();
  wait_for("grown", kTemporary);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  ASSERT_TRUE(early_->coming().record);
  EXPECT_EQ(early_->coming().record->files.front().path, kGrowing);
  publish_and_expect(file, file.size());
}

// Readers begin with it, and publish() has its packs already.
TEST_F(GrowingFileTest, IsAnnouncedInPiecesByTheNameThatItWillHave) {
  make_large(kElementsOfPieces);
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  std::vector<PackRef> told;
  std::uint64_t coded_bytes = 0;
  for (const unsigned percent : {60u, 90u}) {
    file.write_percent(percent);
    EarlyRecord record;
    ASSERT_TRUE(eventually([&] {
      const EarlyComing coming = early_->coming();
      if (!coming.record) return false;
      record = *coming.record;
      return record.files.front().coded_bytes.value_or(0) > coded_bytes;
    })) << percent;
    ASSERT_EQ(record.files.size(), 1u);
    EXPECT_EQ(record.files[0].path, kGrowing);
    EXPECT_GT(record.files[0].delta.packs.size(), told.size());
    EXPECT_LE(*record.files[0].coded_bytes, file.written());
    coded_bytes = *record.files[0].coded_bytes;
    told = record.files[0].delta.packs;
  }
  file.finish();
  close();
  wait_for("uploaded");
  const EarlyRecord whole = early_->coming().record.value();
  EXPECT_FALSE(whole.files.front().coded_bytes);
  EXPECT_TRUE(
      std::ranges::equal(std::span(whole.files.front().delta.packs).first(told.size()), told));
  file.close();
  publish(directory_, take());
  const auto version = host_.history.get(2, {});
  for (const PackRef& pack : whole.files.front().delta.packs) {
    EXPECT_EQ(std::ranges::count(version->manifest.delta->packs, pack), 1) << pack.name;
  }
  expect_sound();
}

// What is left of it when the version is published is to compare its bytes.
TEST_F(GrowingFileTest, ItsLastPieceIsAnnouncedBeforeItIsClosed) {
  SavedFile file = begin_announced(kTemporary);
  file.finish();
  const std::vector<PackRef> told = wait_for_last_piece();
  EXPECT_FALSE(has_reached("uploaded", kGrowing));
  EXPECT_EQ(early_->status().growing_files, 1u);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->coming().record->files.front().delta.packs, told);
  publish_and_expect(file, file.size());
  EXPECT_EQ(host_.history.get(2, {})->manifest.delta->packs.back(), told.back());
}

TEST_F(GrowingFileTest, OneThatIsWrittenAgainAfterItsLastPieceWasAnnouncedIsCodedAgain) {
  SavedFile file = begin_announced();
  file.finish();
  const std::vector<PackRef> told = wait_for_last_piece();
  file.write_again(file.size() - 1);
  close();
  wait_for("uploaded");
  EXPECT_NE(early_->coming().record->files.front().delta.packs, told);
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatMayBecomeEitherOfTwoIsNotAnnouncedBefore) {
  make_large(kElementsOfPieces);
  files_["n.safetensors"] = {make_weights("c", rng_, kElementsOfPieces)};
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(60);
  wait_for("growing", kTemporary);
  file.finish();
  wait_for("grown", kTemporary);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  EXPECT_EQ(early_->coming().record.value().files.front().delta.packs.size(), 1u) << "no pieces";
}

TEST_F(GrowingFileTest, APieceThatTheBucketRefusesIsUploadedWithTheRest) {
  make_large(kElementsOfPieces);
  SavedFile file = begin_save();
  bucket_->fail_key("packs/", ErrorCode::unavailable);
  grow();
  file.write_percent(60);
  ASSERT_TRUE(eventually([&] { return bucket_->failures() > 0; }));
  bucket_->heal();
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->coming().record.value().files.front().delta.packs.size(), 3u);
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatEndsEarlyIsAnnouncedNoMore) {
  SavedFile file = begin_announced();
  close();  // too soon
  ASSERT_TRUE(eventually([&] { return !early_->coming().record; }));
  file.finish();
  close();
  wait_for("uploaded");
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatGetsANameOfItsOwnIsAnnouncedNoMore) {
  SavedFile file = begin_announced(kTemporary);
  file.finish();
  EarlyFile closed = file_of(kGrowing, false);
  closed.path = "new.safetensors";
  early_->add(closed);
  ASSERT_TRUE(eventually([&] { return !early_->coming().record; }));
  file.close();
  std::filesystem::rename(directory_ / kGrowing, directory_ / "new.safetensors");
  publish(directory_, take());
  publish_plainly(directory_);
  expect_same(2, directory_);
  expect_sound();
}

TEST_F(GrowingFileTest, OneThatIsRenamedWhileItIsWrittenGoesOn) {
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(50);
  wait_for("growing", kTemporary);
  early_->add(named("other.safetensors", true));
  early_->add(named(kGrowing, true));
  early_->drop(kDirectory, kTemporary);
  EXPECT_EQ(early_->status().growing_files, 1u);
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatIsRenamedTakesThePlaceOfAnother) {
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(50);
  wait_for("growing", kTemporary);
  EarlyFile other = file_of("m-1.safetensors", false);
  other.path = kGrowing;
  early_->add(other);
  wait_for("coded");
  file.finish();
  early_->add(named(kGrowing, true));
  close();
  ASSERT_TRUE(eventually([&] { return early_->status().coded_bytes == file.size(); }));
  publish_and_expect(file, file.size());
}

/// Two files have tensors of the same names, and differ: a tensor is coded against that of the file
/// of the same path, or else of another one in its folder.
TEST_F(GrowingFileTest, OneThatIsCodedAgainstOtherTensorsByItsNameIsCodedAgain) {
  files_["m-1.safetensors"] = {make_weights("c", rng_, 3 * kEarlyElements)};
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(50);
  wait_for("growing", kTemporary);
  file.finish();
  wait_for("grown", kTemporary);
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, 0u);
  EXPECT_EQ(early_->status().coded_bytes, file.size());
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatComesFromAnotherFolderIsCodedAgain) {
  SavedFile file = begin_save();
  early_->add(named("sub/" + std::string(kTemporary), true));
  file.write_percent(50);
  wait_for("growing", "sub/" + std::string(kTemporary));
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, 0u);
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatIsClosedByAnotherNameWaitsForIt) {
  SavedFile file = begin_save();
  early_->add(named(kTemporary, true));
  file.write_percent(50);
  wait_for("growing", kTemporary);
  file.finish();
  wait_for("grown", kTemporary);
  early_->add(named(kTemporary, false));  // ignored
  EXPECT_EQ(early_->status().growing_files, 1u);
  EXPECT_TRUE(early_->close(file_of(kGrowing, false)));
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatIsNoSafetensorsFileIsLeft) {
  SavedFile file = begin_save();
  write_text(directory_ / "x.safetensors", std::string(2u << 20, '\0'));
  early_->add(file_of("x.safetensors", true));
  wait_for("begin", "x.safetensors");
  std::filesystem::remove(directory_ / "x.safetensors");
  early_->drop(kDirectory, "x.safetensors");
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_FALSE(has_reached("growing", "x.safetensors"));
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, OneThatEndsEarlyIsNoFile) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  close();
  ASSERT_TRUE(eventually([&] { return early_->status().waiting_files == 0; }));
  EXPECT_EQ(early_->status().coded_files, 0u);
  EXPECT_TRUE(take()->empty());
}

TEST_F(GrowingFileTest, OneThatIsCutIsNoFile) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(80);
  wait_for("growing");
  file.truncate(1000);
  close();
  ASSERT_TRUE(eventually([&] { return early_->status().waiting_files == 0; }));
  EXPECT_TRUE(take()->empty());
}

TEST_F(GrowingFileTest, HasHashesComparesEveryChunk) {
  publish_first();
  directory_ = save();
  const Checkpoint checkpoint = scan_one_file(directory_ / kGrowing, kGrowing);
  const auto layout = Layout::from_checkpoint(checkpoint);
  const CheckpointReader reader(checkpoint, *layout);
  std::vector<std::uint64_t> hashes = hash_checkpoint(reader, {}, 0, {}, {}).chunks;
  EXPECT_TRUE(has_hashes(reader, hashes, 0, {}));
  for (std::uint64_t& hash : hashes) {
    hash ^= 1;
    EXPECT_FALSE(has_hashes(reader, hashes, 0, {}));
    hash ^= 1;
  }
}

// ---- others ----

TEST_F(GrowingFileTest, OneThatIsCompleteIsCodedBesideIt) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  close("m-1.safetensors");
  wait_for("uploaded", "m-1.safetensors");
  EXPECT_FALSE(has_reached("grown", kGrowing));
  file.finish();
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, file.size());
  EXPECT_EQ(early_->status().coded_files, 2u);
}

TEST_F(GrowingFileTest, FilesThatAreCompleteAreCodedOneAfterAnother) {
  SavedFile file = begin_save();
  bucket_->hang_key("packs/");
  close("m-1.safetensors");
  wait_for("coded", "m-1.safetensors");
  close("sub/m.safetensors");
  grow();
  file.write_percent(50);
  wait_for("growing");
  EXPECT_FALSE(has_reached("begin", "sub/m.safetensors")) << "it would have begun before that one";
  bucket_->heal();
  wait_for("uploaded", "sub/m.safetensors");
}

TEST_F(GrowingFileTest, FilesThatRanksWriteSideBySideAreAnnouncedInPieces) {
  const std::vector<std::string> names = {"m-1.safetensors", kGrowing};
  for (const std::string& name : names) {
    files_[name] = {make_weights(name, rng_, kElementsOfPieces)};
  }
  auto files = begin_saves(names);
  for (auto& file : files) file.write_percent(60);
  ASSERT_TRUE(eventually([&] {
    const auto record = early_->coming().record;
    return record && record->files.size() == 2 && record->files[0].coded_bytes &&
           record->files[1].coded_bytes;
  }));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); i++) {
    files[i].finish();
    files[i].close();
    close(names[i]);
    bytes += files[i].size();
  }
  for (const std::string& name : names) wait_for("uploaded", name);
  EXPECT_EQ(early_->status().grown_bytes, bytes);
  EXPECT_EQ(publish(directory_, take()).early_bytes, bytes);
  publish_plainly(directory_);
  expect_same(2, directory_);
  expect_sound();
}

TEST_F(GrowingFileTest, AsManyGrowAsAHostHasRanks) {
  constexpr std::size_t kRanks = 10, kMost = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRanks; i++) {
    names.push_back(fmt::format("rank-{}.safetensors", i));
    files_[names.back()] = {make_weights(names.back(), rng_)};
  }
  auto files = begin_saves(names);
  for (auto& file : files) file.write_to(kEarlyBytesMin + 1000);
  ASSERT_TRUE(eventually([&] { return early_->status().growing_files == kMost; }));
  EXPECT_EQ(count_of("begin"), kMost);
  for (std::size_t i = 0; i < kRanks; i++) {
    if (i == 2) {  // the place of each that is closed is taken by another
      ASSERT_TRUE(eventually([&] { return count_of("growing") == kRanks; }));
    }
    files[i].finish();
    files[i].close();
    close(names[i]);
  }
  for (const std::string& name : names) wait_for("uploaded", name);
  EXPECT_EQ(early_->status().grown_bytes, early_->status().uploaded_bytes);
  publish(directory_, take());
  publish_plainly(directory_);
  expect_same(2, directory_);
}

TEST_F(GrowingFileTest, IsBegunAgainWhenTheParentIsAnotherOne) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  parent_ = -1;
  early_->parent_changed();
  wait_until_nothing_grows();
  parent_ = 1;
  {
    const std::lock_guard lock(mutex_);
    reached_.clear();
  }
  file.finish();
  close();
  early_->parent_changed();
  wait_for("uploaded");
  publish_and_expect(file, file.size());
}

TEST_F(GrowingFileTest, IsNotBegunAgainBeforeTheWorkAgainstTheOtherParentHasEnded) {
  std::atomic<bool> is_held = true;
  std::atomic<int> begun = 0;
  publish_first();
  start([&](EarlyOptions& options) {
    options.at = [&, reached = options.at](std::string_view point, const std::string& path) {
      if (path == kGrowing && point == "begin") begun++;
      reached(point, path);
      if (path == kGrowing && point == "growing") {
        eventually([&] { return !is_held; });
      }
    };
  });
  const auto second = save();
  directory_ = save();
  std::string bytes = read_text(directory_ / kGrowing);
  std::filesystem::remove(directory_ / kGrowing);
  SavedFile file(directory_ / kGrowing, std::move(bytes));
  grow();
  file.write_percent(50);
  wait_for("growing");
  publish(second, nullptr);  // the parent is another one
  close("m-1.safetensors");
  wait_for("uploaded", "m-1.safetensors");
  EXPECT_EQ(begun, 1);
  is_held = false;
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  file.finish();
  close();
  wait_for("uploaded");
  file.close();
  const auto early = take();
  EXPECT_GE(early->bytes(), file.size());
  EXPECT_EQ(publish(directory_, early).early_bytes, early->bytes());
}

TEST_F(GrowingFileTest, IsNotBegunForAFirstVersion) {
  start();
  directory_ = save();
  grow();
  close("m-1.safetensors");
  wait_for("uploaded", "m-1.safetensors");
  EXPECT_FALSE(has_reached("growing", kGrowing));
  close();
  wait_for("uploaded");
  EXPECT_EQ(early_->status().grown_bytes, 0u);
}

// ---- the hand-over ----

TEST_F(GrowingFileTest, AHandOverTakesWhatIsClosedOnlyNow) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  file.finish();
  EXPECT_TRUE(early_->close(file_of(kGrowing, false)));
  publish_and_expect(file, file.size());  // without waiting for "grown"
}

TEST_F(GrowingFileTest, AHandOverDoesNotWaitForOneThatWasNotClosed) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  EXPECT_TRUE(take()->empty());
  file.finish();
  publish_and_expect(file, 0);
}

TEST_F(GrowingFileTest, AHandOverDoesNotCodeAgainWhatWasWrittenAgain) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(70);
  file.write_again(file.written() - 100'000);
  wait_for("growing");
  file.finish();
  wait_for("grown");
  file.correct(file.size() * 70 / 100 - 100'000);
  EXPECT_TRUE(early_->close(file_of(kGrowing, false)));
  publish_and_expect(file, 0);
}

TEST_F(GrowingFileTest, OnlyOneThatGrowsIsClosed) {
  SavedFile file = begin_save();
  EXPECT_FALSE(early_->close(file_of(kGrowing, false)));
  grow();
  EXPECT_FALSE(early_->close(file_of(kGrowing, false))) << "it has not begun";
  file.write_percent(50);
  wait_for("growing");
  EXPECT_FALSE(early_->close(file_of("m-1.safetensors", false)));
  file.finish();
  EXPECT_TRUE(early_->close(file_of(kGrowing, false)));
  EXPECT_FALSE(early_->close(file_of(kGrowing, false))) << "it is closed";
}

TEST_F(GrowingFileTest, EndsWhereItIsDropped) {
  SavedFile file = begin_save();
  grow();
  file.write_percent(50);
  wait_for("growing");
  early_->drop(kDirectory, kGrowing);
  ASSERT_TRUE(eventually([&] { return early_->status().growing_files == 0; }));
  close("m-1.safetensors");
  wait_for("uploaded", "m-1.safetensors");
}

/// Savers that write in pieces of any size, in some other order, or again.
TEST_F(GrowingFileTest, GivesTheSameVersionsHoweverFilesAreWritten) {
  make_large();
  start();
  note();
  const auto chance = [&](unsigned percent) { return rng_() % 100 < percent; };
  std::uint64_t grown_bytes = 0;
  for (std::uint64_t version = 1; version <= 10; version++) {
    directory_ = save();
    for (const std::string& path : paths()) {
      std::string bytes = read_text(directory_ / path);
      std::filesystem::remove(directory_ / path);
      SavedFile file(directory_ / path, std::move(bytes));
      if (chance(30)) file.truncate(file.size());
      EarlyFile growing = file_of(path, true);
      if (chance(50))
        growing.path = (chance(50) ? "sub/." : ".") + path.substr(path.rfind('/') + 1);
      early_->add(growing);
      while (file.written() < file.size()) {
        const std::size_t piece = 1 + rng_() % (file.size() / 3);
        file.write_to(std::min(file.size(), file.written() + piece));
        const std::size_t again = rng_() % file.written();
        const bool is_again = chance(5);
        if (is_again) file.write_again(again);
        if (chance(30)) {
          eventually([&] { return early_->status().growing_files == 1; },
                     std::chrono::milliseconds(100));
        }
        if (is_again) file.correct(again);
      }
      if (chance(30)) early_->add(file_of(path, true));
      if (chance(80)) close(path);
    }
    if (chance(50)) {
      ASSERT_TRUE(eventually([&] { return early_->status().waiting_files == 0; }));
    }
    for (const std::string& path : paths()) early_->close(file_of(path, false));
    const auto results = take();
    publish(directory_, results);
    publish_plainly(directory_);
    expect_same(version, directory_);
    nudge_all(files_, rng_);
    grown_bytes += results->bytes();
  }
  EXPECT_GT(grown_bytes, 0u);
  expect_sound();
}

}  // namespace
}  // namespace weightfs::test
