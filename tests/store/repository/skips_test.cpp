#include "store/repository/skips.hpp"

#include <gtest/gtest.h>

#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

const std::string kNonceA(32, 'a'), kNonceB(32, 'b');

class Skips : public ::testing::Test {
 protected:
  Skips() : repository_(builder_.open()) {}

  SkipRecord record(VersionPair versions, const std::string& nonce) {
    SkipRecord record;
    record.repository = repository_->id();
    record.versions = versions;
    record.nonce = nonce;
    return record;
  }
  void put(const std::string& key, const std::string& bytes) {
    repository_->bucket({}).put(key, TextSource(bytes), {});
  }

  test::RepositoryBuilder builder_;
  std::unique_ptr<Repository> repository_;
};

TEST(SkipKeys, AreWrittenAndRead) {
  const VersionPair versions{56, 64};
  EXPECT_EQ(keys::skip_record(versions), "skips/00000000000000000064-00000000000000000056.json");
  const auto record = find_skip_key(keys::skip_record(versions));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->versions, versions);
  EXPECT_TRUE(record->pack.empty());
  const std::string key = keys::skip_pack(versions, kNonceA + "-12");
  const auto pack = find_skip_key(key);
  ASSERT_TRUE(pack);
  EXPECT_EQ(pack->versions, versions);
  EXPECT_EQ(pack->pack, kNonceA + "-12");
}

TEST(SkipKeys, OthersAreNone) {
  const std::string name = "skips/00000000000000000064-00000000000000000056";
  for (const std::string& key :
       {std::string("skips/"), std::string("skips/64-56.json"), name, name + ".json2", name + "/",
        name + "/x.safetensors", name + "/" + kNonceA + "-01.safetensors",
        name + "/" + kNonceA + "-0", std::string("packs/") + name.substr(6) + ".json",
        std::string("skips/00000000000000000064-00000000000000000063.json"),
        std::string("skips/00000000000000000064-00000000000000000000.json"),
        std::string("skips/9999999999999999999a-00000000000000000001.json")}) {
    EXPECT_FALSE(find_skip_key(key)) << key;
  }
}

TEST_F(Skips, WhoIsFirstIsRead) {
  const VersionPair versions{1, 8};
  EXPECT_FALSE(find_skip(*repository_, versions, {}));
  EXPECT_EQ(put_skip(*repository_, record(versions, kNonceA), {}).nonce, kNonceA);
  EXPECT_EQ(put_skip(*repository_, record(versions, kNonceB), {}).nonce, kNonceA);
  EXPECT_EQ(find_skip(*repository_, versions, {})->nonce, kNonceA);
}

TEST_F(Skips, ARecordUnderTheKeyOfAnotherIsCorrupt) {
  const VersionPair versions{1, 8}, other{2, 8};
  put(keys::skip_record(versions), record(other, kNonceA).serialize());
  EXPECT_EQ(test::code_of([&] { find_skip(*repository_, versions, {}); }), ErrorCode::corrupt);
  SkipRecord foreign = record(other, kNonceA);
  foreign.repository = kNonceB;
  put(keys::skip_record(other), foreign.serialize());
  EXPECT_EQ(test::code_of([&] { find_skip(*repository_, other, {}); }), ErrorCode::corrupt);
}

TEST_F(Skips, AListTellsWhatTheyCost) {
  const VersionPair near{56, 64}, far{1, 64}, later{64, 72};
  for (const VersionPair& versions : {near, far, later}) {
    put(keys::skip_record(versions), record(versions, kNonceA).serialize());
    put(keys::skip_pack(versions, kNonceA + "-0"), std::string(1000 * versions.from, 'x'));
  }
  put(keys::skip_pack({3, 70}, kNonceA + "-0"), "no record yet");
  const std::uint64_t record_bytes = record(near, kNonceA).serialize().size();
  const auto all = list_skips(*repository_, 0, {});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].versions, far);
  EXPECT_EQ(all[1].versions, near);
  EXPECT_EQ(all[1].bytes, record_bytes + 56'000);
  EXPECT_EQ(all[2].versions, later);
  const auto after = list_skips(*repository_, 64, {});
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].versions, later);
}

}  // namespace
}  // namespace weightfs
