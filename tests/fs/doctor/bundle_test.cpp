#include "fs/doctor/bundle.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "fs/doctor/scrubber.hpp"
#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using namespace std::string_literals;

TEST(Scrubber, ReplacesEachSecretWhereverItStands) {
  Scrubber scrubber;
  scrubber.add(" s3cr/et+value\n");
  EXPECT_EQ(scrubber.scrub("a s3cr/et+value, and s3cr%2Fet%2Bvalue; s3cr/et+values3cr/et+value"),
            "a [removed], and [removed]; [removed][removed]");
  EXPECT_EQ(scrubber.scrub("s3cr"), "s3cr");
}

TEST(Scrubber, TheLongerSecretIsReplacedWhole) {
  Scrubber scrubber;
  scrubber.add("password");
  scrubber.add("password-of-mine");
  EXPECT_EQ(scrubber.scrub("password-of-mine password"), "[removed] [removed]");
}

TEST(Scrubber, APlaceholderIsNoSecret) {
  Scrubber scrubber;
  scrubber.add("");
  scrubber.add("true");
  EXPECT_EQ(scrubber.scrub("it is true"), "it is true");
}

TEST(Scrubber, OfTheEnvironmentTheNamesDecide) {
  Scrubber scrubber;
  scrubber.add_environment(
      "AWS_SECRET_ACCESS_KEY=canary-1\0db_password=canary-2\0PATH=/usr/bin\0HF_TOKEN=canary-3\0"
      "BROKEN\0X_AUTH_HEADER=canary-4"s);
  EXPECT_EQ(scrubber.scrub("canary-1 canary-2 canary-3 canary-4 /usr/bin BROKEN"),
            "[removed] [removed] [removed] [removed] /usr/bin BROKEN");
}

TEST(Scrubber, OfAFileOfValuesAllAre) {
  Scrubber scrubber;
  scrubber.add_values("[default]\naws_access_key_id = \"AKIACANARY\"\nother=plain-canary\n");
  EXPECT_EQ(scrubber.scrub("AKIACANARY plain-canary default"), "[removed] [removed] default");
}

TEST(Scrubber, OfUrlsWhoLogsInAndTheQueryGo) {
  const Scrubber scrubber;
  EXPECT_EQ(scrubber.scrub("http://me:pw@proxy:3128/ s3://bucket/a@b http://h/x?sig=abc,every=2"),
            "http://[removed]@proxy:3128/ s3://bucket/a@b http://h/x?[removed],every=2");
  EXPECT_EQ(scrubber.scrub(R"({"url":"https://u@h/p?q=1#f"} ://)"),
            R"({"url":"https://[removed]@h/p?[removed]#f"} ://)");
  EXPECT_EQ(scrubber.scrub("is it http://h/x ? yes"), "is it http://h/x ? yes");
  EXPECT_EQ(scrubber.scrub("Authorization: Bearer abc.def\nnext"),
            "Authorization: Bearer [removed]\nnext");
}

TEST(Bundle, IsWhatTarReads) {
  const test::TempDir dir;
  const std::string large(3000, 'x');
  write_file(dir / "b.tar.gz",
             pack_bundle({{"one.txt", "1\n"}, {"empty", ""}, {"large", large}}, "bundle", 1'000));
  const std::string tar =
      "tar -xf '" + (dir / "b.tar.gz").string() + "' -C '" + dir.path().string() + "'";
  ASSERT_EQ(std::system(tar.c_str()), 0);
  EXPECT_EQ(test::read_text(dir / "bundle/one.txt"), "1\n");
  EXPECT_EQ(test::read_text(dir / "bundle/empty"), "");
  EXPECT_EQ(test::read_text(dir / "bundle/large"), large);
}

TEST(Bundle, OfTheHostAloneHasWhatDoctorFound) {
  const BundleFiles files = collect_bundle({.doctor_text = "found\n", .doctor_json = "{}"});
  EXPECT_EQ(files.at("doctor.txt"), "found\n");
  EXPECT_NE(files.at("host.txt").find("MemAvailable"), std::string::npos);
  EXPECT_NE(files.at("README").find("look before you send it"), std::string::npos);
  EXPECT_FALSE(files.contains("status.json"));
}

TEST(Bundle, WhatCannotBeReadSaysWhy) {
  const test::TempDir dir;
  test::write_text(dir / "bad.toml", "= nothing\n");
  test::write_text(dir / "good.toml",
                   "poll = 2\n[mount]\nhook = \"http=http://h/x?key=canary,every=2\"\n");
  const BundleFiles files =
      collect_bundle({.mount_point = dir / "nothing",
                      .configs = {dir / "bad.toml", dir / "good.toml", dir / "none.toml"}});
  EXPECT_NE(files.at("config-1.txt").find("cannot be read: "), std::string::npos);
  EXPECT_NE(files.at("config-2.txt").find("mount.hook = http=http://h/x\npoll = 2\n"),
            std::string::npos)
      << files.at("config-2.txt");
  EXPECT_NE(files.at("config-3.txt").find("cannot be read: "), std::string::npos);
  EXPECT_NE(files.at("status.json").find("cannot be read: "), std::string::npos);
  EXPECT_NE(files.at("command.txt").find("no record"), std::string::npos);
}

}  // namespace
}  // namespace weightfs::fs
