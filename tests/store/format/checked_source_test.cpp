#include "store/format/checked_source.hpp"

#include <gtest/gtest.h>

#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/format/pack.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;

/// Bytes, some of which may change after they were hashed.
struct Hashed {
  explicit Hashed(std::size_t size) : bytes(size, '\0') {
    test::Random rng = test::make_rng();
    for (char& byte : bytes) byte = static_cast<char>(rng());
    for (std::size_t at = 0; at < size; at += kPieceBytes) {
      pieces.push_back(sha256(as_bytes(std::string_view(bytes).substr(at, kPieceBytes))));
    }
  }

  std::string read(std::size_t offset, std::size_t size) const {
    const TextSource text(bytes);
    const CheckedSource source(text, [&](std::size_t piece, std::span<const std::byte> found) {
      if (sha256(found) != pieces[piece]) throw Error(ErrorCode::busy, "changed");
    });
    std::string into(size, '\0');
    source.read(offset, std::as_writable_bytes(std::span(into)));
    return into;
  }

  std::string bytes;
  std::vector<Sha256> pieces;
};

TEST(CheckedSource, HandsOutWhatWasHashedInWhateverParts) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{kPieceBytes},
                                 std::size_t{3 * kPieceBytes + 12'345}}) {
    const Hashed hashed(size);
    EXPECT_EQ(hashed.read(0, size), hashed.bytes);
  }
  const Hashed hashed(3 * kPieceBytes + 12'345);
  test::Random rng = test::make_rng();
  for (int i = 0; i < 20; i++) {
    const std::size_t offset = rng() % hashed.bytes.size();
    const std::size_t size = rng() % (hashed.bytes.size() - offset + 1);
    EXPECT_EQ(hashed.read(offset, size), hashed.bytes.substr(offset, size));
  }
}

TEST(CheckedSource, HandsOutNothingOfAPieceThatChanged) {
  Hashed hashed(2 * kPieceBytes + 12'345);
  hashed.bytes[kPieceBytes + 7] ^= 1;
  EXPECT_EQ(hashed.read(0, kPieceBytes), hashed.bytes.substr(0, kPieceBytes));
  EXPECT_EQ(hashed.read(2 * kPieceBytes, 12'345), hashed.bytes.substr(2 * kPieceBytes));
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, hashed.bytes.size()},
                                     {kPieceBytes, kPieceBytes},
                                     {kPieceBytes + 8, 1},
                                     {kPieceBytes - 1, 2}}) {
    EXPECT_EQ(code_of([&, at = offset, count = size] { hashed.read(at, count); }), ErrorCode::busy);
  }
}

}  // namespace
}  // namespace weightfs
