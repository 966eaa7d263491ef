// NewFile, also where a file system can do less than ext4.
#include "store/os/new_file.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::code_of;
using test::TempDir;

struct Answer {
  long call;
  int error;
};

/// This thread's system calls of these kinds fail from now on.
bool refuse_calls(const std::vector<Answer>& answers) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const Answer& answer : answers) {
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(answer.call), 0, 1));
    program.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(answer.error)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Runs it in a thread whose calls are refused.  Returns: false if that cannot be had.
bool run_where(const std::vector<Answer>& answers, const std::function<void()>& body) {
  bool works = false;
  std::exception_ptr thrown;
  std::jthread([&] {
    works = refuse_calls(answers);
    try {
      if (works) body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return works;
}

const std::vector<Answer> kVfat{
    {SYS_link, EPERM}, {SYS_linkat, EPERM}, {SYS_chmod, EPERM}, {SYS_fchmodat, EPERM}};

std::vector<Answer> also(std::vector<Answer> answers, Answer more) {
  answers.push_back(more);
  return answers;
}

TEST(NewFile, AppearsWhenItIsComplete) {
  const TempDir parent;
  const fs::path path = parent / "a/b";
  const NewFile file(path);
  test::write_text(file.partial(), "bytes");
  EXPECT_FALSE(fs::exists(path));
  file.keep();
  EXPECT_EQ(test::read_text(path), "bytes");
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0644u);
}

// The export of a delta ended with EPERM, and all its bytes were gone.
TEST(NewFile, IsKeptWhereNothingCanBeLinked) {
  for (const auto& answers :
       {kVfat, also(kVfat, {SYS_renameat2, EINVAL}), also(kVfat, {SYS_renameat2, ENOSYS}),
        std::vector<Answer>{{SYS_link, ENOSYS}, {SYS_linkat, ENOSYS}}}) {
    const TempDir parent;
    const fs::path path = parent / "file";
    {
      const NewFile file(path);
      test::write_text(file.partial(), "bytes");
      if (!run_where(answers, [&] { file.keep(); })) GTEST_SKIP() << "no seccomp filters here";
      EXPECT_FALSE(fs::exists(file.partial()));
    }
    EXPECT_EQ(test::read_text(path), "bytes");
  }
}

TEST(NewFile, ReplacesNothingWhereNothingCanBeLinked) {
  for (const auto& answers : {kVfat, also(kVfat, {SYS_renameat2, EINVAL})}) {
    const TempDir parent;
    const fs::path path = parent / "file";
    const NewFile file(path);
    test::write_text(file.partial(), "bytes");
    test::write_text(path, "another's");
    bool works = false;
    EXPECT_EQ(code_of([&] {
                works = run_where(answers, [&] { file.keep(); });
                if (!works) throw Error(ErrorCode::exists, "no seccomp filters here");
              }),
              ErrorCode::exists);
    EXPECT_EQ(test::read_text(path), "another's");
  }
}

}  // namespace
}  // namespace weightfs
