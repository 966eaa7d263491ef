// The golden vectors of the format (tests/data/codec/vectors.json): what a case gives, and what
// must be refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kernels/decode.hpp"
#include "kernels/ef.hpp"
#include "kernels/encode.hpp"
#include "store/bytes.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using Json = nlohmann::json;

std::string read_vector_file(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(WEIGHTFS_TEST_DATA) / "codec" / name;
  EXPECT_TRUE(std::filesystem::exists(path)) << path;
  return test::read_text(path);
}

Bytes read_bytes(const Json& vector, const char* field) {
  const std::string text = read_vector_file(vector.at(field));
  const auto view = as_bytes(text);
  return {view.begin(), view.end()};
}

Kind kind_of(const Json& vector) { return static_cast<Kind>(vector.at("kind").get<unsigned>()); }

const Json& vectors() {
  static const Json kVectors = Json::parse(read_vector_file("vectors.json"));
  return kVectors;
}

/// The block as EF, whatever its size.
Bytes encode_as_ef(Kind kind, const Bytes& old_block, const Bytes& new_block) {
  const auto changes = std::make_unique<Changes>();
  find_changes(kind, old_block, new_block, *changes);
  Bytes coded;
  EXPECT_TRUE(encode_ef(*changes, new_block.size() / width_bytes(kind),
                        std::numeric_limits<std::size_t>::max(), coded));
  return coded;
}

TEST(Vectors, HoldCasesOfEveryModeAndKind) {
  std::set<std::string> modes;
  std::set<unsigned> kinds;
  for (const Json& vector : vectors().at("cases")) {
    modes.insert(vector.at("mode"));
    kinds.insert(vector.at("kind").get<unsigned>());
  }
  EXPECT_EQ(modes, (std::set<std::string>{"EF", "RAW", "SAME"}));
  EXPECT_EQ(kinds, (std::set<unsigned>{0, 1, 2, 3, 4, 5}));
}

TEST(Vectors, EveryCaseDecodesToItsNewBlock) {
  for (const Json& vector : vectors().at("cases")) {
    SCOPED_TRACE(vector.at("name"));
    const Bytes old_block = read_bytes(vector, "old");
    Bytes decoded(old_block.size());
    ASSERT_TRUE(decode_block(kind_of(vector), old_block, read_bytes(vector, "block"), decoded,
                             test::scratch()));
    EXPECT_TRUE(decoded == read_bytes(vector, "new"));
  }
}

TEST(Vectors, EfEncodesToTheStoredBytes) {
  for (const char* list : {"cases", "refuse"}) {
    for (const Json& vector : vectors().at(list)) {
      if (vector.value("mode", "") != "EF") continue;
      SCOPED_TRACE(vector.at("name"));
      EXPECT_TRUE(encode_as_ef(kind_of(vector), read_bytes(vector, "old"),
                               read_bytes(vector, "new")) == read_bytes(vector, "block"));
    }
  }
}

TEST(Vectors, TheEncoderCountsChangesAndTakesAStoredBlock) {
  for (const Json& vector : vectors().at("cases")) {
    SCOPED_TRACE(vector.at("name"));
    const Bytes new_block = read_bytes(vector, "new");
    Bytes coded;
    EXPECT_EQ(
        encode_block(kind_of(vector), read_bytes(vector, "old"), new_block, test::scratch(), coded),
        vector.at("changed").get<std::size_t>());
    if (vector.at("mode") == "SAME") {
      EXPECT_TRUE(coded.empty());
    } else if (vector.at("mode") == "EF") {
      EXPECT_TRUE(coded == read_bytes(vector, "block"));
    }
  }
}

TEST(Vectors, EveryBlockToRefuseIsRefused) {
  for (const Json& vector : vectors().at("refuse")) {
    SCOPED_TRACE(vector.at("name"));
    const Bytes block = read_bytes(vector, "block");
    if (block.empty()) continue;  // here an empty block is an unchanged one
    const Bytes old_block = read_bytes(vector, "old");
    Bytes decoded(old_block.size());
    EXPECT_FALSE(decode_block(kind_of(vector), old_block, block, decoded, test::scratch()));
  }
}

TEST(Vectors, XrIsRefused) {
  const Bytes old_block(64);
  Bytes decoded(64);
  const Bytes coded(20, static_cast<std::byte>(Mode::xr));
  EXPECT_FALSE(decode_block(Kind::bf16, old_block, coded, decoded, test::scratch()));
}

}  // namespace
}  // namespace weightfs::kernels
