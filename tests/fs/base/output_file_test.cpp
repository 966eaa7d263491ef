#include "fs/base/output_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <string>

#include "store/os/file.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using test::read_text;
using test::TempDir;
using test::write_text;

TEST(OutputFile, IsMadeWithItsMode) {
  const TempDir dir;
  write_output(dir / "file", "bytes", 0600);
  EXPECT_EQ(read_text(dir / "file"), "bytes");
  struct stat attributes {};
  ASSERT_EQ(::stat((dir / "file").c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 0777, 0600u);
}

TEST(OutputFile, AFileIsReplacedAsAWhole) {
  const TempDir dir;
  write_text(dir / "file", "longer than what comes");
  const File reader = File::open(dir / "file", O_RDONLY);
  write_output(dir / "file", "bytes");
  EXPECT_EQ(read_text(dir / "file"), "bytes");
  struct stat attributes {};
  ASSERT_EQ(::fstat(reader.fd(), &attributes), 0);
  EXPECT_EQ(attributes.st_nlink, 0u);  // who reads it has the old one
}

TEST(OutputFile, ALinkStaysAndItsFileIsReplaced) {
  const TempDir dir;
  write_text(dir / "place/file", "old");
  stdfs::create_symlink("place/file", dir / "link");
  write_output(dir / "link", "new");
  EXPECT_EQ(stdfs::read_symlink(dir / "link"), "place/file");
  EXPECT_EQ(read_text(dir / "place/file"), "new");
  EXPECT_EQ(std::distance(stdfs::directory_iterator(dir / "place"), {}), 1);
}

// Run by root, -o /dev/null renamed a file over the device.
TEST(OutputFile, WhatIsNoFileIsWrittenToAndStays) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  stdfs::create_symlink("fifo", dir / "link");
  const File reader = File::open(dir / "fifo", O_RDONLY | O_NONBLOCK);
  for (const char* name : {"fifo", "link"}) {
    write_output(dir / name, name);
    std::array<char, 16> buffer{};
    const ssize_t got = ::read(reader.fd(), buffer.data(), buffer.size());
    EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))),
              name);
  }
  EXPECT_TRUE(stdfs::is_fifo(stdfs::symlink_status(dir / "fifo")));
  EXPECT_TRUE(stdfs::is_symlink(stdfs::symlink_status(dir / "link")));
}

TEST(OutputFile, WhatCannotBeWrittenIsNamed) {
  const TempDir dir;
  std::string message;
  static_cast<void>(test::code_of([&] { write_output(dir / "absent/file", "bytes"); }, &message));
  EXPECT_NE(message.find((dir / "absent").string()), std::string::npos) << message;
  static_cast<void>(test::code_of([&] { write_output(dir.path(), "bytes"); }, &message));
  EXPECT_NE(message.find(dir.path().string()), std::string::npos) << message;
}

}  // namespace
}  // namespace weightfs::fs
