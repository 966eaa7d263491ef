// Real processes and an ordinary file: what find_writers() sees of a mount it sees of any device.
#include "fs/passes/open_writers.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kBytes = 4096;

// A child that has done `prepare` and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<bool()>& prepare) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_errno(errno, "make a pipe");
    const File reading(ends[0]);
    File writing(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {
      const char ready = prepare() ? 'y' : 'n';
      if (write(writing.fd(), &ready, 1) != 1) _exit(1);
      while (true) pause();
    }
    writing = File();
    char ready = 0;
    EXPECT_EQ(read(reading.fd(), &ready, 1), 1);
    EXPECT_EQ(ready, 'y');
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = 0;
};

class OpenWritersTest : public testing::Test {
 protected:
  OpenWritersTest() { test::write_text(path_, std::string(kBytes, 'x')); }

  [[nodiscard]] struct stat attributes() const {
    struct stat found {};
    EXPECT_EQ(stat(path_.c_str(), &found), 0);
    return found;
  }

  // Pids that hold the file.
  [[nodiscard]] std::vector<pid_t> writers() const {
    std::vector<pid_t> pids;
    for (const Holder& holder : find_writers(attributes().st_dev, {attributes().st_ino})) {
      EXPECT_EQ(holder.inode, attributes().st_ino);
      EXPECT_FALSE(holder.command.empty());
      pids.push_back(holder.pid);
    }
    return pids;
  }

  // Opens the file, and keeps the descriptor.
  [[nodiscard]] std::function<bool()> opening(int flags) const {
    return [this, flags] { return ::open(path_.c_str(), flags) >= 0; };
  }

  // Maps the file, and closes the descriptor.
  [[nodiscard]] std::function<bool()> mapping(int open_flags, int protection, int flags) const {
    return [=, this] {
      const int fd = ::open(path_.c_str(), open_flags);
      const bool mapped = mmap(nullptr, kBytes, protection, flags, fd, 0) != MAP_FAILED;
      return close(fd) == 0 && mapped;
    };
  }

  const test::TempDir temp_;
  const std::filesystem::path path_ = temp_ / "file";
};

using Pids = std::vector<pid_t>;

TEST_F(OpenWritersTest, AWritableDescriptorIsFound) {
  for (const int flags : {O_WRONLY, O_RDWR, O_RDWR | O_APPEND}) {
    const Child child(opening(flags));
    EXPECT_EQ(writers(), Pids{child.pid()}) << flags;
  }
}

TEST_F(OpenWritersTest, WhoReadsIsNotFound) {
  for (const int flags : {O_RDONLY, O_PATH}) {
    const Child child(opening(flags));
    EXPECT_EQ(writers(), Pids{}) << flags;
  }
  const Child shared(mapping(O_RDONLY, PROT_READ, MAP_SHARED));
  const Child own(mapping(O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE));
  EXPECT_EQ(writers(), Pids{});
}

TEST_F(OpenWritersTest, AMappingOfAWritableDescriptorIsFound) {
  for (const auto& [protection, flags] : {std::pair{PROT_READ | PROT_WRITE, MAP_SHARED},
                                          {PROT_READ, MAP_SHARED},
                                          {PROT_READ | PROT_WRITE, MAP_PRIVATE},
                                          {PROT_READ, MAP_PRIVATE}}) {
    const Child child(mapping(O_RDWR, protection, flags));
    EXPECT_EQ(writers(), Pids{child.pid()}) << protection << ' ' << flags;
  }
}

TEST_F(OpenWritersTest, AForkedChildIsFoundToo) {
  const Child child([this] {
    if (!opening(O_RDWR)()) return false;
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    return true;
  });
  EXPECT_EQ(writers().size(), 2u);
  EXPECT_EQ(writers().front(), child.pid());
}

TEST_F(OpenWritersTest, ADescriptorInFlightIsHeldByNoVisibleProcess) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
  const File ours(ends[0]), theirs(ends[1]);
  const File file = File::open(path_, O_RDWR);
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = file.fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ASSERT_EQ(sendmsg(ours.fd(), &message, 0), 1);
  EXPECT_EQ(writers(), Pids{});
}

TEST_F(OpenWritersTest, OtherInodesAndDevicesAreNotMeant) {
  const Child child(opening(O_RDWR));
  EXPECT_TRUE(find_writers(attributes().st_dev, {~attributes().st_ino}).empty());
  EXPECT_TRUE(find_writers(attributes().st_dev, {}).empty());
  EXPECT_TRUE(find_writers(attributes().st_dev + 1, {attributes().st_ino}).empty());
}

TEST_F(OpenWritersTest, TheyComeByPid) {
  const Child a(opening(O_RDWR)), b(mapping(O_RDWR, PROT_READ, MAP_SHARED)), c(opening(O_WRONLY));
  Pids expected{a.pid(), b.pid(), c.pid()};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(writers(), expected);
}

}  // namespace
}  // namespace weightfs::fs
