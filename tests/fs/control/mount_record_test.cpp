#include "fs/control/mount_record.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "store/base/error.hpp"
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

TEST(MountRecordTest, WithWordsTheMessageIsOneShortLine) {
  const TempDir temp;
  ::setenv("XDG_RUNTIME_DIR", temp.path().c_str(), 1);  // for users other than root
  MountRecord record{temp / "a b", ::getpid(), "weightfs mount x y", {}, {"mount", "x", "y"}};
  record.environment["AWS_PROFILE"] = "p";
  record.secrets = {"HF_TOKEN"};
  const MountRecordFile file(record);
  const MountInfo mount{temp / "a b", "fuse.weightfs", "file:///bucket"};
  EXPECT_EQ(mount_again_command(mount), "weightfs mount --again '" + (temp / "a b").string() + "'");
  const auto found = find_mount_record(temp / "a b");
  EXPECT_EQ(found->words, record.words);
  EXPECT_EQ(found->environment, record.environment);
  EXPECT_EQ(found->secrets, record.secrets);
}

TEST(MountRecordTest, KeepsNoSecretOfTheEnvironment) {
  const std::map<std::string, std::string> variables{{"AWS_SECRET_ACCESS_KEY", "hush"},
                                                     {"AWS_PROFILE", "p"},
                                                     {"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"},
                                                     {"AWS_SECRET_KEY", "hush"},
                                                     {"AWS_BEARER_TOKEN_BEDROCK", "hush"},
                                                     {"CURL_CA_BUNDLE", "/ca"},
                                                     {"HTTPS_PROXY", "http://me:hush@proxy"},
                                                     {"HF_TOKEN", "hush"}};
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  MountRecord record{"/mnt/w", 1, "", {}};
  record_environment(record);
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  EXPECT_EQ(record.environment.at("AWS_PROFILE"), "p");
  EXPECT_EQ(record.environment.at("AWS_WEB_IDENTITY_TOKEN_FILE"), "/t");
  EXPECT_EQ(record.environment.at("CURL_CA_BUNDLE"), "/ca");
  for (const auto& [name, value] : record.environment) {
    EXPECT_EQ(value.find("hush"), std::string::npos) << name;
  }
  EXPECT_EQ(record.secrets,
            (std::vector<std::string>{"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HTTPS_PROXY"}));
  EXPECT_THROW(restore_environment(record), Error);
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
