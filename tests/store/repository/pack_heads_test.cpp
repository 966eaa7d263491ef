#include "store/repository/pack_heads.hpp"

#include <gtest/gtest.h>

#include <string>

namespace weightfs::test {
namespace {

PackRef ref_of(const std::string& head, std::string name = "0-0") {
  return {std::move(name), head.size() + 1000, head.size(), sha256(as_bytes(head))};
}

TEST(PackHeads, AHeaderIsThatOfThePackThatTheManifestMeans) {
  PackHeads heads(1 << 20);
  const PackRef ref = ref_of("head");
  EXPECT_FALSE(heads.find(ref));
  heads.put(ref, "head");
  ASSERT_TRUE(heads.find(ref));
  EXPECT_EQ(*heads.find(ref), "head");
  PackRef other = ref;
  other.size_bytes++;
  EXPECT_FALSE(heads.find(other)) << "it was not checked for that";
  EXPECT_FALSE(heads.find(ref_of("head", "0-1")));
}

TEST(PackHeads, TheOldestGoFirst) {
  constexpr std::size_t kEach = 1000;
  PackHeads heads(3 * kEach);
  const auto head = [](char letter) { return std::string(kEach, letter); };
  for (const char letter : {'a', 'b', 'c', 'd'}) heads.put(ref_of(head(letter)), head(letter));
  EXPECT_FALSE(heads.find(ref_of(head('a'))));
  EXPECT_TRUE(heads.find(ref_of(head('d'))));
}

}  // namespace
}  // namespace weightfs::test
