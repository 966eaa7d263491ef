#include "store/repository/layout_cache.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/support.hpp"

namespace weightfs {
namespace {

/// A layout of one file with `count` tensors, and a text in its header.
std::shared_ptr<const Layout> layout_with(const std::string& text, unsigned count = 100,
                                          const std::string& path = "model.safetensors") {
  std::vector<test::TestTensor> tensors;
  for (unsigned i = 0; i < count; i++) {
    tensors.push_back({"model.layers.weight." + std::to_string(i), Dtype::u8, {1}, Bytes(1)});
  }
  const std::string file = test::make_safetensors(tensors, {{"step", text}});
  Checkpoint checkpoint;
  CheckpointFile& found = checkpoint.files.emplace_back();
  found.path = path;
  found.kind = CheckpointFile::Kind::safetensors;
  found.head = file.substr(0, file.size() - count);
  found.header = parse_safetensors_header(found.head, path);
  found.stamp.size_bytes = file.size();
  return Layout::from_checkpoint(checkpoint);
}

TEST(LayoutCache, LayoutsThatDifferInTextShareTheirTensors) {
  LayoutCache cache(1u << 30);
  const auto first = cache.put(layout_with("1"));
  const std::size_t alone = cache.bytes();
  const auto made = layout_with("2");
  const auto second = cache.put(made);
  EXPECT_NE(first->id(), second->id());
  EXPECT_EQ(first->tensor_table(), second->tensor_table());
  EXPECT_EQ(second->id(), made->id());
  EXPECT_EQ(second->serialize(), made->serialize());
  EXPECT_EQ(second->find_file("model.safetensors"), &second->files()[0]);
  EXPECT_LT(cache.bytes(), alone + alone / 2) << "the table counts once";

  const auto longer = cache.put(layout_with("a text that moves all tensors"));
  EXPECT_NE(longer->tensor_table(), first->tensor_table());
  EXPECT_NE(cache.put(layout_with("3", 99))->tensor_table(), first->tensor_table());
  EXPECT_EQ(cache.put(layout_with("1", 100, "other.safetensors"))->tensor_table(),
            first->tensor_table());
}

TEST(LayoutCache, KeepsThoseUsedLastAsFarAsTheyFit) {
  const auto probe = layout_with("0000");
  LayoutCache cache(4 * probe->serialize().size());
  std::weak_ptr<const Layout> first = cache.put(layout_with("0001"));
  std::size_t most = 0;
  for (int i = 2; i <= 200; i++) {
    const auto id = cache.put(layout_with("v" + std::to_string(i), 100))->id();
    EXPECT_NE(cache.find(id), nullptr);
    const auto kept = first.lock();
    if (!kept) break;
    EXPECT_EQ(cache.find(kept->id()), kept) << "it is in use";
    most = std::max(most, cache.bytes());
  }
  EXPECT_FALSE(first.expired()) << "it was used again and again";
  EXPECT_LE(most, 4 * probe->serialize().size());
  for (int i = 2; i <= 10; i++) cache.put(layout_with("w" + std::to_string(i)));
  EXPECT_TRUE(first.expired());
}

TEST(LayoutCache, FindsWhatSomebodyHoldsAndNeverMakesItTwice) {
  LayoutCache cache(1);
  const auto held = cache.put(layout_with("1"));
  EXPECT_TRUE(cache.is_held(held->id()));
  for (int i = 2; i < 300; i++) cache.put(layout_with(std::to_string(i), 1));
  EXPECT_EQ(cache.find(held->id()), held);
  EXPECT_EQ(cache.put(layout_with("1")), held);
  const auto id = cache.put(layout_with("2"))->id();
  EXPECT_FALSE(cache.is_held(id)) << "by the cache alone";
  EXPECT_NE(cache.find(id), nullptr);
  cache.put(layout_with("3"));
  EXPECT_EQ(cache.find(id), nullptr);
}

TEST(LayoutCache, GivesBackAllThatItCounted) {
  LayoutCache cache(1);
  cache.put(layout_with("1"));
  const std::size_t one = cache.bytes();
  for (const char* text : {"2", "a longer text than that", "3", "another text", "4"}) {
    cache.put(layout_with(text));
  }
  EXPECT_EQ(cache.bytes(), one);
}

}  // namespace
}  // namespace weightfs
