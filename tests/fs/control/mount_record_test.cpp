#include "fs/control/mount_record.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::TempDir;

TEST(ShellLine, QuotesWhatAShellWouldTakeApart) {
  EXPECT_EQ(shell_line({"weightfs", "mount", "s3://b/p", "/mnt/w", "--only=*-00003-of-*"}),
            "weightfs mount s3://b/p /mnt/w '--only=*-00003-of-*'");
  EXPECT_EQ(shell_line({"it's", "", "a b", "$HOME", "~", "x;y"}),
            "'it'\\''s' '' 'a b' '$HOME' '~' 'x;y'");
}

TEST(MountRecordTest, OfNobodyIsWhatTheMountItselfTells) {
  const MountInfo mount{"/absent/a b", "fuse.weightfs", "file:///bucket"};
  EXPECT_FALSE(find_mount_record(mount.path));
  EXPECT_EQ(mount_again_command(mount),
            "weightfs mount file:///bucket '/absent/a b' (with its original options)");
}

TEST(MountRecordTest, LastsAsLongAsTheMount) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: /run/weightfs";
  const TempDir temp;
  const MountInfo mount{temp.path(), "fuse.weightfs", "file:///bucket"};
  {
    const MountRecordFile file({temp.path(), ::getpid(), "weightfs mount x y --writer", {}});
    EXPECT_EQ(mount_again_command(mount), "weightfs mount x y --writer");
    {
      const MountRecordFile next({temp.path(), 1, "weightfs mount of the next", {}});
      EXPECT_EQ(find_mount_record(temp.path())->pid, 1);
    }
    EXPECT_FALSE(find_mount_record(temp.path()));
    const MountRecordFile again({temp.path(), 1, "weightfs mount of the next", {}});
  }
  EXPECT_FALSE(find_mount_record(temp.path()));
}

TEST(MountRecordTest, OfAnotherDaemonIsLeftAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: /run/weightfs";
  const TempDir temp;
  auto mine = std::make_unique<MountRecordFile>(MountRecord{temp.path(), ::getpid(), "mine", {}});
  const MountRecordFile next({temp.path(), 1, "the next", {}});
  mine.reset();
  EXPECT_EQ(find_mount_record(temp.path())->command, "the next");
}

TEST(MountRecordTest, OfASyncStaysInItsDirectory) {
  const TempDir temp;
  std::filesystem::create_directories(temp / ".weightfs");
  const MountInfo directory{temp.path(), "directory", "file:///bucket"};
  EXPECT_NE(sync_again_command(directory).find("weightfs sync file:///bucket"), std::string::npos);
  write_sync_command(temp.path(), "weightfs sync file:///bucket DIR --follow=canary");
  EXPECT_EQ(sync_again_command(directory), "weightfs sync file:///bucket DIR --follow=canary");
}

}  // namespace
}  // namespace weightfs::fs
