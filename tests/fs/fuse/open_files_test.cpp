#include "fs/fuse/open_files.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace weightfs::fs {
namespace {

class CountingFile final : public OpenFile {
 public:
  explicit CountingFile(int& releases) : releases_(releases) {}
  void read(fuse_req*, FileRange) const override {}
  void release() const noexcept override { releases_++; }

 private:
  int& releases_;
};

TEST(OpenFiles, EachOpenHasAHandleOfItsOwnUntilItIsReleased) {
  int releases = 0;
  const auto file = std::make_shared<CountingFile>(releases);
  OpenFiles files;
  const std::uint64_t one = files.add(file), two = files.add(file);
  EXPECT_NE(one, two);
  EXPECT_EQ(files.find(one), file);
  files.remove(one);
  EXPECT_EQ(releases, 1);
  EXPECT_EQ(files.find(one), nullptr);
  EXPECT_EQ(files.find(two), file);
  files.remove(one);
  EXPECT_EQ(releases, 1) << "once for each open";
  files.remove(two);
  EXPECT_EQ(releases, 2);
  EXPECT_EQ(file.use_count(), 1);
}

TEST(OpenFiles, AHandleThatWasNeverGivenOutLeadsToNothing) {
  OpenFiles files;
  EXPECT_EQ(files.find(0), nullptr);
  EXPECT_EQ(files.find(7), nullptr);
  files.remove(7);
}

TEST(OpenFiles, ManyThreadsGetDifferentHandles) {
  OpenFiles files;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&files] {
        int releases = 0;
        const auto file = std::make_shared<CountingFile>(releases);
        for (int step = 0; step < 2000; step++) {
          const std::uint64_t handle = files.add(file);
          ASSERT_EQ(files.find(handle), file);
          files.remove(handle);
        }
        EXPECT_EQ(releases, 2000);
      });
    }
  }
}

}  // namespace
}  // namespace weightfs::fs
