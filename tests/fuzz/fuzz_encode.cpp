// encode_block, find_changes, summarize_diff, make_patch: the same bytes as scalar's, and decoding
// gives the new block.
//
// Input: a block (the old one), and its changes.
#include <algorithm>

#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/encode.hpp"
#include "kernels/dispatch/patch.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace weightfs::fuzz {
namespace {

void check_coding(const Block& block, const Bytes& changed) {
  Bytes expected = {std::byte{9}};
  Bytes coded = {std::byte{9}};
  const std::size_t expected_count =
      scalar().encode_block(block.kind, block.bytes, changed, scratch(), expected);
  const std::size_t count =
      kernels::encode_block(block.kind, block.bytes, changed, scratch(), coded);
  require(count == expected_count, "encode_block: another count than scalar's");
  require(coded == expected, "encode_block: other bytes than scalar's");

  coded.erase(coded.begin());
  coded.shrink_to_fit();
  Bytes decoded(changed.size());
  require(coded.size() <= changed.size() + 1, "encode_block: longer than raw");
  require(kernels::decode_block(block.kind, block.bytes, coded, decoded, scratch()),
          "decode_block: refuses what encode_block gave");
  require(decoded == changed, "decode_block: not what was encoded");
}

void check_patch(const Block& block, const Bytes& changed) {
  Bytes expected;
  Bytes patch;
  scalar().make_patch(block.kind, block.bytes, changed, scratch(), expected);
  kernels::make_patch(block.kind, block.bytes, changed, scratch(), patch);
  require(patch == expected, "make_patch: other bytes than scalar's");
  patch.shrink_to_fit();
  Bytes applied = block.bytes;
  require(kernels::apply_patch(block.kind, patch, applied, scratch()),
          "apply_patch: refuses what make_patch gave");
  require(applied == changed, "apply_patch: not what the patch was made of");
}

void check_diff(const Block& block, const Bytes& changed) {
  static kernels::Changes expected;
  static kernels::Changes changes;
  scalar().find_changes(block.kind, block.bytes, changed, expected);
  variant().find_changes(block.kind, block.bytes, changed, changes);
  const auto are_equal = [](const auto& a, const auto& b, std::size_t count) {
    return std::equal(a.begin(), a.begin() + count, b.begin());
  };
  require(changes.count == expected.count && changes.exception_count == expected.exception_count &&
              are_equal(changes.position, expected.position, expected.count) &&
              are_equal(changes.difference, expected.difference, expected.count) &&
              are_equal(changes.exception, expected.exception, expected.exception_count),
          "find_changes: other changes than scalar's");
  const auto expected_summary = scalar().summarize_diff(block.kind, block.bytes, changed);
  const auto summary = variant().summarize_diff(block.kind, block.bytes, changed);
  require(summary.changed == expected_summary.changed &&
              summary.largest_ulp == expected_summary.largest_ulp,
          "summarize_diff: not scalar's");
}

void run(Input input) {
  const Block block = take_block(input);
  const Bytes changed = take_changed(input, block);
  check_coding(block, changed);
  check_patch(block, changed);
  check_diff(block, changed);
}

}  // namespace
}  // namespace weightfs::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::run({data, size});
  return 0;
}
