#include "store/catalog/version_word.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

using test::contains;
using test::error_of;
using test::make_safetensors;
using test::random_tensor;
using test::RepositoryBuilder;

/// 40 versions; every fourth carries `canary`, version N otherwise `step-N`; the newest one has no
/// tag.
class VersionWord : public ::testing::Test {
 protected:
  VersionWord() {
    for (int i = 1; i <= 40; i++) {
      const std::string tag = i == 40 ? "" : i % 4 == 0 ? "canary" : "step-" + std::to_string(i);
      builder_.add({{"config.json", std::to_string(i)}},
                   {.edit = [&](Manifest& manifest) { manifest.tag = tag; }});
    }
  }

  std::uint64_t find(const std::string& word) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    return find_version(parse_follow(word), history, {});
  }

  RepositoryBuilder builder_;
};

TEST_F(VersionWord, IsANumberATagOrLatest) {
  EXPECT_EQ(find("7"), 7u);
  EXPECT_EQ(find("700"), 700u);  // its reader reports that it does not exist
  EXPECT_EQ(find("latest"), 40u);
  EXPECT_EQ(find("canary"), 36u);
  EXPECT_EQ(find("step-39"), 39u);
  EXPECT_EQ(find("step-1"), 1u);
}

TEST_F(VersionWord, AnUnknownTagIsToldWhichThereAre) {
  const Error error = error_of([&] { find("canray"); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(
      contains(error.what(),
               "carries the tag canray; did you mean canary?; the tags are step-39, step-38, "
               "step-37, canary, step-35"))
      << error.what();
  EXPECT_TRUE(contains(error.what(), "and 21 more")) << error.what();
}

TEST_F(VersionWord, ADamagedVersionCarriesNoTagAndIsNamedIfNoneIsFound) {
  builder_.flip(builder_.key("versions/00000000000000000036"), 0);
  EXPECT_EQ(find("canary"), 32u);
  const Error error = error_of([&] { find("nobody"); });
  EXPECT_TRUE(contains(error.what(), "not all could be read: versions/00000000000000000036"))
      << error.what();
}

TEST(VersionWordOfAnEmptyRepository, SaysHowToPublish) {
  const RepositoryBuilder builder;
  const auto repository = builder.open();
  History history(*repository, nullptr);
  for (const char* word : {"latest", "canary"}) {
    const Error error = error_of([&] { find_version(parse_follow(word), history, {}); });
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_TRUE(contains(error.what(), "is empty; publish with: weightfs publish")) << error.what();
  }
}

}  // namespace
}  // namespace weightfs
