// NoLeases: as long as it lives, this thread has no CAP_LEASE: the kernel grants it no lease on
// files that others own.
//
// Threads: made and destroyed by the same one.
#pragma once

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>

namespace weightfs::test {

class NoLeases {
 public:
  /// `others`: masks of capabilities that go with it.
  explicit NoLeases(std::uint32_t others = 0) {
    if (::syscall(SYS_capget, &header_, capabilities_.data()) != 0) return;
    std::array<__user_cap_data_struct, 2> fewer = capabilities_;
    fewer[0].effective &= ~(CAP_TO_MASK(CAP_LEASE) | others);
    works_ = ::geteuid() == 0 && ::syscall(SYS_capset, &header_, fewer.data()) == 0;
  }
  ~NoLeases() {
    if (works_) {
      EXPECT_EQ(::syscall(SYS_capset, &header_, capabilities_.data()), 0);
    }
  }
  NoLeases(const NoLeases&) = delete;
  NoLeases& operator=(const NoLeases&) = delete;

  /// False where this needs more rights than the test has.
  [[nodiscard]] bool works() const { return works_; }

  static void give_away(const std::filesystem::path& file) {
    constexpr uid_t kOther = 54'321;
    EXPECT_EQ(::chown(file.c_str(), kOther, kOther), 0);
  }
  static void take_back(const std::filesystem::path& file) {
    EXPECT_EQ(::chown(file.c_str(), 0, 0), 0);
  }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> capabilities_{};
  bool works_ = false;
};

}  // namespace weightfs::test
