#include "store/materialize/window_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

/// Random ranges of at most a chunk, written as they come.  The parts decide when, and not what.
TEST(WindowWriterTest, PartsOfEitherSizeMakeTheSameFile) {
  auto rng = test::make_rng();
  const test::TempDir directory;
  const auto path = directory / "file";
  const std::uint64_t begin = kWindowBytes, end = 4 * kWindowBytes + 12345;
  for (const std::uint64_t part_bytes : {kHalfWindowBytes, kWindowBytes}) {
    Bytes expected(end);
    for (std::uint64_t i = begin; i < end; i++) expected[i] = static_cast<std::byte>(i * i >> 7);
    {
      const File file = File::open(path, O_RDWR | O_CREAT | O_TRUNC);
      WindowWriter writer;
      writer.start(file.fd(), path, begin, end, part_bytes);
      std::uint64_t written = begin;
      for (std::uint64_t at = begin; at < end;) {
        const std::uint64_t size = std::min<std::uint64_t>(1 + rng() % (3u << 20), end - at);
        const auto into = writer.place(at, static_cast<std::size_t>(size));
        std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(at), size, into.begin());
        at += size;
        ASSERT_EQ(writer.is_full(), at >= written + part_bytes);
        if (!writer.is_full()) continue;
        writer.flush();
        written = at - at % part_bytes;
        EXPECT_EQ(std::filesystem::file_size(path), written);
      }
      writer.finish();
    }
    const std::string bytes = test::read_text(path);
    EXPECT_TRUE(std::ranges::equal(as_bytes(bytes), expected));
  }
}

/// What is copied from another place takes longer.
TEST(WindowWriterTest, WindowsBeginAtACacheLine) {
  const test::TempDir directory;
  const auto path = directory / "file";
  const File file = File::open(path, O_RDWR | O_CREAT);
  WindowWriter writer;
  writer.start(file.fd(), path, kWindowBytes, 2 * kWindowBytes);
  const auto at = reinterpret_cast<std::uintptr_t>(writer.place(kWindowBytes, 1).data());
  EXPECT_EQ(at % 64, 0u);
}

}  // namespace
}  // namespace weightfs
