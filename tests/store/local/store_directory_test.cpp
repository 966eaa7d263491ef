// What a store that cannot be opened says to do.
#include "store/local/store_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "store/base/error.hpp"
#include "tests/store/local/store_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::code_of;
using test::contains;
using test::StoreFixture;

TEST(StoreRemedy, IsThatOfTheErrnoInWhoseWordsEverItCame) {
  const auto remedy = [](ErrorCode code, const std::string& what) {
    return find_store_remedy(Error(code, what));
  };
  const std::string database = "cannot open the database /s/db: IO error: While lock file: ";
  for (const Error& error :
       {Error(ErrorCode::read_only, "x"), Error(ErrorCode::io, database + "Read-only file system")})
    EXPECT_TRUE(contains(find_store_remedy(error), "writable")) << error.what();
  for (const Error& error :
       {Error(ErrorCode::permission, "x"), Error(ErrorCode::io, database + "Permission denied")})
    EXPECT_TRUE(contains(find_store_remedy(error), "give its files to uid")) << error.what();
  EXPECT_TRUE(contains(remedy(ErrorCode::io, database + "Input/output error"), "dmesg"));
  EXPECT_EQ(remedy(ErrorCode::io, "cannot open x: Too many open files"), "");
  EXPECT_EQ(remedy(ErrorCode::busy, "the store is in use"), "");
  EXPECT_EQ(remedy(ErrorCode::permission, "x; use another --store"), "") << "it says so itself";
}

TEST(StoreRemedy, OnAReadOnlyFileSystemIsToMountItWritable) {
  StoreFixture at;
  at.open();
  const char* const path = at.path.c_str();
  if (::mount(path, path, nullptr, MS_BIND, nullptr) != 0) GTEST_SKIP() << "needs to mount";
  EXPECT_EQ(::mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), 0);
  std::string message;
  EXPECT_EQ(code_of([&] { at.open(); }, &message), ErrorCode::read_only);
  EXPECT_EQ(::umount2(path, MNT_DETACH), 0);
  EXPECT_TRUE(contains(message, "lock: Read-only file system; mount its file system writable"))
      << message;
}

// Of a store that root gave to somebody without its files.
class StoreOfAnotherOwner : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    at_.open();
    for (const fs::path& path : {at_.parent.path(), at_.path}) give(path);
  }

  static void give(const fs::path& path) { EXPECT_EQ(::chown(path.c_str(), 65534, 65534), 0); }

  /// As the one whose store it is.
  std::string error() {
    std::string message;
    EXPECT_EQ(::seteuid(65534), 0);
    static_cast<void>(code_of([&] { at_.open(); }, &message));
    EXPECT_EQ(::seteuid(0), 0);
    return message;
  }

  StoreFixture at_;
};

TEST_F(StoreOfAnotherOwner, AsksForItsFiles) {
  constexpr const char* kAsked = "Permission denied; give its files to uid 65534, or choose ";
  for (const char* name : {"lock", "STORE", "db"}) {
    const std::string message = error();
    EXPECT_TRUE(contains(message, name)) << message;
    EXPECT_TRUE(contains(message, kAsked)) << message;
    give(at_.path / name);
  }
}

TEST(StoreRemedy, OfADamagedMarkerIsToWriteItAgain) {
  StoreFixture at;
  at.open();
  const std::string marker = test::read_text(at.path / "STORE");
  test::write_text(at.path / "STORE", "");
  std::string message;
  EXPECT_EQ(code_of([&] { at.open(); }, &message), ErrorCode::invalid);
  std::string written;
  for (std::size_t line = 0; line < 3; line++) {
    const std::size_t begin = message.find('"') + 1, end = message.find('"', begin);
    ASSERT_NE(end, message.npos) << message;
    written += message.substr(begin, end - begin) + "\n";
    message.erase(0, end + 1);
  }
  EXPECT_EQ(written, marker);
  written.insert(written.find('\n'), " ");
  test::write_text(at.path / "STORE", written);
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::invalid) << "no store of another format";
}

// It was cleared, with the names of all that was staged and the hand-overs that waited.
TEST(StoreRemedy, ARewrittenMarkerGivesNoStoreToAnotherRepository) {
  StoreFixture at;
  test::add_version(*at.open(), 1);
  std::string marker = test::read_text(at.path / "STORE");
  marker.replace(marker.find(test::kStoreId), test::kStoreId.size(), test::kOtherId);
  test::write_text(at.path / "STORE", marker);
  std::string message;
  EXPECT_EQ(code_of([&] { at.open(test::kOtherId); }, &message), ErrorCode::invalid);
  EXPECT_TRUE(contains(message, std::string(test::kStoreId))) << message;
  EXPECT_TRUE(contains(message, "another --store")) << message;
  marker.replace(marker.find(test::kOtherId), test::kOtherId.size(), test::kStoreId);
  test::write_text(at.path / "STORE", marker);
  EXPECT_EQ(at.open()->images().complete_versions(), test::Versions{1});
}

}  // namespace
}  // namespace weightfs
