#include "store/pieces.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/bytes.hpp"
#include "store/sha256.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/memory_bucket.hpp"

namespace weightfs {
namespace {

using test::code_of;

/// A bucket whose first replies are damaged on their way.
class NoisyBucket final : public Bucket {
 public:
  NoisyBucket(test::MemoryBucket& below, unsigned damaged) : below_(below), damaged_(damaged) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    gets++;
    const std::size_t count = below_.get(key, offset_bytes, into, context);
    if (damaged_ != 0 && count != 0) {
      damaged_--;
      into[count / 2] ^= std::byte{4};
    }
    return count;
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    below_.put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    return below_.put_if_absent(key, bytes, context);
  }
  std::vector<std::string> list(std::string_view prefix, std::string_view after,
                                const Context& context) override {
    return below_.list(prefix, after, context);
  }
  void remove(std::string_view key, const Context& context) override {
    below_.remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return below_.url(); }

  unsigned gets = 0;

 private:
  test::MemoryBucket& below_;
  unsigned damaged_;
};

/// Three pieces, the last one short, behind ten other bytes.
struct PiecesFixture {
  PiecesFixture() {
    for (std::size_t i = 0; i < text.size(); i++) text[i] = static_cast<char>(i % 251);
    bucket.put("x", TextSource("0123456789" + text), {});
    for (std::size_t at = 0; at < text.size(); at += kPieceBytes) {
      hashes.push_back(sha256(as_bytes(std::string_view(text).substr(at, kPieceBytes))));
    }
    run.hashes = hashes;
  }

  std::string text = std::string(2 * kPieceBytes + 7, '\0');
  std::vector<Sha256> hashes;
  test::MemoryBucket bucket;
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
