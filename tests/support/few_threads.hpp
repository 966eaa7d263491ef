// FewThreads: as long as it lives, this thread may start only so many threads; the next one is
// refused with EAGAIN, as where `ulimit -u` or pids.max is reached.
//
// The kernel counts for each real user.  So the thread becomes a user that nobody else is, which
// has a limit; its effective user stays root, so that it may still write where the test does.
//
// Threads: made and destroyed by the same one.  Those that it starts count too.
#pragma once

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <system_error>
#include <thread>

namespace weightfs::test {

class FewThreads {
 public:
  explicit FewThreads(unsigned most) {
    if (::getrlimit(RLIMIT_NPROC, &limit_) != 0 || ::getresuid(&real_, &effective_, &saved_) != 0 ||
        ::syscall(SYS_capget, &header_, capabilities_.data()) != 0) {
      return;
    }
    // Not glibc's calls, which change all threads.
    if (::syscall(SYS_setresuid, unused_user(), effective_, saved_) != 0) return;
    is_changed_ = true;
    std::array<__user_cap_data_struct, 2> fewer = capabilities_;
    fewer[0].effective &= ~(CAP_TO_MASK(CAP_SYS_ADMIN) | CAP_TO_MASK(CAP_SYS_RESOURCE));
    if (::syscall(SYS_capset, &header_, fewer.data()) != 0) return;
    has_fewer_ = true;
    if (!set_limit(1) || can_start()) return;  // this thread counts
    works_ = set_limit(1 + most);
  }

  ~FewThreads() {
    if (!is_changed_) return;
    if (has_fewer_) {
      EXPECT_EQ(::syscall(SYS_capset, &header_, capabilities_.data()), 0);
    }
    EXPECT_EQ(::syscall(SYS_setresuid, real_, effective_, saved_), 0);
    EXPECT_EQ(::setrlimit(RLIMIT_NPROC, &limit_), 0);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

  /// False where this needs more rights than the test has.
  [[nodiscard]] bool works() const { return works_; }

 private:
  /// Another one each time: the kernel may count a thread for a moment after it was joined.
  static uid_t unused_user() {
    static std::atomic<uid_t> uses = 0;
    return 0x7000'0000 + static_cast<uid_t>(::getpid()) + (uses++ << 22);
  }
  [[nodiscard]] bool set_limit(rlim_t threads) const {
    const rlimit few{threads, limit_.rlim_max};
    return threads <= limit_.rlim_max && ::setrlimit(RLIMIT_NPROC, &few) == 0;
  }
  static bool can_start() {
    try {
      std::jthread([] {}).join();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  rlimit limit_{};
  uid_t real_ = 0, effective_ = 0, saved_ = 0;
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> capabilities_{};
  bool is_changed_ = false, has_fewer_ = false, works_ = false;
};

}  // namespace weightfs::test
