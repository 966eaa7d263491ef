#include "store/repository/pieces.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs {
namespace {

using test::code_of;

/// A bucket whose first replies are damaged in transit.
class NoisyBucket final : public test::BucketView {
 public:
  NoisyBucket(std::shared_ptr<test::MemoryBucket> below, unsigned damaged)
      : BucketView(std::move(below)), damaged_(damaged) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    gets++;
    const std::size_t count = BucketView::get(key, offset_bytes, into, context);
    if (damaged_ != 0 && count != 0) {
      damaged_--;
      into[count / 2] ^= std::byte{4};
    }
    return count;
  }

  unsigned gets = 0;

 private:
  unsigned damaged_;
};

/// Three pieces, the last one short, after ten other bytes.
struct PiecesFixture {
  PiecesFixture() {
    for (std::size_t i = 0; i < text.size(); i++) text[i] = static_cast<char>(i % 251);
    bucket->put("x", TextSource("0123456789" + text), {});
    for (std::size_t at = 0; at < text.size(); at += kPieceBytes) {
      hashes.push_back(sha256(as_bytes(std::string_view(text).substr(at, kPieceBytes))));
    }
    run.hashes = hashes;
  }

  std::string text = std::string(2 * kPieceBytes + 7, '\0');
  std::vector<Sha256> hashes;
  std::shared_ptr<test::MemoryBucket> bucket = std::make_shared<test::MemoryBucket>();
  PieceRun run{"x", 10, text.size(), {}};
  std::string found = std::string(text.size(), '\0');
};

TEST(Pieces, APieceThatIsDamagedOnItsWayIsFetchedOnceMore) {
  PiecesFixture at;
  NoisyBucket noisy(at.bucket, 1);
  fetch_pieces(noisy, at.run, 0, std::as_writable_bytes(std::span(at.found)), {});
  EXPECT_EQ(at.found, at.text);
  EXPECT_EQ(noisy.gets, 2u);
}

TEST(Pieces, AnObjectThatIsDamagedInTheBucketIsTold) {
  PiecesFixture at;
  NoisyBucket noisy(at.bucket, 2);
  std::string message;
  EXPECT_EQ(
      code_of(
          [&] { fetch_pieces(noisy, at.run, 0, std::as_writable_bytes(std::span(at.found)), {}); },
          &message),
      ErrorCode::corrupt);
  EXPECT_NE(message.find("damaged in the bucket"), std::string::npos) << message;
}

}  // namespace
}  // namespace weightfs
