#include "store/readers/reader_record.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "store/database/db.hpp"
#include "store/readers/reader_id.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;

ReaderRecord full_record() {
  ReaderRecord record;
  record.id = std::string(32, 'a');
  record.repository = std::string(32, 'b');
  record.host = "gpu-7";
  record.place = "/mnt/w";
  record.pid = 4711;
  record.follow = "latest";
  record.version = 41;
  record.newest = 42;
  record.is_whole = true;
  record.lag_versions = 1;
  record.lag_seconds = 9;
  record.health = "degraded";
  record.engines = {{"vllm http://127.0.0.1:8000", "telling", 40}};
  record.since = 1'790'000'000;
  record.time = 1'790'000'100;
  record.every_s = 30;
  return record;
}

nlohmann::json json_of_full() { return nlohmann::json::parse(full_record().serialize()); }

ErrorCode refusal(const nlohmann::json& json) {
  return code_of([&] { (void)ReaderRecord::parse(json.dump(), "it"); });
}

TEST(ReaderRecordTest, SaysWhatWasWritten) {
  const ReaderRecord record = ReaderRecord::parse(full_record().serialize(), "it");
  EXPECT_EQ(record.serialize(), full_record().serialize());
  EXPECT_EQ(record.place, "/mnt/w");
  EXPECT_EQ(record.version, 41u);
  EXPECT_EQ(record.every_s, 30u);
  EXPECT_TRUE(record.is_whole);
  EXPECT_FALSE(record.has_left);
  ASSERT_EQ(record.engines.size(), 1u);
  EXPECT_EQ(record.engines[0].state, "telling");
}

TEST(ReaderRecordTest, UnknownFieldsAreIgnored) {
  nlohmann::json json = json_of_full();
  json["gpu"] = {{"count", 8}};
  json["engines"][0]["tokens"] = 1;
  EXPECT_EQ(ReaderRecord::parse(json.dump(2), "it").serialize(), full_record().serialize());
}

TEST(ReaderRecordTest, WhatOthersWriteIsChecked) {
  const nlohmann::json full = json_of_full();
  for (const auto& [name, value] : full.items()) {
    nlohmann::json json = json_of_full();
    json.erase(name);
    EXPECT_EQ(refusal(json), ErrorCode::corrupt) << "without " << name;
    for (const nlohmann::json& wrong :
         {nlohmann::json(nullptr), nlohmann::json(-1), nlohmann::json(1.5),
          nlohmann::json::object(), nlohmann::json("a\x1b[2J"),
          nlohmann::json(std::string(1025, 'x')), nlohmann::json(std::uint64_t{1} << 63)}) {
      json[name] = wrong;
      EXPECT_NE(refusal(json), ErrorCode::io) << name << ": " << wrong;  // an Error, and no crash
      if (name == "format") continue;
      EXPECT_EQ(refusal(json), ErrorCode::corrupt) << name << ": " << wrong;
    }
  }
  nlohmann::json json = json_of_full();
  json["format"] = 2;
  EXPECT_EQ(refusal(json), ErrorCode::unsupported);
  json = json_of_full();
  json["engines"] = std::vector(65, json["engines"][0]);
  EXPECT_EQ(refusal(json), ErrorCode::corrupt);
  json["engines"] = {1};
  EXPECT_EQ(refusal(json), ErrorCode::corrupt);
  json = json_of_full();
  json["every"] = 0;
  EXPECT_EQ(refusal(json), ErrorCode::corrupt);
  json["every"] = 3'601;
  EXPECT_EQ(refusal(json), ErrorCode::corrupt);
  for (const std::string& text : {std::string(), std::string("[]"), std::string("7"),
                                  std::string(70'000, ' '), std::string("{\"id\":1,\"id\":2}")}) {
    EXPECT_EQ(code_of([&] { (void)ReaderRecord::parse(text, "it"); }), ErrorCode::corrupt);
  }
}

TEST(ReaderRecordTest, WhatIsWrittenCanBeReadWhateverItsNamesAre) {
  std::string evil;
  for (int i = 0; i < 5'000; i++) evil += "\"\\\x1b\n\xC3\xA4\xFF";
  ReaderRecord record = full_record();
  record.host = record.place = record.follow = record.health = evil;
  record.engines.assign(100, {evil, evil, 7});
  const std::string bytes = record.serialize();
  EXPECT_LE(bytes.size(), kReaderBytesMax);
  const ReaderRecord read = ReaderRecord::parse(bytes, "it");
  EXPECT_EQ(read.engines.size(), kReaderEnginesMax);
  EXPECT_EQ(read.place.substr(0, 5), "\"\\??\xC3");
}

TEST(ReaderIdTest, StaysWithItsStoreHostAndPlace) {
  const test::TempDir directory;
  const auto db = Db::open(directory / "db");
  const std::string id = take_reader_id(*db, "h1", "/mnt/w");
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(take_reader_id(*db, "h1", "/mnt/w"), id);
  const std::string copied = take_reader_id(*db, "h2", "/mnt/w");
  EXPECT_NE(copied, id);
  EXPECT_EQ(take_reader_id(*db, "h2", "/mnt/w"), copied);
  EXPECT_NE(take_reader_id(*db, "h2", "/mnt/v"), copied);
}

}  // namespace
}  // namespace weightfs
