// The golden vectors of the format (tests/data/codec/vectors.json): what a case gives, and what
// must be refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "kernels/dispatch/hash.hpp"
#include "tests/kernels/coded_blocks.hpp"

namespace weightfs::kernels {
namespace {

using Json = nlohmann::json;
using test::decode_one;
using test::encode_as;
using test::encode_as_ef;

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

/// The new block of a vector: stored, or as what differs from the old one, or for a large one what
/// its block gives, with the right hash.
Bytes new_block_of(const Json& vector) {
  if (vector.contains("new")) return read_bytes(vector, "new");
  if (vector.contains("set")) {
    Bytes bytes = read_bytes(vector, "old");
    for (const Json& element : vector.at("set")) {
      test::set_element(kind_of(vector), bytes, element.at(0), element.at(1));
    }
    return bytes;
  }
  const std::optional<Bytes> decoded =
      decode_one(kind_of(vector), read_bytes(vector, "old"), read_bytes(vector, "block"));
  EXPECT_TRUE(decoded.has_value());
  if (!decoded) return {};
  EXPECT_EQ(fmt::format("{:016x}", hash_chunk(*decoded)), vector.at("new_hash").get<std::string>());
  return *decoded;
}

/// The block in the mode and with the choices of the vector, whatever its size.
Bytes encode_as_stored(const Json& vector, const Bytes& old_block, const Bytes& new_block) {
  const Kind kind = kind_of(vector);
  std::optional<Bytes> coded;
  if (vector.at("mode") == "EF") {
    coded = encode_as_ef(kind, old_block, new_block);
  } else {
    const Mode mode = vector.at("mode") == "XR" ? Mode::xr : Mode::xs;
    coded = encode_as(mode, kind, test::find(kind, old_block, new_block, vector.at("ebase")),
                      vector.at("z"));
  }
  EXPECT_TRUE(coded.has_value());
  return coded.value_or(Bytes{});
}

TEST(Vectors, HoldCasesOfEveryModeAndKind) {
  std::set<std::string> modes;
  std::set<unsigned> kinds;
  for (const Json& vector : vectors().at("cases")) {
    modes.insert(vector.at("mode"));
    kinds.insert(vector.at("kind").get<unsigned>());
  }
  EXPECT_EQ(modes, (std::set<std::string>{"EF", "RAW", "SAME", "XR", "XS"}));
  EXPECT_EQ(kinds, (std::set<unsigned>{0, 1, 2, 3, 4, 5}));
}

TEST(Vectors, EveryCaseDecodesToItsNewBlock) {
  for (const Json& vector : vectors().at("cases")) {
    SCOPED_TRACE(vector.at("name"));
    const std::optional<Bytes> decoded =
        decode_one(kind_of(vector), read_bytes(vector, "old"), read_bytes(vector, "block"));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_TRUE(*decoded == new_block_of(vector));
  }
}

TEST(Vectors, EveryListOfChangesEncodesToTheStoredBytes) {
  for (const char* list : {"cases", "refuse"}) {
    for (const Json& vector : vectors().at(list)) {
      const std::string mode = vector.value("mode", "");
      if (mode != "EF" && !vector.contains("ebase")) continue;
      SCOPED_TRACE(vector.at("name"));
      EXPECT_TRUE(encode_as_stored(vector, read_bytes(vector, "old"), new_block_of(vector)) ==
                  read_bytes(vector, "block"));
    }
  }
}

TEST(Vectors, TheEncoderChoosesTheStoredEbaseAndZ) {
  for (const Json& vector : vectors().at("cases")) {
    if (!vector.value("is_chosen", false)) continue;
    SCOPED_TRACE(vector.at("name"));
    const Bytes old_block = read_bytes(vector, "old");
    const unsigned ebase = choose_ebase(kind_of(vector), old_block);
    EXPECT_EQ(ebase, vector.at("ebase").get<unsigned>());
    const test::FoundChanges found =
        test::find(kind_of(vector), old_block, new_block_of(vector), ebase);
    EXPECT_EQ(choose_z(kind_of(vector), found.classed), vector.at("z").get<unsigned>());
  }
}

TEST(Vectors, TheEncoderCountsChangesAndItsBlockDecodes) {
  for (const Json& vector : vectors().at("cases")) {
    SCOPED_TRACE(vector.at("name"));
    const Bytes old_block = read_bytes(vector, "old");
    const Bytes new_block = new_block_of(vector);
    Bytes coded;
    EXPECT_EQ(encode_block(kind_of(vector), old_block, new_block, test::scratch(), coded),
              vector.at("changed").get<std::size_t>());
    EXPECT_TRUE(decode_one(kind_of(vector), old_block, coded) == new_block);
    EXPECT_EQ(coded.empty(), vector.at("mode") == "SAME");
  }
}

TEST(Vectors, EveryBlockToRefuseIsRefused) {
  for (const Json& vector : vectors().at("refuse")) {
    SCOPED_TRACE(vector.at("name"));
    const Bytes block = read_bytes(vector, "block");
    if (block.empty()) continue;  // here an empty block is an unchanged one
    EXPECT_FALSE(decode_one(kind_of(vector), read_bytes(vector, "old"), block).has_value());
  }
}

}  // namespace
}  // namespace weightfs::kernels
