#include "store/format/rank_pieces.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/format/checkpoint.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

class RankPieces : public testing::Test {
 protected:
  /// Tensors of 8 elements of one byte; `note`: nullopt: torch's writer did not write this.
  void write(const std::string& name, const std::vector<std::string>& tensors,
             const std::optional<std::string>& note = "{}") const {
    std::vector<test::TestTensor> all;
    all.reserve(tensors.size());
    for (const std::string& tensor : tensors) all.push_back({tensor, Dtype::u8, {8}, Bytes(8)});
    std::map<std::string, std::string> metadata;
    if (note) metadata["DCP_SHARDING_INFO"] = *note;
    test::write_text(dir_ / name, test::make_safetensors(all, metadata));
  }
  void write_index(unsigned total) const {
    test::write_text(dir_ / "model.safetensors.index.json",
                     R"({"metadata":{"total_size":)" + std::to_string(total) +
                         R"(},"weight_map":{"a":"1.safetensors"}})");
  }
  void accept() const { EXPECT_NO_THROW(scan_checkpoint(dir_.path(), {})); }
  void refuse(const std::string& tensor, const std::string& why) const {
    try {
      scan_checkpoint(dir_.path(), {});
      ADD_FAILURE() << "accepted; expected: " << why;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << message;
      EXPECT_NE(message.find("no whole tensor '" + tensor + "'"), message.npos) << message;
      EXPECT_NE(message.find(why), message.npos) << message;
      EXPECT_NE(message.find("enable_consolidation=True"), message.npos) << message;
    }
  }

  test::TempDir dir_;
};

TEST_F(RankPieces, WholeTensorsOfTheSameWriterAreACheckpoint) {
  write("1.safetensors", {"a"}, R"({"a":{"saved_offsets":[0,0]}})");
  write("2.safetensors", {"b"}, R"({"b":{"saved_offsets":[0]}})");
  write_index(16);
  accept();
}

TEST_F(RankPieces, ATensorInTwoFilesIsNamed) {
  write("1.safetensors", {"a", "b"});
  write("2.safetensors", {"b"});
  refuse("b", "both '1.safetensors' and '2.safetensors' have a part of it");
}

TEST_F(RankPieces, APieceThatBeginsLaterIsNamed) {
  write("1.safetensors", {"a"}, R"({"a":{"saved_offsets":[4,0]}})");
  refuse("a", "what '1.safetensors' has of it begins at [4,0]");
}

TEST_F(RankPieces, FewerBytesThanTheIndexTellsOf) {
  write("1.safetensors", {"a"}, R"({"a":{"saved_offsets":[0]}})");
  write_index(16);
  refuse("a", "they have 16 bytes, in the files 8");
}

TEST_F(RankPieces, OtherFilesMayHaveATensorTwice) {
  write("1.safetensors", {"a"}, std::nullopt);
  write("2.safetensors", {"a"}, std::nullopt);
  write_index(64);
  accept();
}

// Shown in a message, it took the stack of the thread.
TEST_F(RankPieces, ANoteThatIsNestedDeeplyIsNotRead) {
  constexpr std::size_t kDepth = 1'000'000;
  const std::string nested = std::string(kDepth, '[') + std::string(kDepth, ']');
  write("1.safetensors", {"a"}, R"({"a":{"saved_offsets":[1,)" + nested + "]}}");
  accept();
}

TEST_F(RankPieces, ANoteThatCannotBeReadSaysNothing) {
  for (const char* note : {"", "[]", "{", R"({"a":1})", R"({"a":{"saved_offsets":{"x":4}}})",
                           R"({"a":{"saved_offsets":["4"]}})"}) {
    write("1.safetensors", {"a"}, note);
    accept();
  }
}

}  // namespace
}  // namespace weightfs
