#include "fs/cache/page_cache.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/evict.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::eventually;
using test::evict;
using test::is_in_memory;
using test::TempDir;
using test::write_text;

constexpr std::uint64_t kAheadWindow = 4u << 20;

void write_filled(const std::filesystem::path& path, std::uint64_t size) {
  write_text(path, std::string(size, 'x'));
}

std::uint64_t cached_of(const std::filesystem::path& path) {
  const File file = File::open(path, O_RDONLY);
  return mincore_bytes(file.fd(), 0, std::filesystem::file_size(path));
}

TEST(PageCache, WhatWasWrittenIsInItUntilItIsDropped) {
  const TempDir dir;
  write_filled(dir / "a", kAheadWindow + 1000);
  write_filled(dir / "b", 1);
  const std::vector<CachedFile> files{{dir / "a", kAheadWindow + 1000}, {dir / "b", 1}};
  EXPECT_EQ(residency_of(files).percent(), 100u);
  EXPECT_TRUE(residency_of(files).is_whole());
  if (is_in_memory(dir.path())) GTEST_SKIP() << "$TMPDIR keeps what it has in memory";
  ASSERT_TRUE(evict(dir / "a"));
  const Residency after = residency_of(files);
  EXPECT_EQ(after.percent(), 0u);
  EXPECT_EQ(after.cached_bytes, 1u);
  EXPECT_EQ(after.size_bytes, kAheadWindow + 1001);
}

TEST(PageCache, ReadAheadBringsInWhatItIsAskedFor) {
  const TempDir dir;
  const std::uint64_t size = 12 * kAheadWindow + 1234;  // far more than any readahead
  write_filled(dir / "a", size);
  if (is_in_memory(dir.path())) GTEST_SKIP() << "$TMPDIR keeps what it has in memory";
  ASSERT_TRUE(evict(dir / "a"));
  const File file = File::open(dir / "a", O_RDONLY);
  read_ahead(file.fd(), dir / "a", 0, kAheadWindow);
  EXPECT_EQ(mincore_bytes(file.fd(), 0, kAheadWindow), kAheadWindow);
  for (std::uint64_t at = 0; at < size; at += kAheadWindow) {
    read_ahead(file.fd(), dir / "a", at, std::min(kAheadWindow, size - at));
  }
  EXPECT_EQ(cached_of(dir / "a"), size);
}

TEST(PageCache, BothCallsOfTheKernelAgree) {
  const TempDir dir;
  write_filled(dir / "a", 3 * kAheadWindow);
  const File file = File::open(dir / "a", O_RDONLY);
  EXPECT_EQ(mincore_bytes(file.fd(), 0, 3 * kAheadWindow), 3 * kAheadWindow);
  if (cachestat_bytes(file.fd(), 0, 1).value_or(0) == 0) {
    GTEST_SKIP() << "cachestat does not say: an old kernel, a filter, or overlayfs";
  }
  EXPECT_EQ(cachestat_bytes(file.fd(), 0, 3 * kAheadWindow), 3 * kAheadWindow);
  if (is_in_memory(dir.path())) GTEST_SKIP() << "$TMPDIR keeps what it has in memory";
  ASSERT_TRUE(evict(dir / "a"));
  EXPECT_EQ(mincore_bytes(file.fd(), 0, 3 * kAheadWindow), 0u);
  EXPECT_EQ(cachestat_bytes(file.fd(), 0, 3 * kAheadWindow), 0u);
  read_ahead(file.fd(), dir / "a", 0, kAheadWindow);
  EXPECT_TRUE(eventually([&] {  // what is read ahead beyond that arrives
    return mincore_bytes(file.fd(), 0, 3 * kAheadWindow) ==
           cachestat_bytes(file.fd(), 0, 3 * kAheadWindow);
  }));
  EXPECT_GE(mincore_bytes(file.fd(), 0, 3 * kAheadWindow), kAheadWindow);
}

TEST(PageCache, OfALargeFileASampleIsEnough) {
  const TempDir dir;
  const std::uint64_t size = 64 * kAheadWindow;
  const File file = File::open(dir / "a", O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file.fd(), static_cast<off_t>(size)), 0);
  bool is_exact = true;
  EXPECT_EQ(sampled_bytes(file.fd(), kAheadWindow, is_exact), 0u);
  EXPECT_TRUE(is_exact);
  EXPECT_EQ(sampled_bytes(file.fd(), size, is_exact), 0u);
  EXPECT_FALSE(is_exact);
  const std::vector<std::byte> window(kAheadWindow);
  for (std::uint64_t at = 0; at < size / 2; at += kAheadWindow) {
    write_at(file.fd(), at, window, dir / "a");
  }
  EXPECT_EQ(sampled_bytes(file.fd(), size, is_exact), size / 2);
}

TEST(PageCache, AFileThatBecameShorterIsAnError) {
  const TempDir dir;
  write_filled(dir / "a", 100);
  const File file = File::open(dir / "a", O_RDONLY);
  try {
    read_ahead(file.fd(), dir / "a", kAheadWindow, 100);
    FAIL() << "it was not noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find((dir / "a").string()), std::string::npos);
  }
}

TEST(Residency, RoundsDown) {
  EXPECT_EQ((Residency{1000, 999, true}).percent(), 99u);
  EXPECT_EQ((Residency{1000, 1000, true}).percent(), 100u);
  EXPECT_EQ((Residency{0, 0, true}).percent(), 100u);
}

}  // namespace
}  // namespace weightfs::fs
