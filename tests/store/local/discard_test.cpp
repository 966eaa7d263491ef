#include "store/local/discard.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::write_text;

class DiscardTest : public testing::Test {
 protected:
  DiscardTest() { fs::create_directories(temporary()); }

  [[nodiscard]] fs::path temporary() const { return dir_.path() / "tmp"; }
  [[nodiscard]] fs::path tree() const { return dir_.path() / "tree"; }

  /// So large that it is removed beside others; all holes.
  static void make_large(const fs::path& path) {
    write_text(path, "x");
    fs::resize_file(path, 17u << 20);
  }

  TempDir dir_;
};

TEST_F(DiscardTest, RemovesLargeFilesInAllFolders) {
  fs::create_directories(tree() / "a" / "b");
  for (const char* name : {"1", "2", "a/3", "a/b/4", "a/b/5", "a/b/6"}) make_large(tree() / name);
  write_text(tree() / "a" / "small", "x");
  fs::permissions(tree() / "a" / "b", fs::perms::owner_read | fs::perms::owner_exec);
  discard(tree(), temporary());
  EXPECT_FALSE(fs::exists(tree()));
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(DiscardTest, LeavesWhatLinksLeadTo) {
  fs::create_directories(tree());
  fs::create_directories(dir_.path() / "other");
  for (const char* name : {"1", "2"}) {
    make_large(dir_.path() / "other" / name);
    fs::create_symlink(dir_.path() / "other" / name, tree() / name);
  }
  fs::create_directory_symlink(dir_.path() / "other", tree() / "folder");
  discard(tree(), temporary());
  EXPECT_FALSE(fs::exists(tree()));
  EXPECT_TRUE(fs::is_empty(temporary()));
  EXPECT_TRUE(fs::exists(dir_.path() / "other" / "1"));
  EXPECT_TRUE(fs::exists(dir_.path() / "other" / "2"));
}

TEST_F(DiscardTest, RemovesASingleFile) {
  make_large(tree());
  discard(tree(), temporary());
  EXPECT_FALSE(fs::exists(tree()));
  EXPECT_TRUE(fs::is_empty(temporary()));
  discard(tree(), temporary());  // nothing is there
}

}  // namespace
}  // namespace weightfs
