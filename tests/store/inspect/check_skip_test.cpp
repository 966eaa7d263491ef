#include "store/inspect/check_skip.hpp"

#include <gtest/gtest.h>

#include "store/repository/skips.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {
namespace {

class CheckSkip : public testing::Test {
 protected:
  CheckSkip() {
    for (int i = 0; i < 5; i++) {
      if (i > 0) nudge(tensors_[0], 0.01, rng_);
      builder_.add({{"model.safetensors", make_safetensors(tensors_)}});
    }
  }

  void check(const SkipRecord& record) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    EXPECT_EQ(check_skip(history, record, {}).size(), record.delta.packs.size());
  }
  ErrorCode code(const SkipRecord& record) {
    return code_of([&] { check(record); });
  }
  std::string pack_of(const SkipRecord& record) const {
    return keys::skip_pack(record.versions, record.delta.packs.at(0).name);
  }

  Random rng_{seed()};
  std::vector<TestTensor> tensors_{random_tensor("w", Dtype::bf16, {100, 300}, rng_)};
  RepositoryBuilder builder_;
};

TEST_F(CheckSkip, AWholeOneLeadsToTheRootOfTheLaterVersion) {
  check(builder_.add_skip({1, 5}));
  check(builder_.add_skip({2, 4}));
}

TEST_F(CheckSkip, PacksThatAreGoneCutOrDamagedAreRefused) {
  const SkipRecord record = builder_.add_skip({1, 5});
  const std::string key = pack_of(record), good = builder_.bucket()->find(key).value();
  builder_.bucket()->erase(key);
  EXPECT_EQ(code(record), ErrorCode::not_found);
  builder_.bucket()->replace(key, good);
  builder_.cut(key, 1);
  EXPECT_EQ(code(record), ErrorCode::corrupt);
  builder_.bucket()->replace(key, good + "x");
  EXPECT_EQ(code(record), ErrorCode::corrupt);
  builder_.bucket()->replace(key, good);
  builder_.flip(key, 12);
  EXPECT_EQ(code(record), ErrorCode::corrupt);
  builder_.bucket()->replace(key, good);
  check(record);
}

TEST_F(CheckSkip, HashesThatLeadElsewhereAreRefused) {
  SkipRecord record = builder_.add_skip({1, 5});
  SkipRecord other = builder_.put_skip_packs({1, 4});
  const std::string bytes = builder_.bucket()->find(pack_of(other)).value();
  record.delta = other.delta;  // the change to 4, under the name of one to 5
  builder_.bucket()->replace(pack_of(record), bytes);
  EXPECT_EQ(code(record), ErrorCode::corrupt);
}

TEST_F(CheckSkip, AnotherHistoryIsRefused) {
  for (const bool is_from : {true, false}) {
    SkipRecord record = builder_.add_skip({1, 5});
    (is_from ? record.from_sha256 : record.to_sha256)[0] ^= std::byte{1};
    EXPECT_EQ(code(record), ErrorCode::corrupt) << is_from;
  }
}

TEST_F(CheckSkip, AnotherTensorTableIsRefused) {
  SkipRecord record = builder_.add_skip({1, 5});
  tensors_.push_back(random_tensor("x", Dtype::bf16, {10}, rng_));
  builder_.add({{"model.safetensors", make_safetensors(tensors_)}});
  const auto repository = builder_.open();
  record.versions.to = 6;
  record.to_sha256 = repository->find_version(6, {})->manifest_sha256;
  EXPECT_EQ(code(record), ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs::test
