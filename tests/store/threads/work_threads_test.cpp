// How many threads suit a host that is represented by /proc and /sys/fs/cgroup.
#include "store/threads/work_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "tests/support/support.hpp"

namespace weightfs {
namespace {

/// 192 cores, 2 TiB.
class WorkThreads : public testing::Test {
 protected:
  WorkThreads() { put("proc/meminfo", "MemTotal: 2147483648 kB\n"); }

  void put(const std::string& path, const std::string& text) {
    test::write_text(root_ / path, text);
  }
  void enter_version_2(const std::string& own) {
    put("proc/self/cgroup", "0::" + own + "\n");
    put("proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }
  [[nodiscard]] unsigned found(unsigned cores = 192) const {
    return find_work_threads(cores, root_.path());
  }

 private:
  test::TempDir root_;
};

TEST_F(WorkThreads, OfAHostWithoutLimitsAreItsCores) {
  EXPECT_EQ(found(), 192u);
  EXPECT_EQ(found(0), 1u) << "not known";
  EXPECT_GE(work_threads(), 1u);
  EXPECT_LE(work_threads(), std::max(1u, std::thread::hardware_concurrency()));
}

// A container with 4 GiB on a large host took 192 threads of 24 MiB, and was killed at each start.
TEST_F(WorkThreads, OfACgroupAreItsQuotaAndItsMemory) {
  enter_version_2("/pod/engine");
  put("sys/fs/cgroup/pod/cpu.max", "650000 100000\n");
  put("sys/fs/cgroup/pod/engine/cpu.max", "max 100000\n");
  EXPECT_EQ(found(), 7u) << "rounded up";
  EXPECT_EQ(found(2), 2u);
  put("sys/fs/cgroup/pod/engine/cpu.max", "20000 100000\n");
  EXPECT_EQ(found(), 1u);

  put("sys/fs/cgroup/pod/engine/cpu.max", "9600000 100000\n");
  put("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(found(), 96u);
  put("sys/fs/cgroup/pod/memory.max", std::to_string(4ull << 30) + "\n");
  EXPECT_EQ(found(), 21u) << "an eighth of 4 GiB";
  put("sys/fs/cgroup/pod/memory.max", std::to_string(64u << 20) + "\n");
  EXPECT_EQ(found(), 1u);
}

TEST_F(WorkThreads, OfACgroupOfVersion1AreItsQuota) {
  put("proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/docker/x\n0::/\n");
  put("proc/self/mountinfo",
      "30 22 0:26 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(found(), 192u);
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(found(), 3u);
}

}  // namespace
}  // namespace weightfs
