#include "fs/base/descriptors.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "store/staging/staging.hpp"

namespace weightfs::fs {
namespace {

// Exits with 0 if they were filled as promised.  In a process of its own: it closes the three.
[[noreturn]] void close_and_fill(std::initializer_list<int> closed) {
  for (const int fd : closed) close(fd);
  fill_standard_descriptors();
  for (const int fd : closed) {
    if (fcntl(fd, F_GETFD) != 0) _exit(1);  // closed, or not inherited by hooks
    if (write(fd, "x", 1) != -1 || errno != EBADF) _exit(2);
    char got = 0;
    if (read(fd, &got, 1) != 0) _exit(3);
  }
  _exit(open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : 4);
}

TEST(DescriptorsTest, ClosedStandardDescriptorsAreFilledAndCannotBeWrittenTo) {
  using testing::ExitedWithCode;
  EXPECT_EXIT(close_and_fill({STDERR_FILENO}), ExitedWithCode(0), "");
  EXPECT_EXIT(close_and_fill({STDIN_FILENO, STDERR_FILENO}), ExitedWithCode(0), "");
  EXPECT_EXIT(close_and_fill({STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}), ExitedWithCode(0), "");
}

TEST(DescriptorsTest, OpenStandardDescriptorsStayAsTheyAre) {
  const auto check = [] {
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(1);
    close(STDIN_FILENO);
    fill_standard_descriptors();
    char got = 0;
    const bool is_same = write(STDOUT_FILENO, "x", 1) == 1 && read(ends[0], &got, 1) == 1;
    _exit(is_same && got == 'x' ? 0 : 2);
  };
  EXPECT_EXIT(check(), testing::ExitedWithCode(0), "");
}

TEST(DescriptorsTest, AreNeverAllForOthersFiles) {
  EXPECT_EQ(descriptors_for_files(256), 128u);
  EXPECT_EQ(descriptors_for_files(1024), 512u);
  EXPECT_EQ(descriptors_for_files(131072), 130048u);
}

TEST(DescriptorsTest, AShareIsNeverExceededAndComesBack) {
  DescriptorShare share(2);
  DescriptorClaim one(share, 1, "a");
  {
    DescriptorClaim two(share, 1, "b");
    const DescriptorClaim moved = std::move(two);
    try {
      const DescriptorClaim three(share, 1, "c");
      ADD_FAILURE() << "a share of 2 gave 3";
    } catch (const PosixError& error) {
      EXPECT_EQ(error.number(), ENFILE);
      EXPECT_NE(std::string(error.what()).find("open c"), std::string::npos);
    }
  }
  const DescriptorClaim again(share, 1, "b");
}

}  // namespace
}  // namespace weightfs::fs
