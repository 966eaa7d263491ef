// FewDescriptors: as long as it lives, this process can open nothing; what is open stays.
//
// Threads: made and destroyed while no other thread opens anything.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace weightfs::test {

class FewDescriptors {
 public:
  FewDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit_), 0);
    const rlimit none{0, limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~FewDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit_), 0); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit limit_{};
};

}  // namespace weightfs::test
