#include "store/repository/kept_packs.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"

namespace weightfs::test {
namespace {

PackRef ref_of(const std::string& head, std::string name = "0-0") {
  return {std::move(name), head.size() + 1000, head.size(), sha256(as_bytes(head))};
}

std::shared_ptr<const std::string> shared(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

TEST(KeptPacks, AreThoseThatTheManifestMeans) {
  KeptPacks kept(1 << 20, 1 << 20);
  const PackRef ref = ref_of("head");
  EXPECT_FALSE(kept.find_head(ref));
  EXPECT_FALSE(kept.find_data(ref));
  kept.put_head(ref, "head");
  ASSERT_TRUE(kept.find_head(ref));
  EXPECT_EQ(*kept.find_head(ref), "head");
  EXPECT_FALSE(kept.find_data(ref));
  kept.put_data(ref, shared("data"));
  ASSERT_TRUE(kept.find_data(ref));
  EXPECT_EQ(*kept.find_data(ref), "data");
  PackRef other = ref;
  other.size_bytes++;
  EXPECT_FALSE(kept.find_head(other)) << "it was not checked for that";
  EXPECT_FALSE(kept.find_data(other));
  EXPECT_FALSE(kept.find_head(ref_of("head", "0-1")));
}

// There are more headers than data that is needed again.
TEST(KeptPacks, TheOldestGoFirstAndNoHeaderForData) {
  constexpr std::size_t kEach = 1000;
  KeptPacks kept(3 * kEach, 2 * kEach);
  const auto head = [](char letter) { return std::string(kEach, letter); };
  for (const char letter : {'a', 'b', 'c', 'd'}) kept.put_head(ref_of(head(letter)), head(letter));
  EXPECT_FALSE(kept.find_head(ref_of(head('a'))));
  for (const char letter : {'c', 'd'}) {
    kept.put_data(ref_of(head(letter)), shared(std::string(kEach, letter)));
  }
  EXPECT_FALSE(kept.find_data(ref_of(head('c'))));
  EXPECT_TRUE(kept.find_data(ref_of(head('d'))));
  EXPECT_TRUE(kept.find_head(ref_of(head('c'))));
}

}  // namespace
}  // namespace weightfs::test
