#include "store/format/skip_record.hpp"

#include <gtest/gtest.h>

#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/record_reader.hpp"

namespace weightfs {
namespace {

const std::string kSkipNonce = "00112233445566778899aabbccddeeff";
const std::string kSkipKey = "skips/00000000000000000064-00000000000000000056.json";

SkipRecord skip_record() {
  SkipRecord record;
  record.repository = kSkipNonce;
  record.versions = {56, 64};
  record.from_sha256 = sha256(as_bytes("from"));
  record.to_sha256 = sha256(as_bytes("to"));
  record.delta.changed_elements = 7;
  record.delta.packs = {{kSkipNonce + "-0", 300, 100, sha256(as_bytes("head"))}};
  record.nonce = kSkipNonce;
  record.features = {std::string(kFeatureXr)};
  return record;
}

/// Changes a field, and the record's own hash with it if `is_whole`.
std::string changed(const std::string& place, const Json& value, bool is_whole = true) {
  Json json = Json::parse(skip_record().serialize());
  json[Json::json_pointer(place)] = value;
  if (is_whole) json[kRecordHash] = to_hex(hash_of_record(json));
  return json.dump();
}

void expect_skip_refused(const std::string& bytes, ErrorCode code, const std::string& reason) {
  try {
    SkipRecord::parse(bytes, kSkipKey);
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(kSkipKey)) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

// docs/FORMAT.md, "Skip deltas": these bytes must never change.
TEST(SkipRecord, IsWrittenAsTheFormatSays) {
  const std::string hash_of_from = to_hex(sha256(as_bytes("from")));
  const std::string hash_of_to = to_hex(sha256(as_bytes("to")));
  const std::string pack = R"({"head":100,"head_sha256":")" + to_hex(sha256(as_bytes("head"))) +
                           R"(","name":")" + kSkipNonce + R"(-0","size":300})";
  const std::string before = R"({"delta":{"changed":7,"packs":[)" + pack +
                             R"(]},"format":1,"from":56,"from_sha256":")" + hash_of_from + R"(",)" +
                             R"("key_id":"","nonce":")" + kSkipNonce + R"(","repository":")" +
                             kSkipNonce + R"(","required_features":["xr"])";
  const std::string after = R"("to":64,"to_sha256":")" + hash_of_to + R"("})";
  const std::string hash = to_hex(sha256(as_bytes(before + "," + after)));
  EXPECT_EQ(skip_record().serialize(),
            before + R"(,"sha256":")" + hash + R"(","signature":"",)" + after);
}

TEST(SkipRecord, IsReadAsItWasWritten) {
  const SkipRecord read = SkipRecord::parse(skip_record().serialize(), kSkipKey);
  EXPECT_EQ(read.serialize(), skip_record().serialize());
  EXPECT_EQ(read.versions, (VersionPair{56, 64}));
  EXPECT_EQ(read.to_sha256, skip_record().to_sha256);
  ASSERT_EQ(read.delta.packs.size(), 1u);
  EXPECT_EQ(read.delta.packs[0].size_bytes, 300u);
}

TEST(SkipRecord, RefusesWhatItsHashDoesNotCover) {
  expect_skip_refused(changed("/from", 57, false), ErrorCode::corrupt, "it is damaged");
  Json without = Json::parse(skip_record().serialize());
  without.erase(kRecordHash);
  expect_skip_refused(without.dump(), ErrorCode::corrupt, "does not carry its own SHA-256");
}

TEST(SkipRecord, RefusesWhatIsNotOne) {
  expect_skip_refused("", ErrorCode::corrupt, "");
  expect_skip_refused(std::string(kSkipRecordBytesMax + 1, ' '), ErrorCode::corrupt, "too large");
  expect_skip_refused(skip_record().serialize() + " ", ErrorCode::corrupt, "canonical");
  expect_skip_refused(changed("/format", 2), ErrorCode::unsupported, "newer");
  expect_skip_refused(changed("/required_features", {"new"}), ErrorCode::unsupported, "'new'");
  expect_skip_refused(changed("/from", 63), ErrorCode::corrupt, "cannot lead");
  expect_skip_refused(changed("/from", 0), ErrorCode::corrupt, "cannot lead");
  expect_skip_refused(changed("/to", kVersionMax + 1), ErrorCode::corrupt, "more than");
  expect_skip_refused(changed("/delta/packs/0/name", "../x"), ErrorCode::corrupt,
                      "not the name of a pack");
  expect_skip_refused(changed("/nonce", "x"), ErrorCode::corrupt, "hex digits");
}

}  // namespace
}  // namespace weightfs
