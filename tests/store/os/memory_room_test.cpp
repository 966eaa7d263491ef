#include "store/os/memory_room.hpp"

#include <gtest/gtest.h>

#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::TempDir;
using test::write_text;

constexpr std::uint64_t kRoomMib = 1u << 20;

/// A host, represented by /proc and /sys/fs/cgroup.
class FakeHost {
 public:
  FakeHost() {
    put("proc/meminfo",
        "MemTotal:       10240000 kB\nMemFree:          102400 kB\nMemAvailable:    8192000 kB\n");
  }
  void put(const std::string& path, const std::string& text) { write_text(root_ / path, text); }

  /// A cgroup of version 2; the files' part of its usage can be reclaimed.
  void put_cgroup(const std::string& path, const std::string& limit_mib, unsigned usage_mib,
                  unsigned files_mib) {
    const std::string directory = "sys/fs/cgroup" + path;
    put(directory + "/memory.max", in_bytes(limit_mib) + "\n");
    put(directory + "/memory.current", std::to_string(usage_mib * kRoomMib) + "\n");
    put(directory + "/memory.stat",
        "anon 1\nfile 77\nactive_file " + std::to_string(files_mib / 4 * kRoomMib) +
            "\ninactive_file " + std::to_string((files_mib - files_mib / 4) * kRoomMib) + "\n");
  }
  /// `top`: the cgroup at the mount point.
  void enter(const std::string& own, const std::string& top = "/") {
    put("proc/self/cgroup", "1:cpu:/elsewhere\n0::" + own + "\n");
    put("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:26 " + top +
                                   " /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
  }
  [[nodiscard]] std::optional<MemoryRoom> room() const { return find_memory_room(root_.path()); }
  [[nodiscard]] std::string limit() const { return find_memory_limit(root_.path()).value().text; }

 private:
  static std::string in_bytes(const std::string& mib) {
    return mib == "max" ? mib : std::to_string(std::stoull(mib) * kRoomMib);
  }
  TempDir root_;
};

constexpr MemoryRoom host_room(std::uint64_t bytes, std::uint64_t limit) {
  return {bytes, limit, {}};
}

TEST(MemoryRoom, OfAHostWithoutCgroupsIsWhatIsAvailableLessATenth) {
  const FakeHost host;
  EXPECT_EQ(host.room(), host_room((8192000ull - 1024000) * 1024, 10240000ull * 1024));
  EXPECT_EQ(host.room()->limit_text(), "the host's memory, 9.8 GiB");
}

TEST(MemoryRoom, IsUnknownWhereTheHostDoesNotTell) {
  const TempDir empty;
  EXPECT_EQ(find_memory_room(empty.path()), std::nullopt);
}

TEST(MemoryRoom, OfACgroupCountsItsPageCacheAsRoom) {
  FakeHost host;
  host.enter("/engine");
  host.put_cgroup("/engine", "1000", 700, 300);
  const auto room = host.room();
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 500 * kRoomMib) << "1000 less 400 that stay, less a tenth";
  EXPECT_EQ(room->limit_bytes, 1000 * kRoomMib);
  EXPECT_EQ(room->cgroup, "/engine");
  EXPECT_EQ(room->limit_text(), "the limit of cgroup /engine, 1000.0 MiB");
}

TEST(MemoryRoom, IsTheSmallestOfAllCgroupsAbove) {
  FakeHost host;
  host.enter("/pod/engine/inner");
  host.put_cgroup("/pod/engine/inner", "max", 700, 300);
  host.put_cgroup("/pod/engine", "2000", 300, 300);
  host.put_cgroup("/pod", "1000", 400, 300);
  EXPECT_EQ(host.room()->cgroup, "/pod");
  EXPECT_EQ(host.room()->bytes, 800 * kRoomMib);
  host.put_cgroup("/pod", "4000", 400, 300);
  EXPECT_EQ(host.room()->cgroup, "/pod/engine");
}

TEST(MemoryRoom, TakesTheSofterLimitThatTheKernelReclaimsAt) {
  FakeHost host;
  host.enter("/engine");
  host.put_cgroup("/engine", "1000", 0, 0);
  host.put("sys/fs/cgroup/engine/memory.high", std::to_string(500 * kRoomMib));
  EXPECT_EQ(host.room()->bytes, 450 * kRoomMib);
  host.put("sys/fs/cgroup/engine/memory.high", "max");
  EXPECT_EQ(host.room()->bytes, 900 * kRoomMib);
}

TEST(MemoryRoom, WithoutALimitIsTheHosts) {
  FakeHost host;
  host.enter("/engine");
  host.put_cgroup("/engine", "max", 700, 300);
  EXPECT_EQ(host.room()->cgroup, "");
  host.put_cgroup("/engine", "900000", 700, 300);  // more than the host has
  EXPECT_EQ(host.room()->cgroup, "");
}

TEST(MemoryRoom, OfAFullCgroupIsNone) {
  FakeHost host;
  host.enter("/engine");
  host.put_cgroup("/engine", "100", 120, 0);
  EXPECT_EQ(host.room()->bytes, 0u);
}

TEST(MemoryRoom, InAContainerIsThatOfTheCgroupAtTheMountPoint) {
  FakeHost host;
  host.put_cgroup("", "1000", 0, 0);
  host.put_cgroup("/inner", "500", 0, 0);
  host.enter("/docker/abc", "/docker/abc");
  EXPECT_EQ(host.room()->bytes, 900 * kRoomMib);
  host.enter("/docker/abc/inner", "/docker/abc");
  EXPECT_EQ(host.room()->bytes, 450 * kRoomMib);
  host.enter("/elsewhere", "/docker/abc");  // a host path that is not visible here
  EXPECT_EQ(host.room()->bytes, 900 * kRoomMib);
}

TEST(MemoryRoom, KnowsTheFirstVersionOfCgroupsToo) {
  FakeHost host;
  host.put("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:hugetlb,memory:/engine\n0::/b\n");
  host.put("proc/self/mountinfo",
           "31 22 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
           "32 22 0:28 / /cg/memory rw - cgroup cgroup rw,hugetlb,memory\n");
  host.put("cg/memory/engine/memory.limit_in_bytes", std::to_string(1000 * kRoomMib));
  host.put("cg/memory/engine/memory.usage_in_bytes", std::to_string(700 * kRoomMib));
  host.put("cg/memory/engine/memory.stat",
           "inactive_file 1\ntotal_inactive_file " + std::to_string(200 * kRoomMib) +
               "\ntotal_active_file " + std::to_string(100 * kRoomMib) + "\n");
  ASSERT_TRUE(host.room());
  EXPECT_EQ(host.room()->bytes, 500 * kRoomMib);
  EXPECT_EQ(host.room()->cgroup, "/engine");
  host.put("cg/memory/engine/memory.limit_in_bytes", "9223372036854771712");  // version 1's value
                                                                              // for "none"
  EXPECT_EQ(host.room()->cgroup, "");
}

TEST(MemoryLimit, IsTheSmallestOfTheHostAndAllCgroupsAboveWhateverIsUsed) {
  FakeHost host;
  EXPECT_EQ(host.limit(), "the host's memory, 9.8 GiB");
  host.enter("/pod/engine");
  host.put_cgroup("/pod/engine", "max", 700, 300);
  host.put_cgroup("/pod", "512", 500, 0);
  EXPECT_EQ(host.limit(), "the limit of cgroup /pod, 512.0 MiB");
  host.put_cgroup("/pod/engine", "256", 0, 0);
  EXPECT_EQ(host.limit(), "the limit of cgroup /pod/engine, 256.0 MiB");
  const TempDir empty;
  EXPECT_FALSE(find_memory_limit(empty.path()));
}

TEST(MemoryRoom, OfThisMachineIsKnown) {
  const auto room = find_memory_room();
  ASSERT_TRUE(room);
  EXPECT_GT(room->limit_bytes, room->bytes);
}

TEST(NoRoomText, SaysWhatIsMissingAndWhatToDo) {
  const std::string host = no_room_text(7, 3u << 30, {1u << 30, 2u << 30, ""});
  EXPECT_NE(host.find("version 7 (3.0 GiB) does not fit into the page cache: the host's memory, "
                      "2.0 GiB, leaves room for 1.0 GiB"),
            std::string::npos)
      << host;
  EXPECT_NE(host.find("use a larger host"), std::string::npos) << host;
  const std::string cgroup = no_room_text(7, 3u << 30, {1u << 30, 2u << 30, "/a"});
  EXPECT_NE(cgroup.find("raise that limit"), std::string::npos) << cgroup;
}

}  // namespace
}  // namespace weightfs
