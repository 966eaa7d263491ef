#include "store/repository/gc_record.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "store/base/bytes.hpp"
#include "store/base/json.hpp"
#include "store/format/record_reader.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs::test {
namespace {

/// Written by another program, from docs/FORMAT.md.
constexpr std::string_view kGoldenGcRecord =
    R"({"deltas":[[2,64],[66,128]],"format":1,"grace":86400,"head":200,"needs":[[1,64,")"
    R"(abababababababababababababababababababababababababababababababab"],[64,128,"cdcd)"
    R"(cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"]],"nonce":"0123456)"
    R"(789abcdef0123456789abcdef","number":3,"objects":["packs/2/aaaaaaaaaaaaaaaaaaaaaa)"
    R"(aaaaaaaaaa-0.safetensors","skips/00000000000000000016-00000000000000000001.json")"
    R"(,"skips/00000000000000000016-00000000000000000001/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb)"
    R"(bb-0.safetensors"],"previous_sha256":"111111111111111111111111111111111111111111)"
    R"(1111111111111111111111","repository":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","require)"
    R"(d_features":[],"sha256":"2e6945b4455cae69f91a23429cc8d89f62de91af44e426c2e81b65b)"
    R"(53d87f078","skips":[[1,16]],"snapshots":[[65,65]],"time":1800000000,"versions":[)"
    R"([2,63],[65,127]]})";

/// The golden record after a change, with the SHA-256 of what it is then.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(kGoldenGcRecord);
  change(json);
  json[kRecordHash] = to_hex(hash_of_record(json));
  return json.dump();
}

ErrorCode code_of_record(std::string_view bytes) {
  return code_of([&] { (void)GcRecord::parse(bytes, "a record"); });
}

TEST(GcRecord, ReadsAndWritesWhatFormatSays) {
  const GcRecord record = GcRecord::parse(kGoldenGcRecord, "a record");
  EXPECT_EQ(record.number, 3u);
  EXPECT_EQ(record.head, 200u);
  EXPECT_EQ(record.grace_s, 86'400u);
  EXPECT_EQ(record.deltas.text(), "2 to 64, 66 to 128");
  EXPECT_EQ(record.versions.text(), "2 to 63, 65 to 127");
  EXPECT_EQ(record.skips, (std::set<VersionPair>{{1, 16}}));
  ASSERT_EQ(record.needs.size(), 2u);
  EXPECT_EQ(to_hex(record.needs.at({64, 128})).substr(0, 4), "cdcd");
  EXPECT_EQ(record.objects.size(), 3u);
  EXPECT_EQ(record.serialize(), kGoldenGcRecord);
}

TEST(GcRecord, RefusesEveryChangedByte) {
  for (std::size_t i = 0; i < kGoldenGcRecord.size(); i++) {
    std::string bad(kGoldenGcRecord);
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_THROW((void)GcRecord::parse(bad, "a record"), Error) << i;
  }
}

TEST(GcRecord, RefusesWhatDoesNotFollowTheRules) {
  EXPECT_EQ(changed([](Json&) {}), kGoldenGcRecord);
  const std::string sha(64, 'a');
  const std::vector<std::function<void(Json&)>> changes{
      [](Json& json) {
        json["skips"] = {{1, 2}};
      },  // no skip
      [](Json& json) {
        json["skips"] = {{0, 16}};
      },  // no version 0
      [](Json& json) {
        json["skips"] = {{16, 1}};
      },  // backwards
      [](Json& json) {
        json["skips"] = {{1, 201}};
      },  // above head
      [](Json& json) {
        json["skips"] = {{1, 32}, {1, 16}};
      },  // not in order
      [](Json& json) {
        json["skips"] = {{1, 16}, {1, 16}};
      },  // twice
      [](Json& json) {
        json["skips"] = {{1, 16, 3}};
      },  // too long
      [](Json& json) {
        json["skips"] = {{1, -16}};
      },                                      // negative
      [](Json& json) { json["skips"] = 5; },  // no array
      [&](Json& json) {
        json["needs"] = {{1, 2, sha}};
      },  // no skip
      [&](Json& json) {
        json["needs"] = {{1, 16}};
      },  // no hash
      [&](Json& json) {
        json["needs"] = {{1, 16, "ab"}};
      },  // short
      [&](Json& json) {
        json["needs"] = {{1, 16, 7}};
      },  // no string
      [&](Json& json) {
        json["needs"] = {{2, 16, sha}, {1, 16, sha}};
      },
      [](Json& json) { json.erase("needs"); },
      [](Json& json) { json.erase("skips"); },
      [](Json& json) {
        json["versions"] = {{1, 200}};
      },  // the newest
      [](Json& json) { json["objects"] = {"versions/00000000000000000001.json"}; },
      [](Json& json) {
        json["objects"] = {"skips/00000000000000000201-00000000000000000001.json"};
      },
      [](Json& json) {
        json["objects"] = {"skips/00000000000000000002-00000000000000000001.json"};
      },
      [](Json& json) { json["objects"] = {"skips/16-1.json"}; },
      [](Json& json) { json["objects"] = {"blobs/x"}; }};
  for (std::size_t i = 0; i < changes.size(); i++) {
    EXPECT_EQ(code_of_record(changed(changes[i])), ErrorCode::corrupt) << i;
  }
  EXPECT_EQ(code_of_record(changed([](Json& json) { json["format"] = 2; })),
            ErrorCode::unsupported);
  EXPECT_EQ(code_of_record(changed([](Json& json) { json["required_features"] = {"new"}; })),
            ErrorCode::unsupported);
}

}  // namespace
}  // namespace weightfs::test
