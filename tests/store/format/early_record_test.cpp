// EarlyRecord: read as untrusted bytes.
#include "store/format/early_record.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"

namespace weightfs::test {
namespace {

EarlyRecord full_record() {
  EarlyRecord record;
  record.repository = std::string(32, 'a');
  record.version = 42;
  record.parent_sha256.fill(std::byte{7});
  record.files = {{"a.safetensors", {{{std::string(32, 'b') + "-0", 200, 100, Sha256{}}}, 17}},
                  {"sub/b.safetensors", {}, 4096}};
  record.features = {"xr"};
  return record;
}

TEST(EarlyRecordTest, ComesBackAsItWasWritten) {
  const std::string bytes = full_record().serialize();
  const EarlyRecord read = EarlyRecord::parse(bytes, "record");
  EXPECT_EQ(read.serialize(), bytes);
  EXPECT_EQ(read.version, 42u);
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[0].delta.packs.size(), 1u);
  EXPECT_EQ(read.files[0].delta.changed_elements, 17u);
  EXPECT_FALSE(read.files[0].coded_bytes) << "all of it";
  EXPECT_TRUE(read.files[1].delta.packs.empty());
  EXPECT_EQ(read.files[1].coded_bytes, 4096u);
}

TEST(EarlyRecordTest, EveryDamagedByteIsNoticed) {
  const std::string bytes = full_record().serialize();
  for (std::size_t i = 0; i < bytes.size(); i++) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(static_cast<void>(EarlyRecord::parse(damaged, "record")), Error) << i;
  }
}

TEST(EarlyRecordTest, RefusesWhatCannotBe) {
  const auto refuses = [](const std::function<void(EarlyRecord&)>& change) {
    EarlyRecord record = full_record();
    change(record);
    std::string message;
    return code_of([&] { static_cast<void>(EarlyRecord::parse(record.serialize(), "record")); },
                   &message) == ErrorCode::corrupt &&
           contains(message, "record: ");
  };
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.version = 1; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.version = 0; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files.clear(); }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.repository = "x"; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files[0].path = "../etc/passwd"; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files[0].path = "z"; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files[1] = record.files[0]; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files[0].delta.packs[0].name = "../x"; }));
  EXPECT_TRUE(refuses([](EarlyRecord& record) { record.files[1].coded_bytes = UINT64_MAX; }));
}

TEST(EarlyRecordTest, AFeatureThatIsNotKnownIsNotSupported) {
  EarlyRecord record = full_record();
  record.features = {"later"};
  EXPECT_EQ(code_of([&] { static_cast<void>(EarlyRecord::parse(record.serialize(), "record")); }),
            ErrorCode::unsupported);
}

TEST(EarlyRecordTest, OneThatIsTooLargeIsNeitherWrittenNorRead) {
  EarlyRecord record = full_record();
  record.files.clear();
  for (int i = 0; i < 40'000; i++) {
    record.files.push_back({std::to_string(100'000 + i) + std::string(100, 'x'), {}});
  }
  EXPECT_EQ(code_of([&] { static_cast<void>(record.serialize()); }), ErrorCode::invalid);
  EXPECT_EQ(
      code_of([&] {
        static_cast<void>(EarlyRecord::parse(std::string(kEarlyRecordBytesMax + 1, ' '), "record"));
      }),
      ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs::test
