#include "fs/fuse/open_images.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "store/base/error.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

LocalFile file_of(const std::filesystem::path& image, std::uint64_t size_bytes) {
  return {.image = image, .path = "", .size_bytes = size_bytes};
}

std::string read_image(const OpenImage& image, std::uint64_t offset_bytes, std::size_t size_bytes) {
  std::string text(size_bytes, '?');
  text.resize(image.read(offset_bytes, std::as_writable_bytes(std::span(text))));
  return text;
}

// Descriptors of this process that lead to `path`.
std::size_t descriptors_of(const std::filesystem::path& path) {
  std::size_t count = 0;
  for (const auto& item : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(item.path(), gone) == path ? 1 : 0;
  }
  return count;
}

class OpenImagesTest : public testing::Test {
 protected:
  OpenImagesTest() { test::write_text(path_, "0123456789"); }
  const test::TempDir temp_;
  const std::filesystem::path path_ = std::filesystem::canonical(temp_.path()) / "image";
};

TEST_F(OpenImagesTest, ReadsWhatIsAskedForUpToTheEnd) {
  const OpenImage image(file_of(path_, 10));
  EXPECT_EQ(read_image(image, 0, 10), "0123456789");
  EXPECT_EQ(read_image(image, 3, 4), "3456");
  EXPECT_EQ(read_image(image, 8, 100), "89");
  EXPECT_EQ(read_image(image, 10, 5), "");
  EXPECT_EQ(read_image(image, ~std::uint64_t{0}, 5), "");
  EXPECT_EQ(read_image(image, 5, 0), "");
}

TEST_F(OpenImagesTest, AnImageThatIsMadeAgainHasAnotherNumber) {
  const Inode inode = make_inode({InodeKind::version, 3, 1});
  const std::uint64_t number = image_number(inode, file_of(path_, 10));
  EXPECT_NE(number, 0U);
  EXPECT_EQ(image_number(inode, file_of(path_, 10)), number);
  const OpenImage reader(file_of(path_, 10));
  std::filesystem::remove(path_);
  EXPECT_THROW((void)image_number(inode, file_of(path_, 10)), Error);
  test::write_text(path_, "0123456789");
  EXPECT_NE(image_number(inode, file_of(path_, 10)), number);
  EXPECT_EQ(image_number(make_delta_inode({{1, 2}, false}), file_of(path_, 10)), 0U);
}

TEST_F(OpenImagesTest, TheVersionsSizeCountsNotTheImages) {
  const OpenImage image(file_of(path_, 6));
  EXPECT_EQ(read_image(image, 4, 100), "45");
}

// A short answer inside the file would look like its end.
TEST_F(OpenImagesTest, AnImageThatIsTooShortIsAnErrorNotAShortRead) {
  const OpenImage image(file_of(path_, 12));
  EXPECT_EQ(read_image(image, 0, 10), "0123456789");
  try {
    read_image(image, 8, 4);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
  }
}

TEST_F(OpenImagesTest, OneDescriptorFromTheFirstOpenToTheLastRelease) {
  DescriptorShare share(8);
  OpenImages images(share);
  images.hold(7, file_of(path_, 10));
  images.hold(7, file_of(path_, 10));
  EXPECT_EQ(descriptors_of(path_), 1u);
  images.release(7);
  ASSERT_NE(images.find(7), nullptr);
  EXPECT_EQ(read_image(*images.find(7), 0, 2), "01");
  images.release(7);
  EXPECT_EQ(images.find(7), nullptr);
  EXPECT_EQ(descriptors_of(path_), 0u);
  images.release(7);
  EXPECT_EQ(images.find(7), nullptr);
}

TEST_F(OpenImagesTest, AReadUnderWayOutlivesTheLastRelease) {
  DescriptorShare share(8);
  OpenImages images(share);
  images.hold(7, file_of(path_, 10));
  auto image = images.find(7);
  images.release(7);
  EXPECT_EQ(read_image(*image, 0, 2), "01");
  image.reset();
  EXPECT_EQ(descriptors_of(path_), 0u);
}

TEST_F(OpenImagesTest, AHeldImageIsReadableAfterItsRemoval) {
  DescriptorShare share(8);
  OpenImages images(share);
  images.hold(7, file_of(path_, 10));
  std::filesystem::remove(path_);
  EXPECT_EQ(read_image(*images.find(7), 0, 10), "0123456789");
}

TEST_F(OpenImagesTest, AnImageThatCannotBeOpenedCountsNothing) {
  DescriptorShare share(8);
  OpenImages images(share);
  EXPECT_THROW(images.hold(7, file_of(temp_ / "absent", 1)), Error);
  EXPECT_EQ(images.find(7), nullptr);
}

TEST_F(OpenImagesTest, ManyThreadsLeaveNothingOpen) {
  DescriptorShare share(8);
  OpenImages images(share);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&] {
        for (int step = 0; step < 2000; step++) {
          images.hold(7, file_of(path_, 10));
          const auto image = images.find(7);
          ASSERT_NE(image, nullptr);
          ASSERT_EQ(read_image(*image, 2, 2), "23");
          images.release(7);
        }
      });
    }
  }
  EXPECT_EQ(images.find(7), nullptr);
  EXPECT_EQ(descriptors_of(path_), 0u);
}

}  // namespace
}  // namespace weightfs::fs
