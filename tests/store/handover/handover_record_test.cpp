#include "store/handover/handover_record.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "store/handover/published_range.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

using Phase = HandOverRecord::Phase;

HandOverRecord sample() {
  HandOverRecord record;
  record.order = 7;
  record.directory = 42;
  record.name = record.wishes.tag = "step-1200";
  record.nonce = "0123456789abcdef0123456789abcdef";
  record.origin = {17, std::string("run\xff\n\0 1", 8)};
  record.fence = 5;
  record.wishes.meta = {{"loss", "1.5"}, {"note", "größer"}};
  record.wishes.include = {"*.gguf", "sub/*.bin"};
  record.wishes.snapshot = true;
  record.wishes.rebase = true;
  record.time = 1'790'000'000;
  record.unsynced_boot = "a-boot";
  record.phase = Phase::conflict;
  record.version = 6;
  record.error = "another writer";
  record.error_code = "conflict";
  return record;
}

void expect_equal(const HandOverRecord& a, const HandOverRecord& b) {
  EXPECT_EQ(a.order, b.order);
  EXPECT_EQ(a.serialize(), b.serialize());
  EXPECT_EQ(a.origin.name, b.origin.name);
  EXPECT_EQ(a.wishes.meta, b.wishes.meta);
  EXPECT_EQ(a.wishes.include, b.wishes.include);
}

TEST(HandOverRecord, ComesBackAsItWas) {
  for (const Phase phase :
       {Phase::queued, Phase::committing, Phase::committed, Phase::conflict, Phase::failed}) {
    HandOverRecord record = sample();
    record.phase = phase;
    const HandOverRecord parsed = HandOverRecord::parse(record.key(), record.serialize());
    expect_equal(parsed, record);
    EXPECT_EQ(parsed.phase, phase);
    EXPECT_EQ(parsed.is_terminal(), phase == Phase::conflict || phase == Phase::failed);
  }
}

TEST(HandOverRecord, ARollbackIsAFieldThatOthersDoNotHave) {
  HandOverRecord record = sample();
  EXPECT_EQ(record.serialize().find("rollback"), std::string::npos);
  EXPECT_EQ(HandOverRecord::parse(record.key(), record.serialize()).wishes.rollback, 0U);
  record.wishes.rollback = 41;
  EXPECT_EQ(HandOverRecord::parse(record.key(), record.serialize()).wishes.rollback, 41U);
}

TEST(HandOverRecord, APartComesBackWithItsTokenAndOthersAreAsBefore) {
  HandOverRecord record = sample();
  EXPECT_FALSE(HandOverRecord::parse(record.key(), record.serialize()).part.is_part());
  EXPECT_EQ(nlohmann::json::parse(record.serialize()).at("format"), 1);
  record.part = {2, 4, "job.1"};
  const HandOverRecord parsed = HandOverRecord::parse(record.key(), record.serialize());
  expect_equal(parsed, record);
  EXPECT_EQ(parsed.part.part, 2U);
  EXPECT_EQ(parsed.part.parts, 4U);
  EXPECT_EQ(parsed.part.run, "job.1");
  // An older release, which knows format 1, would publish it as a whole version.
  EXPECT_EQ(nlohmann::json::parse(record.serialize()).at("format"), 2);
}

TEST(HandOverRecord, RefusesAPartThatCannotBe) {
  HandOverRecord record = sample();
  record.part = {2, 4, "job.1"};
  const auto whole = nlohmann::json::parse(record.serialize());
  const std::vector<std::pair<std::string, nlohmann::json>> wrong{
      {"part", 0},        {"part", 5},  {"part", std::uint64_t{1} << 32},
      {"part", "2"},      {"parts", 0}, {"parts", 1025},
      {"parts", nullptr}, {"run", ""},  {"run", 7}};
  for (const auto& [name, value] : wrong) {
    auto json = whole;
    json["part"][name] = value;
    EXPECT_EQ(code_of([&] { HandOverRecord::parse(record.key(), json.dump()); }),
              ErrorCode::corrupt)
        << name << " " << value;
  }
  auto json = whole;
  json.erase("part");
  EXPECT_EQ(code_of([&] { HandOverRecord::parse(record.key(), json.dump()); }), ErrorCode::corrupt);
}

TEST(HandOverRecord, OrdersItsKeysAsTheHandOvers) {
  HandOverRecord earlier = sample(), later = sample();
  earlier.order = 255;
  later.order = 256;
  EXPECT_LT(earlier.key(), later.key());
}

TEST(HandOverRecord, RefusesTextThatIsNoUtf8) {
  HandOverRecord record = sample();
  record.wishes.include = {"\xff*"};
  EXPECT_EQ(code_of([&] { static_cast<void>(record.serialize()); }), ErrorCode::invalid);
}

TEST(HandOverRecord, RefusesANewerFormatByItsName) {
  auto json = nlohmann::json::parse(sample().serialize());
  json["format"] = 3;
  std::string message;
  EXPECT_EQ(code_of([&] { HandOverRecord::parse(sample().key(), json.dump()); }, &message),
            ErrorCode::unsupported);
  EXPECT_NE(message.find("newer weightfs"), message.npos) << message;
}

TEST(HandOverRecord, RefusesEveryFieldThatIsMissingOrOfAnotherType) {
  const std::string key = sample().key();
  const auto whole = nlohmann::json::parse(sample().serialize());
  for (const auto& [name, value] : whole.items()) {
    auto json = whole;
    json.erase(name);
    EXPECT_EQ(code_of([&] { HandOverRecord::parse(key, json.dump()); }), ErrorCode::corrupt)
        << name;
    for (const nlohmann::json& other :
         {nlohmann::json(nullptr), nlohmann::json(-1), nlohmann::json(1.5),
          nlohmann::json::array({1}), nlohmann::json{{"x", 1}}}) {
      json[name] = other;
      EXPECT_EQ(code_of([&] { HandOverRecord::parse(key, json.dump()); }), ErrorCode::corrupt)
          << name << " " << other;
    }
  }
}

TEST(HandOverRecord, RefusesValuesThatCannotBe) {
  const std::string key = sample().key();
  const auto whole = nlohmann::json::parse(sample().serialize());
  const std::vector<std::pair<std::string, nlohmann::json>> wrong{
      {"phase", "done"},
      {"nonce", "0123"},
      {"nonce", "0123456789ABCDEF0123456789ABCDEF"},
      {"time", std::uint64_t{1} << 63},
      {"origin", {{"parent", 1}, {"name", "abc"}}},
      {"origin", {{"parent", 1}, {"name", "zz"}}}};
  for (const auto& [name, value] : wrong) {
    auto json = whole;
    json[name] = value;
    EXPECT_EQ(code_of([&] { HandOverRecord::parse(key, json.dump()); }), ErrorCode::corrupt)
        << name << " " << value;
  }
  EXPECT_EQ(code_of([&] { HandOverRecord::parse("short", whole.dump()); }), ErrorCode::corrupt);
}

/// Any input gives an Error, or a record that can be written again.
TEST(HandOverRecord, EndsWithAnErrorOrARecordForAnyBytes) {
  Random rng = make_rng();
  const std::string whole = sample().serialize();
  int refused = 0;
  for (int i = 0; i < 20'000; i++) {
    std::string bytes = whole;
    for (std::uint64_t k = 1 + rng() % 3; k > 0; k--) {
      const std::size_t at = rng() % bytes.size();
      if (rng() % 4 == 0) {
        bytes.erase(at, rng() % 20);
      } else {
        bytes[at] = static_cast<char>(rng());
      }
      if (bytes.empty()) break;
    }
    try {
      const HandOverRecord record = HandOverRecord::parse(sample().key(), bytes);
      static_cast<void>(record.serialize());
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported);
      refused++;
    }
  }
  EXPECT_GT(refused, 10'000);
}

// ---- fences ----

TEST(PublishedRange, MayBeFollowedOnlyIfNoOtherVersionLiesBehindTheFence) {
  const PublishedRange none;
  EXPECT_EQ(none.parent_for(0), 0u);
  EXPECT_EQ(none.parent_for(5), 5u);
  for (std::uint64_t first = 1; first < 8; first++) {
    for (std::uint64_t last = first; last < 10; last++) {
      for (std::uint64_t fence = 0; fence < 12; fence++) {
        bool is_unbroken = fence < last;
        for (std::uint64_t v = fence + 1; v <= last; v++) is_unbroken = is_unbroken && v >= first;
        EXPECT_EQ((PublishedRange{first, last}.parent_for(fence)), is_unbroken ? last : fence)
            << first << ".." << last << " fence " << fence;
      }
    }
  }
}

TEST(PublishedRange, GrowWithTheNextVersionAndBeginAgainBehindAGap) {
  EXPECT_EQ(PublishedRange{}.with(1), (PublishedRange{1, 1}));
  EXPECT_EQ((PublishedRange{3, 5}.with(6)), (PublishedRange{3, 6}));
  EXPECT_EQ((PublishedRange{3, 5}.with(8)), (PublishedRange{8, 8}));
}

TEST(PublishedRange, ComeBackFromTheStore) {
  const PublishedRange own{3, 500};
  EXPECT_EQ(PublishedRange::parse(own.serialize()), own);
  for (const std::string& text : {std::string(), std::string(15, 'x'), PublishedRange{}.serialize(),
                                  PublishedRange{5, 3}.serialize()}) {
    EXPECT_EQ(PublishedRange::parse(text), PublishedRange{});
  }
}

}  // namespace
}  // namespace weightfs::test
