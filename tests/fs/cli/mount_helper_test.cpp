#include "fs/cli/mount_helper.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fs/cli/parse_options.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

using Words = std::vector<std::string>;

Words helper_words(const Words& arguments) { return parse_mount_helper(arguments).arguments; }

std::string helper_error(const Words& arguments) {
  try {
    parse_mount_helper(arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MountHelper, IsKnownByItsName) {
  EXPECT_TRUE(is_mount_helper("/sbin/mount.weightfs"));
  EXPECT_TRUE(is_mount_helper("mount.weightfs"));
  EXPECT_FALSE(is_mount_helper("weightfs"));
  EXPECT_FALSE(is_mount_helper("/x/mount.weightfs/weightfs"));
}

TEST(MountHelper, OptionsBecomeThoseOfTheCommand) {
  EXPECT_EQ(
      helper_words({"s3://b/p", "/mnt/w", "-o", "rw,writer,store_size=1G,poll=0.5"}),
      (Words{"mount", "--writer", "--store-size=1G", "--poll=0.5", "--", "s3://b/p", "/mnt/w"}));
  EXPECT_EQ(helper_words({"-onodev", "s3://b/p", "-sv", "/mnt/w"}),
            (Words{"mount", "--", "s3://b/p", "/mnt/w"}));
}

TEST(MountHelper, CommasOfAValueAreEscapedOrQuoted) {
  EXPECT_EQ(
      helper_words({"u", "d", "-o", R"(hook="vllm=http://h,kv=keep",store=/a\,b,only=\"x\\)"}),
      (Words{"mount", "--hook=vllm=http://h,kv=keep", "--store=/a,b", "--only=\"x\\", "--", "u",
             "d"}));
  EXPECT_NE(helper_error({"u", "d", "-o", "hook=\"x"}).find("not closed"), std::string::npos);
}

TEST(MountHelper, WhatEveryFileSystemHasIsTaken) {
  EXPECT_EQ(helper_words({"u", "d", "-n", "-t", "weightfs", "-o",
                          "defaults,noauto,_netdev,nofail,user,nosuid,nodev,noexec,noatime,"
                          "x-systemd.requires=a.service,X-mount.mkdir,comment=a"}),
            (Words{"mount", "--", "u", "d"}));
}

TEST(MountHelper, WhatIsUnknownIsAnErrorUnlessSloppy) {
  EXPECT_EQ(helper_error({"u", "d", "-o", "stoer=/x"}),
            "there is no mount option 'stoer'; did you mean store?");
  EXPECT_EQ(helper_words({"u", "d", "-s", "-o", "stoer=/x"}), (Words{"mount", "--", "u", "d"}));
  EXPECT_NE(helper_error({"u", "d", "-o", "remount"}), "");
  EXPECT_NE(helper_error({"u", "d", "-o", "ro,writer"}), "");
  EXPECT_NE(helper_error({"u", "d", "-o", "foreground"}), "");
  EXPECT_NE(helper_error({"u", "d", "-z"}), "");
}

TEST(MountHelper, AnOptionWithoutItsValueIsNamed) {
  EXPECT_EQ(helper_error({"u", "d", "-o", "poll"}),
            "the mount option 'poll' needs a value: poll=SECONDS|auto");
  EXPECT_EQ(helper_error({"u", "d", "-o", "ro,store_size,warm=off"}),
            "the mount option 'store_size' needs a value: store_size=SIZE");
  const std::vector<const char*> argv{"mount.weightfs", "/b", "/m", "-o", "store="};
  EXPECT_EQ(parse_options(static_cast<int>(argv.size()), argv.data()).error,
            "--store needs a path; it is empty (an unset variable?)");
}

TEST(MountHelper, IsTheSameProgramByAnotherName) {
  const std::vector<const char*> argv{"/sbin/mount.weightfs", "/b", "/m", "-f", "-o", "poll=7"};
  const Options options = parse_options(static_cast<int>(argv.size()), argv.data());
  EXPECT_EQ(options.error, "");
  EXPECT_TRUE(options.helper && options.helper->is_fake && !options.helper->is_verbose);
  EXPECT_EQ(options.command, Command::mount);
  EXPECT_EQ(options.host.follow.poll.interval, std::chrono::seconds(7));
  const std::vector<const char*> wrong{"mount.weightfs", "/b"};
  EXPECT_EQ(parse_options(2, wrong.data()).error, "mount needs URL MOUNTPOINT; only /b is given");
}

}  // namespace
}  // namespace weightfs::fs
