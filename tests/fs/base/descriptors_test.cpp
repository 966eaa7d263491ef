#include "fs/base/descriptors.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "store/staging/staging.hpp"

namespace weightfs::fs {
namespace {

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
